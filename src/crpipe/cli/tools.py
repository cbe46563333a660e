"""Verbs that are needed now and then: shards as plain files, weeks of running, tokens."""

from __future__ import annotations

import enum
import textwrap
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crpipe.cli.terminal import RangeArgument, Settings, Terminal, find_range, opened, show
from crpipe.cli.verbs import EXITS, FRONT, GROUPS, VerbGroup, declare, listed
from crpipe.core.errors import (
    AccessError,
    DataError,
    LeaseError,
    MachineError,
    MissingExtra,
    PluginError,
    SourceError,
)
from crpipe.core.ranges import Range
from crpipe.core.text import counted

if TYPE_CHECKING:
    from crpipe.check.clean import DeletableFile

# Handlers import what they call: a verb pays for its own libraries only (`status` starts without torch).
# ruff: noqa: PLC0415


tools = typer.Typer()
tb = typer.Typer(cls=VerbGroup, help="Gather TensorBoard runs.")
tools.add_typer(tb, name="tb")
verb = partial(declare, "Tools")


@verb(
    tools,
    "simulate",
    "0000000-0000007 --out files",
    reads="source.simulator, simulator, seed",
    raises=[PluginError, MachineError],
    page="data.md#where-the-raw-files-are",
)
def simulate(
    name: RangeArgument,
    out: Annotated[Path, typer.Option(readable=False, help="directory for the files")],
) -> None:
    """Write the files of one synthetic range, in the schema of the real ones."""
    from crpipe.campaign.simulators import open_simulator, simulate_range

    config = Settings.config()
    simulator = open_simulator(config.source.simulator, config.options("simulator"))
    simulate_range(simulator, Range.parse(find_range(config, name)), config.seed, out, Terminal())


@verb(tools, "clean", reads="train.keep_links", raises=[DataError, MachineError, LeaseError], page="weeks.md")
def clean(
    *,
    yes: Annotated[bool, typer.Option("--yes", help="delete; without it, only show")] = False,
    keep: Annotated[
        list[str] | None,
        typer.Option(metavar="LINK", help="link whose checkpoint stays, too; several: repeat it"),
    ] = None,
) -> None:
    """Show what nothing needs any more, and why; delete it with --yes, while no workflow runs here."""
    from crpipe.check.clean import clean as clean_campaign
    from crpipe.check.clean import find_spent

    campaign = opened(Settings.campaign(options=False), layout="recorded")
    if yes:
        show(_listed(clean_campaign(campaign, keep or (), Terminal(), workplace=Path()), "deleted"))
        return
    spent = find_spent(campaign, keep or (), Path())
    show(_listed(spent, "to delete"))
    if spent:
        show("nothing was deleted; `crpipe clean --yes` deletes these files (stop the workflow first)")
    if not campaign.config.train.keep_links:
        show("train.keep_links is 0: no checkpoint is deleted; 2 would keep those of the newest two links")


def _listed(files: list[DeletableFile], what: str) -> str:
    """List files with size and reason, and their sum."""
    from crpipe.core.text import size

    lines = [f"{each.path}  {size(each.size)}\n    {each.why}" for each in files]
    total = size(sum(each.size for each in files))
    return "\n".join([*lines, f"{counted(len(files), 'file')} {what}, {total}"])


@verb(
    tools,
    "sync",
    reads="sync, source",
    raises=[SourceError, MachineError, LeaseError, AccessError],
    page="pelican.md#send-results-back",
)
def sync(
    *,
    every: Annotated[
        float, typer.Option(metavar="MINUTES", help="again and again, until the run is finished", min=0.0)
    ] = 0.0,
    verify: Annotated[
        bool, typer.Option("--verify", help="read every file of the copy and compare its sha256")
    ] = False,
    new: Annotated[
        bool, typer.Option("--new", help="send everything: the copy that sync.to held is gone for good")
    ] = False,
    source: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="PLACE",
            help="the other way: bring the run that was synced to this place into an empty directory, each "
            "file verified; the same workflow command goes on",
        ),
    ] = "",
) -> None:
    """Send what is new of the run to `sync.to`, and what its copy has lost; another machine can go on."""
    from crpipe.source.sync import SyncRules, sync_every, sync_run

    if source:
        if every or verify or new:
            raise typer.BadParameter("--from brings a copy back; --every, --verify and --new send one")
        _restore(source)
        return
    campaign, rules = opened(Settings.campaign(), "recorded"), SyncRules(verify, new)
    if every:

        def is_finished() -> bool:
            """Open the campaign again: jobs record the layout and count the files meanwhile."""
            return opened(campaign.config, "recorded").is_finished()

        sync_every(campaign, every, is_finished, Terminal(), rules)
    else:
        sync_run(campaign, Terminal(), rules)


def _restore(source: str) -> None:
    """Bring a synced run into an empty directory."""
    from crpipe.source.restore import restore_run

    config = Settings.config()  # the campaign comes from its copy
    config = config.model_copy(update={"sync": config.sync.model_copy(update={"to": source})})
    restore_run(opened(config, "recorded"), Terminal())
    print(
        "now start the workflow here, with the same configuration: it goes on where the copy ends. The copy "
        "has no shards; `snakemake outliers_consolidated` makes all of them again, also for validation"
    )


@verb(
    tools,
    "token",
    reads="source",
    raises=[MissingExtra, AccessError, SourceError, MachineError],
    page="pelican.md#tokens",
)
def token(
    *,
    login: Annotated[bool, typer.Option("--login", help="get a new one from the issuer first")] = False,
    write: Annotated[
        bool, typer.Option("--write", help="with --login: one that may also write to sync.to")
    ] = False,
    try_write: Annotated[
        bool, typer.Option("--try-write", help="then write a small file to sync.to, and read it back")
    ] = False,
) -> None:
    """Show the token in use: where from, issuer, scope, end, and whether it covers the campaign."""
    from crpipe.source.pelican.login import check_access, log_in

    config = Settings.config()
    if write and not login:
        raise typer.BadParameter("--write says which token --login asks for; give both")
    if login:
        log_in(config, Terminal(), write=write)
    access = check_access(config, write=write)
    show(access.text)
    if access.problem:
        raise AccessError(access.problem)
    if try_write:
        from crpipe.source.sync import try_place

        show(f"{try_place(config)}: written, and read back; it may be deleted")


@verb(
    tools,
    "checksum",
    "pelican://host/file --compare file",
    reads="source",
    raises=[SourceError, AccessError, MachineError, MissingExtra],
    page="pelican.md#ask-for-a-checksum",
)
def checksum(
    uri: Annotated[
        str, typer.Argument(help="a file of any source: pelican://, https://, root://, s3://, a path")
    ],
    *,
    compare: Annotated[
        Path | None, typer.Option(readable=False, help="a copy of it here, which must have this checksum")
    ] = None,
) -> None:
    """Print the checksum that a source names of a file, as a row for `source.checksums`; compare a copy."""
    from crpipe.source.source_checksum import ask_checksum, compare_file
    from crpipe.source.uris import SourceOptions

    config = Settings.config(options=False) if Settings.is_named() else None
    options = SourceOptions() if config is None or config.simulates() else SourceOptions.of(config)
    named = ask_checksum(options, uri)
    show(str(named) if compare is None else compare_file(named, compare))


class MergeMode(enum.StrEnum):
    """How `tb merge` brings an event file."""

    symlink = enum.auto()
    copy = enum.auto()


@verb(tb, "tb merge", "--src runs --dst all-runs", raises=[MachineError], page="watching.md#tensorboard")
def merge(
    dst: Annotated[Path, typer.Option(readable=False, help="directory to gather the runs in")],
    src: Annotated[list[Path], typer.Option(readable=False, help="directory that holds runs, at any depth")],
    since: Annotated[
        str, typer.Option(help="only runs that wrote since this day or time: 2026-11-01, 20261101-120000")
    ] = "",
    match: Annotated[str, typer.Option(help="only names that this regular expression finds")] = "",
    glob: Annotated[str, typer.Option(help="only names of this pattern")] = "*",
    mode: Annotated[MergeMode, typer.Option(help="follow a run that still writes, or outlive it")] = (
        MergeMode.symlink
    ),
) -> None:
    """Gather the event files of many runs below one directory, for one TensorBoard."""
    from crpipe.report.tensorboard import merge_runs

    for name in merge_runs(dst, src, since=since, match=match, glob=glob, mode=mode.value):
        print(name)


@verb(tools, "steps", page="operations.md#start")
def steps(context: typer.Context) -> None:
    """List the steps that the workflow runs, the tools, and what exit codes mean."""
    show("\n".join(listed(context.find_root().command, [each for each in GROUPS if each not in FRONT])))
    show("Exit codes")
    for code, meaning in EXITS.items():
        show(textwrap.fill(f"{code:5d}  {meaning}", 80, subsequent_indent=" " * 7))
