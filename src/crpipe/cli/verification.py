"""Verbs that prove what is there: check, shards verify; and shards export."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crpipe.cli import completion
from crpipe.cli.options import VerbGroup
from crpipe.cli.terminal import RangeArgument, Settings, Terminal, completing, find_range
from crpipe.core.errors import DataError, DiskError
from crpipe.core.files import read_json_if_any
from crpipe.core.paths import CONSOLIDATED, OUTLIERS
from crpipe.core.ranges import pick

if TYPE_CHECKING:
    from crpipe.check.findings import CheckReport
    from crpipe.check.job import CheckJob
    from crpipe.config.loading import Config

# Handlers import what they call: a verb pays for its own libraries only.
# ruff: noqa: PLC0415

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
    from crpipe.check.campaign import check_campaign
    from crpipe.check.findings import AGAIN

    job = _check_job(Settings.campaign(options=False), names or (), jobs)
    report = check_campaign(replace(job, exports=tuple(export or ())), Terminal())
    if source:
        from crpipe.check.source_now import check_source
        from crpipe.cli.jobs.source import list_job

        listings = [list_job(Settings.config(), name) for name in job.ranges]
        check_source(report, job, listings, Terminal())
    for why, unjudged in _by_reason(report).items():
        more = f", … ({len(unjudged)} in all)" if len(unjudged) > _SHOWN else ""
        print(f"not judged: {', '.join(unjudged[:_SHOWN])}{more}: {why}")
    for remedy, findings in groupby(report.findings, lambda finding: finding.remedy):
        for finding in findings:
            print(f"{finding.place}: {finding.what}")
        print(f"    type: {_as_typed(remedy)}")
    counts = report.counts
    print(
        f"checked: {counts['ranges']} ranges with {counts['events']} events, {counts['links']} links, "
        f"{counts['checkpoints']} checkpoints, {counts['evaluations']} evaluations, {counts['exports']} "
        f"exports, {counts['tables']} side tables; {counts['files']} files with "
        f"{counts['bytes'] / 1e6:.1f} MB were hashed"
    )
    if report.findings and all(finding.remedy == AGAIN for finding in report.findings):
        raise DiskError(f"{len(report.findings)} files could not be read; nothing says that they are wrong")
    if report.findings:
        raise DataError(
            f"{len(report.findings)} things are wrong; type what is listed, in this order, then check again"
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
    """Give the names of what was not judged, by the reason."""
    reasons: dict[str, list[str]] = {}
    for note in report.notes:
        reasons.setdefault(note.why, []).append(note.name)
    return reasons


def _check_job(config: Config, names: list[str] | tuple[str, ...], processes: int) -> CheckJob:
    """Describe a check; a layout that cannot be read is reported by it."""
    from crpipe.check.job import CheckJob

    try:
        layout = read_json_if_any(config.paths().layout())
    except DataError:
        layout = None
    fixed = isinstance(layout, dict) and bool(layout.get("fixed"))
    ranges, chain = tuple(map(str, config.all_ranges())), config.chain(has_outliers=not fixed)
    known = tuple(dict.fromkeys((*ranges, *chain.names, CONSOLIDATED, OUTLIERS)))
    return CheckJob(
        paths=config.paths(),
        ranges=ranges,
        chain=chain,
        names=tuple(pick(name, known, "range or link") for name in names),
        processes=processes,
        duplicates=config.ranges.duplicates == "allow",
    )


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
    from crpipe.cli.jobs.data import configured_reader
    from crpipe.split.export import export_shards

    config = Settings.campaign()
    key = find_range(config, name)
    folders = [config.paths().shards(key), config.paths().outliers(key)]
    events = export_shards(folders, out, configured_reader(config), Terminal())
    print(f"{out}: {events} events")
