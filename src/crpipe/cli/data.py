"""Verbs around the data: list, stage, tables, count, threshold, split, consolidate, simulate, inspect."""

from __future__ import annotations

import contextlib
import enum
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crpipe.cli import completion, importing
from crpipe.cli.help import VerbGroup
from crpipe.cli.terminal import RangeArgument, Settings, Terminal, completing, find_range, show
from crpipe.core.errors import AccessError
from crpipe.core.journal import Journal
from crpipe.core.ranges import Range

if TYPE_CHECKING:
    from collections.abc import Iterator

    from crpipe.campaign.campaign import Campaign
    from crpipe.config.loading import Config

# ruff: noqa: PLC0415

# Handlers import what they call: a verb pays for its own libraries only.

data = typer.Typer()


@contextlib.contextmanager
def _attempt(verb: str) -> Iterator[Campaign]:
    with _noted(Settings.config(), verb, "") as campaign:
        yield campaign


@contextlib.contextmanager
def _attempt_on(verb: str, text: str) -> Iterator[tuple[Campaign, str]]:
    """Work on the range that ``text`` names; yield the campaign and the full name."""
    config = Settings.config()
    name = find_range(config, text)
    with _noted(config, verb, name) as campaign:
        yield campaign, name


@contextlib.contextmanager
def _noted(config: Config, verb: str, name: str) -> Iterator[Campaign]:
    """Open the campaign once, claim its data, and note begin and end of the verb in its journal."""
    from crpipe.campaign.campaign import Campaign
    from crpipe.campaign.claims import record_data_keys

    campaign = Campaign.open(config)
    record_data_keys(campaign)
    with Journal(campaign.paths.data_journal()).attempt(verb, name):
        yield campaign


@data.command("list")
def list_(name: RangeArgument) -> None:
    """List one range of the source into its manifest."""
    with importing():
        from crpipe.source.listing import list_range

    with _attempt_on("list", name) as (campaign, key):
        list_range(campaign, key, Terminal())


@data.command()
def stage(name: RangeArgument) -> None:
    """Copy one range next to the results, each file verified before its name appears."""
    with importing():
        from crpipe.source.stage import stage_range

    with _attempt_on("stage", name) as (campaign, key):
        stage_range(campaign, key, Terminal())


@data.command()
def tables() -> None:
    """Copy the side tables of `source.tables` next to the results, verified and hashed."""
    from crpipe.source.side_tables import stage_tables

    with _attempt("tables") as campaign:
        stage_tables(campaign, Terminal())


@data.command()
def count(
    *,
    grown: Annotated[
        bool, typer.Option("--grown", help="number the files, too, that were added after the last one")
    ] = False,
) -> None:
    """Count the files of the source once, for `ranges.last: auto`; print the last file number."""
    from crpipe.source.counting import count_files

    with _attempt("count") as campaign:
        print(count_files(campaign, Terminal(), grown=grown))


@data.command()
def threshold() -> None:
    """Choose the outlier threshold as a quantile of the reference ranges."""
    from crpipe.split.parts import choose_threshold

    with _attempt("threshold") as campaign:
        choose_threshold(campaign, Terminal())


@data.command()
def split(name: RangeArgument) -> None:
    """Turn one staged range into shards, outliers and a balanced ledger."""
    with importing():
        from crpipe.split.split import split_range

    with _attempt_on("split", name) as (campaign, key):
        split_range(campaign, key, Terminal())


@data.command()
def consolidate() -> None:
    """Merge the outliers of all ranges into shards of a chosen size."""
    from crpipe.split.outliers import consolidate_outliers

    with _attempt("consolidate") as campaign:
        consolidate_outliers(campaign, Terminal())


@data.command()
def simulate(
    name: RangeArgument,
    out: Annotated[Path, typer.Option(readable=False, help="directory for the files")],
) -> None:
    """Write the files of one synthetic range, in the schema of the real ones."""
    from crpipe.campaign.simulators import open_simulator, simulate_range

    config = Settings.config()
    simulator = open_simulator(config.source.simulator, config.options("simulator"))
    simulate_range(simulator, Range.parse(find_range(config, name)), config.seed, out, Terminal())


@data.command()
def inspect(
    file: Annotated[
        Path, typer.Argument(readable=False, help="raw file of source.reader, shard, or any Parquet file")
    ],
    rows: Annotated[int, typer.Option(help="events to show")] = 5,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="machine-readable")] = False,
) -> None:
    """Show what a file holds: schema, rows, multiplicities, first events with items."""
    from crpipe.campaign.readers import configured_reader
    from crpipe.split.inspect import facts_of, inspect_file

    choice = configured_reader(Settings.config())
    if as_json:
        print(json.dumps(asdict(facts_of(file, rows, choice)), indent=1, default=str))
    else:
        show(inspect_file(file, rows, choice))


# Verbs around a campaign: its configuration's keys, tokens, outliers, forks.


# Handlers import what they call: a verb pays for its own libraries only.

tools = typer.Typer()


class MergeMode(enum.StrEnum):
    """How `tb merge` brings an event file."""

    symlink = enum.auto()
    copy = enum.auto()


settings = typer.Typer(cls=VerbGroup, help="Check the configuration, or write what it can hold.")
tools.add_typer(settings, name="config")


@settings.command()
def default() -> None:
    """Print the configuration with every key commented."""
    from crpipe.config.reference import default_yaml

    print(default_yaml(Settings.config()), end="")


@settings.command()
def schema() -> None:
    """Print the configuration's JSON schema."""
    from crpipe.config.reference import schema_json

    print(schema_json(), end="")


@settings.command()
def table() -> None:
    """Print the table of keys in Markdown."""
    from crpipe.config.reference import key_table

    print(key_table(Settings.config()), end="")


@settings.command("check")
def check_fit() -> None:
    """Check that reader, simulator, workload and side tables fit together; print one line when they do."""
    from crpipe.setup.compatibility import check_fit

    print(check_fit(Settings.campaign()))


@settings.command("commands")
def commands_page(context: typer.Context) -> None:
    """Print the page of all commands in Markdown."""
    from crpipe.cli.help import manual

    print(manual(context.find_root().command), end="")


tb = typer.Typer(cls=VerbGroup, help="Gather TensorBoard runs.")
tools.add_typer(tb, name="tb")


@tb.command()
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


outliers = typer.Typer(cls=VerbGroup, help="Look at the outliers.")
tools.add_typer(outliers, name="outliers")


@outliers.command()
def suggest(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILE …",
            readable=False,
            help="raw files or directories; default: the ranges that are split",
        ),
    ] = None,
) -> None:
    """Show what each threshold would set aside, and the memory of a batch below it."""
    from crpipe.split.preview import suggest_from_files, suggest_threshold

    config = Settings.config()
    if files:
        from crpipe.campaign.readers import configured_reader

        show(suggest_from_files(files, configured_reader(config), config.load.batch_events, Terminal()))
        return
    from crpipe.campaign.campaign import Campaign

    show(suggest_threshold(Campaign.open(config)))


@tools.command()
def fork(
    link: Annotated[
        str,
        typer.Option(
            "--from",
            help="finished link after which the new run begins",
            autocompletion=completing(completion.finished_links),
        ),
    ],
    run: Annotated[str, typer.Option(help="name of the new run")],
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="key.sub=value that the new run has; several: repeat it",
            autocompletion=completing(completion.keys),
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(readable=False, help="file to write; default: RUN.yaml")] = None,
) -> None:
    """Write the configuration of a run that goes on after a link of this one, under other settings."""
    from crpipe.setup.fork import write_fork

    files = Settings.config_files()
    print(write_fork(files, Settings.overrides, link, run, changes or (), out or Path(f"{run}.yaml")))


@tools.command()
def token(
    *,
    login: Annotated[bool, typer.Option("--login", help="get a new one from the issuer first")] = False,
    write: Annotated[
        bool, typer.Option("--write", help="with --login: one that may also write to sync.to")
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
