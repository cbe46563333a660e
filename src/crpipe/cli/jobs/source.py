"""Jobs of the source, composed from the configuration: list, stage, tables, count, sync, token.

What follows gets plain values; nothing below asks the configuration again.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from crpipe.campaign.ledger import table_paths
from crpipe.campaign.readers import ReaderChoice
from crpipe.campaign.split_record import SplitRecord
from crpipe.config.loading import AUTO
from crpipe.core.errors import ConfigError
from crpipe.core.files import GIB
from crpipe.core.journal import Journal
from crpipe.core.ranges import Range
from crpipe.source.counting import CountJob, count_files
from crpipe.source.listing import ListJob, read_list
from crpipe.source.positions import Positions
from crpipe.source.side_tables import TablesJob, check_table_uris, check_tables
from crpipe.source.stage import StageJob
from crpipe.source.sync.index import SyncJob
from crpipe.source.uris import Kind, SourceOptions, SourcePattern

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from crpipe.config.loading import Config
    from crpipe.core.text import Progress


def check_source(config: Config) -> None:
    """Raise ConfigError, without asking the source, when it cannot be one or a local side table changed."""
    SourcePattern(config.source.uri, config.source.files)
    check_table_uris(config.source.tables)
    check_tables(config.paths().tables(), config.source.tables)


def ensure_counted(config: Config, progress: Progress) -> None:
    """Count the files of the source when ``ranges.last`` is auto and nobody counted them yet."""
    if config.ranges.last != AUTO:
        return
    job = count_job(config)
    job.positions.check_source(job.pattern.shown)
    if not job.positions.exist():
        with Journal(config.paths().data_journal()).attempt("count", ""):
            count_files(job, progress)


def list_job(config: Config, name: str) -> ListJob:
    """Compose the listing of one range."""
    return ListJob(
        name=Range.parse(name),
        pattern=SourcePattern(config.source.uri, config.source.files),
        manifest=config.paths().manifest(name),
        positions=_positions(config),
        min_files=config.source.min_files,
        max_files=config.source.max_files,
        source=source_options(config),
        split=SplitRecord.of(config.paths(), name),
    )


def stage_job(config: Config, name: str) -> StageJob:
    """Compose the staging of one range."""
    paths = config.paths()
    return StageJob(
        name=Range.parse(name),
        manifest=paths.manifest(name),
        staged=paths.staged(name),
        raw=paths.raw(name),
        on_bad_file=config.source.on_bad_file,
        max_quarantined=config.source.max_quarantined,
        disk_budget=config.source.disk_budget_gib * GIB,
        lease_wait_s=config.source.lease_wait_s,
        source=source_options(config),
        listing=list_job(config, name),
        split=SplitRecord.of(paths, name),
        accept=_first_copy_check(config),
    )


def _first_copy_check(config: Config) -> Callable[[Path], None] | None:
    """Return what reads the first copy of a range with the reader; None where the split may set it aside.

    A reader whose side tables are not staged yet cannot judge.
    """
    source = config.source
    if not source.reader or config.simulates() or source.on_bad_file != "fail":
        return None
    choice = ReaderChoice(source.reader, config.options("reader"), table_paths(config.paths().tables()))

    def check(copy: Path) -> None:
        with contextlib.suppress(ConfigError):
            reader = choice.open()
            reader.totals(copy)

    return check


def tables_job(config: Config) -> TablesJob:
    """Compose the staging of the side tables."""
    record = config.paths().tables()
    return TablesJob(
        uris=config.source.tables,
        simulated=config.simulates(),
        record=record,
        folder=record.with_suffix(""),
        lease_wait_s=config.source.lease_wait_s,
        source=source_options(config),
    )


def count_job(config: Config, *, grown: bool = False) -> CountJob:
    """Compose the count of the source's files."""
    return CountJob(
        pattern=SourcePattern(config.source.uri, config.source.files),
        first=config.ranges.first,
        step=config.ranges.step,
        positions=_positions(config),
        source=source_options(config),
        grown=grown,
    )


def sync_job(config: Config) -> SyncJob:
    """Compose the copy of a run to a second place."""
    paths = config.paths()
    return SyncJob(paths.run_dir(), paths.results, config.run, config.sync.to, source_options(config))


def token_uris(config: Config) -> tuple[str, ...]:
    """Name what a token may be needed for: the raw files and the side tables."""
    source = config.source
    pattern = SourcePattern(source.uri, source.files)
    uris = [source.uri]
    if pattern.kind in {Kind.FLAT_LIST, Kind.RANGE_LISTS}:
        first = config.all_ranges()[0] if pattern.kind is Kind.RANGE_LISTS else None
        uris = read_list(pattern.list_file(first))
    return (*uris, *source.tables.values())


def source_options(config: Config) -> SourceOptions:
    """Take what says how the source is asked; the simulator's options only where it is used."""
    source = config.source
    return SourceOptions(
        concurrency=source.concurrency,
        attempts=source.attempts,
        deadline_s=source.deadline_minutes * 60,
        read_timeout_s=source.read_timeout_s,
        token_file=source.token_file,
        require_checksum=source.require_checksum,
        simulator=source.simulator,
        simulator_options=config.options("simulator") if config.simulates() else {},
        seed=config.seed,
    )


def _positions(config: Config) -> Positions:
    return Positions(config.paths().positions(), config.paths().position_names())
