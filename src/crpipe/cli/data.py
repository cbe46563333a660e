"""Verbs around the data: list, stage, tables, count, threshold, split, consolidate, simulate, inspect."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crpipe.cli import importing
from crpipe.cli.terminal import RangeArgument, Settings, Terminal, find_range, show
from crpipe.core.journal import Journal
from crpipe.core.ranges import Range

if TYPE_CHECKING:
    from collections.abc import Iterator

    from crpipe.config.loading import Config

# Handlers import what they call: a verb pays for its own libraries only.
# ruff: noqa: PLC0415

data = typer.Typer()


@contextlib.contextmanager
def _attempt(verb: str) -> Iterator[Config]:
    config = Settings.config()
    with _noted(config, verb, ""):
        yield config


@contextlib.contextmanager
def _attempt_on(verb: str, text: str) -> Iterator[tuple[Config, str]]:
    """Work on the range that ``text`` names; give the configuration and the full name."""
    config = Settings.config()
    name = find_range(config, text)
    with _noted(config, verb, name):
        yield config, name


@contextlib.contextmanager
def _noted(config: Config, verb: str, name: str) -> Iterator[None]:
    from crpipe.cli.jobs.campaign import claim_data

    claim_data(config)
    with Journal(config.paths().data_journal()).attempt(verb, name):
        yield


@data.command("list")
def list_(name: RangeArgument) -> None:
    """List one range of the source into its manifest."""
    with importing():
        from crpipe.cli.jobs.source import list_job
        from crpipe.source.listing import list_range

    with _attempt_on("list", name) as (config, key):
        list_range(list_job(config, key), Terminal())


@data.command()
def stage(name: RangeArgument) -> None:
    """Copy one range next to the results, each file verified before its name appears."""
    with importing():
        from crpipe.cli.jobs.source import stage_job
        from crpipe.source.stage import stage_range

    with _attempt_on("stage", name) as (config, key):
        stage_range(stage_job(config, key), Terminal())


@data.command()
def tables() -> None:
    """Copy the side tables of `source.tables` next to the results, verified and hashed."""
    from crpipe.cli.jobs.source import tables_job
    from crpipe.source.side_tables import stage_tables

    with _attempt("tables") as config:
        stage_tables(tables_job(config), Terminal())


@data.command()
def count(
    *,
    grown: Annotated[
        bool, typer.Option("--grown", help="number the files, too, that were added after the last one")
    ] = False,
) -> None:
    """Count the files of the source once, for `ranges.last: auto`; print the last file number."""
    from crpipe.cli.jobs.source import count_job
    from crpipe.source.counting import count_files

    with _attempt("count") as config:
        print(count_files(count_job(config, grown=grown), Terminal()))


@data.command()
def threshold() -> None:
    """Choose the outlier threshold as a quantile of the reference ranges."""
    from crpipe.cli.jobs.campaign import open_campaign
    from crpipe.cli.jobs.data import threshold_job
    from crpipe.split.threshold import choose_threshold

    with _attempt("threshold") as config:
        choose_threshold(threshold_job(open_campaign(config)), Terminal())


@data.command()
def split(name: RangeArgument) -> None:
    """Turn one staged range into shards, outliers and a balanced ledger."""
    with importing():
        from crpipe.cli.jobs.campaign import open_campaign
        from crpipe.cli.jobs.data import split_job
        from crpipe.split.split import split_range

    with _attempt_on("split", name) as (config, key):
        split_range(split_job(open_campaign(config), key), Terminal())


@data.command()
def consolidate() -> None:
    """Merge the outliers of all ranges into shards of a chosen size."""
    from crpipe.cli.jobs.campaign import open_campaign
    from crpipe.cli.jobs.data import consolidate_job
    from crpipe.events.duplicates import refuse_twins
    from crpipe.split.outliers import consolidate_outliers

    with _attempt("consolidate") as config:
        campaign = open_campaign(config)
        if config.ranges.duplicates == "refuse":
            refuse_twins(campaign.paths, campaign.ranges)
        consolidate_outliers(consolidate_job(campaign), Terminal())


@data.command()
def simulate(
    name: RangeArgument,
    out: Annotated[Path, typer.Option(readable=False, help="directory for the files")],
) -> None:
    """Write the files of one synthetic range, in the schema of the real ones."""
    from crpipe.source.simulated import open_simulator, simulate_range

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
    from crpipe.cli.jobs.data import configured_reader
    from crpipe.split.look.inspect import facts_of, inspect_file

    choice = configured_reader(Settings.config())
    if as_json:
        print(json.dumps(asdict(facts_of(file, rows, choice)), indent=1, default=str))
    else:
        show(inspect_file(file, rows, choice))
