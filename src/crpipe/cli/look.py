"""Verbs that look at a campaign: logs, `status --watch`, check, shards, notify, sync, run."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import time
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crpipe.cli import completion
from crpipe.cli.help import VerbGroup
from crpipe.cli.terminal import RangeArgument, Settings, Terminal, completing, find_range, show
from crpipe.config.files import way_to_campaign
from crpipe.core.errors import ConfigError, DataError, DiskError
from crpipe.core.paths import CONSOLIDATED, OUTLIERS
from crpipe.core.ranges import pick
from crpipe.core.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from crpipe.check.clean import DeletableFile
    from crpipe.check.findings import CheckReport

# ruff: noqa: PLC0415

# Handlers import what they call: a verb pays for its own libraries only.

_POLL_S = 0.5
logs = typer.Typer()


@logs.command("logs")
def show_logs(
    name: Annotated[
        str,
        typer.Argument(
            metavar="LINK_OR_RANGE",
            help="as for other verbs; without it and without --follow all logs are listed, newest last",
            autocompletion=completing(completion.ranges_and_links),
        ),
    ] = "",
    verb: Annotated[str, typer.Option(help="only logs of this verb: list, stage, split, train, …")] = "",
    *,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="print what is added, through retries, until Ctrl-C")
    ] = False,
) -> None:
    """Print the newest log of a link or range, or list all logs; the first line says where the file is."""
    from crpipe.core.text import moment
    from crpipe.report.jobs import chosen, job_logs, list_logs, read_on

    config = Settings.campaign(options=False)
    known = [each for each, _ in completion.ranges_and_links(config)]
    found = job_logs(config.paths())
    found = chosen(found, pick(name, known, "range or link") if name else "", verb)
    if not (name or follow):
        width = shutil.get_terminal_size((120, 0)).columns if sys.stdout.isatty() else sys.maxsize
        print(printable(list_logs(found, width)))
        return
    newest = found[-1]
    said = Terminal().message
    said(f"{newest.path}  ({newest.verb} {newest.name}".rstrip() + f", written {moment(newest.time)})")
    if not follow:
        print(printable(newest.path.read_text(errors="replace")), end="")
        return
    for text in read_on(newest.path, lambda: time.sleep(_POLL_S), said):
        print(printable(text), end="", flush=True)


def redraw(look: Callable[[int], str], pause_s: float) -> None:
    """Print what ``look`` gives for the width of the terminal, again and again in its place, until Ctrl-C.

    Elsewhere than on a terminal one text follows the other, with the time between them.
    """
    tty = sys.stdout.isatty()
    while True:
        size = shutil.get_terminal_size((120, 24))
        text, when = look(size.columns), time.strftime("%Y-%m-%d %H:%M:%S")
        if tty:
            room = max(size.lines - 2, 1)
            lines = text.splitlines()
            hidden = len(lines) - room
            shown = [*lines[:room], f"{when}  every {pause_s:g} s; Ctrl-C ends" + _hidden(hidden)]
            body = "".join(f"{line}\x1b[K\n" for line in shown)
            print(f"\x1b[H{body}\x1b[J", end="", flush=True)
        else:
            print(f"{when}\n{text}\n", flush=True)
        time.sleep(pause_s)


def _hidden(count: int) -> str:
    return f"; {count} more lines in `crpipe status`" if count > 0 else ""


# Verbs that prove what is there: check, shards verify; and shards export.


# Handlers import what they call: a verb pays for its own libraries only.

_SHOWN = 3  # names in a line
_PANEL = "Verify what is on the disk"
verification = typer.Typer()


@verification.command(rich_help_panel=_PANEL)
def check(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME …",
            help="ranges, links, `consolidated` or `outliers`; default: all",
            autocompletion=completing(completion.ranges_and_links),
        ),
    ] = None,
    jobs: Annotated[int, typer.Option(help="processes", min=1)] = 1,
    export: Annotated[
        list[Path] | None,
        typer.Option(readable=False, help="folder that `crpipe export` wrote, too; several: repeat it"),
    ] = None,
    *,
    source: Annotated[
        bool, typer.Option("--source", help="also list the source again, and compare it with the manifests")
    ] = False,
) -> None:
    """Prove the campaign from its files alone, or list all that is wrong and what to type; writes nothing."""
    from crpipe.check.check import check as check_campaign
    from crpipe.check.check import open_files
    from crpipe.core.text import counted

    campaign = open_files(Settings.campaign(options=source))  # only a listing needs the reader's options
    known = tuple(dict.fromkeys((*campaign.ranges, *campaign.chain.names, CONSOLIDATED, OUTLIERS)))
    asked = [pick(name, known, "range or link") for name in names or ()]
    report = check_campaign(campaign, asked, Terminal(), exports=export or (), processes=jobs, source=source)
    errors = report.errors
    for why, parts in _by_reason(report).items():
        more = f", … ({len(parts)} in all)" if len(parts) > _SHOWN else ""
        print(f"not judged: {', '.join(parts[:_SHOWN])}{more}: {why}")
    for remedy, findings in groupby(errors, lambda finding: finding.remedy):
        for finding in findings:
            print(f"{finding.path}: {finding.what}")
        print(f"    type: {_as_typed(remedy)}")
    counts = report.counts
    print(
        f"checked: {counts['ranges']} ranges with {counts['events']} events, {counts['links']} links, "
        f"{counts['checkpoints']} checkpoints, {counts['evaluations']} evaluations, {counts['exports']} "
        f"exports, {counts['tables']} side tables; {counts['files']} files with "
        f"{counts['bytes'] / 1e6:.1f} MB were hashed"
    )
    if errors and all(finding.severity == "unread" for finding in errors):
        raise DiskError(f"{counted(len(errors), 'file')} could not be read; nothing says that it is damaged")
    if errors:
        many = counted(len(errors), "thing")
        raise DataError(
            f"{many} {'is' if len(errors) == 1 else 'are'} wrong; type what is listed, in this order, then "
            "check again"
        )
    print("nothing is wrong")


def _as_typed(remedy: str) -> str:
    """Add the options of this call to the commands of a remedy."""
    words = [word for file in Settings.files for word in ("--config", str(file))]
    words += [word for override in Settings.overrides for word in ("--set", override)]
    command = shlex.join(["crpipe", *words])
    parts = remedy.split(" && ")
    return " && ".join(re.sub(r"^crpipe\b", lambda _: command, part) for part in parts)


def _by_reason(report: CheckReport) -> dict[str, list[str]]:
    """Return the names of what was not checked, by the reason."""
    reasons: dict[str, list[str]] = {}
    for note in report.notes:
        reasons.setdefault(note.what, []).append(note.path)
    return reasons


shards = typer.Typer(cls=VerbGroup, help="Check shards alone, or export them as plain Parquet files.")
verification.add_typer(shards, name="shards", rich_help_panel=_PANEL)


@shards.command("verify")
def verify_shards(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RANGE …", help="default: all made", autocompletion=completing(completion.ranges)
        ),
    ] = None,
    deep: Annotated[bool, typer.Option(help="hash every file and decode every page too")] = False,
) -> None:
    """Check that the shards of ranges (or of `consolidated`) are what their manifests say."""
    from crpipe.events.shard_manifest import read_layout, verifiable, verify

    config = Settings.campaign(options=False)
    asked = [name if name == CONSOLIDATED else find_range(config, name) for name in names or ()]
    for folder in verifiable(config.paths(), map(str, config.all_ranges()), asked):
        totals = verify(folder, deep=deep)
        print(f"{folder}: {read_layout(folder).count(*totals)}, good")


@shards.command("export")
def export_range(
    name: RangeArgument,
    out: Annotated[
        Path, typer.Option(readable=False, help="directory for train.parquet, outliers.parquet, ...")
    ],
) -> None:
    """Write the shards of one range as Parquet files: in the raw files' schema if the reader has one."""
    from crpipe.campaign.readers import configured_reader
    from crpipe.split.export import export_shards

    config = Settings.campaign()
    key = find_range(config, name)
    folders = [config.paths().shards(key), config.paths().outliers(key)]
    events = export_shards(folders, out, configured_reader(config), Terminal())
    print(f"{out}: {events} events")


# Verbs of campaigns that run for weeks: clean, sync, restore.


# Handlers import what they call: a verb pays for its own libraries only.

weeks = typer.Typer()


@weeks.command()
def clean(
    *,
    yes: Annotated[bool, typer.Option("--yes", help="delete; without it, only show")] = False,
    keep: Annotated[
        list[str] | None,
        typer.Option(metavar="LINK", help="link whose checkpoint stays, too; several: repeat it"),
    ] = None,
) -> None:
    """Show what nothing needs any more, and why; delete it with --yes, while no workflow runs here."""
    from crpipe.campaign.campaign import Campaign
    from crpipe.check.clean import clean as clean_campaign
    from crpipe.check.clean import find_spent

    campaign = Campaign.open(Settings.campaign(options=False), layout="recorded")
    if yes:
        show(_listed(clean_campaign(campaign, keep or (), Terminal(), workplace=Path()), "deleted"))
        return
    spent = find_spent(campaign, keep or (), Path())
    show(_listed(spent, "to delete"))
    if spent:
        show("nothing was deleted; `crpipe clean --yes` deletes these files (stop the workflow first)")
    if not campaign.config.train.keep_links:
        show("train.keep_links is 0: no checkpoint is deleted; 2 would keep those of the newest two links")


def _listed(found: list[DeletableFile], what: str) -> str:
    """List files with size and reason, and their sum."""
    from crpipe.core.text import counted, size

    lines = [f"{each.path}  {size(each.size)}\n    {each.why}" for each in found]
    total = size(sum(each.size for each in found))
    return "\n".join([*lines, f"{counted(len(found), 'file')} {what}, {total}"])


@weeks.command()
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
) -> None:
    """Send what is new of the run to `sync.to`, and what its copy has lost; another machine can go on."""
    from crpipe.campaign.campaign import Campaign
    from crpipe.source.sync import SyncRules, sync_every, sync_run

    campaign, rules = Campaign.open(Settings.campaign(), "recorded"), SyncRules(verify, new)
    if every:

        def is_finished() -> bool:
            """Open the campaign again: jobs record the layout and count the files meanwhile."""
            return Campaign.open(campaign.config, "recorded").is_finished()

        sync_every(campaign, every, is_finished, Terminal(), rules)
    else:
        sync_run(campaign, Terminal(), rules)


@weeks.command()
def restore(
    source: Annotated[
        str, typer.Argument(metavar="FROM", help="where the run was synced to; default: sync.to")
    ] = "",
) -> None:
    """Bring a synced run into an empty directory, each file verified; the same workflow command goes on."""
    from crpipe.campaign.campaign import Campaign
    from crpipe.source.restore import restore_run

    config = Settings.config()  # the campaign comes from its copy
    if source:
        config = config.model_copy(update={"sync": config.sync.model_copy(update={"to": source})})
    restore_run(Campaign.open(config, "recorded"), Terminal())
    print(
        "now start the workflow here, with the same configuration: it goes on where the copy ends. The copy "
        "has no shards; `snakemake outliers_consolidated` makes all of them again, also for validation"
    )


# `crpipe run`: the workflow of this directory, with the right options and lines that a person can follow.


# Handlers import what they call: a verb pays for its own libraries only.

runs = typer.Typer()

_COLUMNS = 80  # of a terminal that does not say
_SNAKEFILES = ("Snakefile", "workflow/Snakefile")
_LOOKING = frozenset({"--dry-run", "--dryrun", "-n"})


@runs.command()
def run(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TARGET] [-- OPTION …]",
            help="all (default), train_all, outliers_consolidated, evaluation, progress, or a file; "
            "after --: options of snakemake",
        ),
    ] = None,
    profile: Annotated[str, typer.Option(help="profile of a cluster, such as slurm")] = "",
    cores: Annotated[
        str, typer.Option("--cores", "-j", help="cores to use; with --profile: jobs at a time; default: all")
    ] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", "-n", help="show the jobs and start none")] = False,
    links: Annotated[int, typer.Option(help="train so many more links, then stop; 0: all", min=0)] = 0,
    keep_trying: Annotated[
        bool,
        typer.Option("--keep-trying", help="start again after failures that may pass, with growing pauses"),
    ] = False,
    pause_minutes: Annotated[
        float, typer.Option(help="first pause of --keep-trying; it doubles up to an hour", min=0.001)
    ] = 1.0,
) -> None:
    """Run every job that TARGET needs. Ctrl-C stops it with a snapshot; the same command continues.

    Exit codes: 0 done, 1 a job failed, 130 stopped by Ctrl-C, 143 by SIGTERM, else that of the refusal.
    """
    from crpipe.workflow.attempts import RunRequest, run_until_done

    if not any(Path(name).is_file() for name in _SNAKEFILES):
        raise ConfigError(f"{Path.cwd()}: no Snakefile here; {way_to_campaign(Path())}")
    given = words or []
    cut = next((place for place, word in enumerate(given) if word.startswith("-")), len(given))
    targets, more = given[:cut], given[cut:]
    if targets and links:
        raise typer.BadParameter("name a TARGET or --links N, not both")
    request = RunRequest(
        files=Settings.config_files(),
        overrides=Settings.overrides,
        targets=tuple(targets),
        links=links,
        profile=profile,
        cores=cores,
        dry_run=dry_run or not _LOOKING.isdisjoint(more),
        more=tuple(word for word in more if word not in _LOOKING),
        typed=("crpipe", *sys.argv[1:]),
        pause_s=60 * pause_minutes if keep_trying else 0.0,
    )
    sys.exit(run_until_done(request, TerminalScreen()))


class TerminalScreen(Terminal):
    """A terminal whose last line is rewritten while jobs run."""

    @property
    def tty(self) -> bool:
        """Whether lines can be rewritten."""
        return self._tty

    def show(self, text: str) -> None:
        """Print one line of what was asked for."""
        show(text)

    def live(self, text: str) -> None:
        """Rewrite the last line, cut to the width of the terminal."""
        width = os.get_terminal_size(sys.stderr.fileno()).columns or _COLUMNS
        print(f"\r\x1b[K{printable(text, keep='')[: width - 1]}", end="", file=sys.stderr, flush=True)
