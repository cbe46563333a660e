"""Descriptions of the data jobs, composed once from a campaign: below here nothing asks the configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from crpipe.campaign.campaign import check_threshold
from crpipe.campaign.ledger import table_paths
from crpipe.campaign.readers import ReaderChoice
from crpipe.campaign.split_record import SplitRecord
from crpipe.config.combinations import check_file_numbers
from crpipe.core.errors import ConfigError
from crpipe.core.paths import CONSOLIDATED
from crpipe.core.ranges import Range
from crpipe.events.histograms import check_binnings
from crpipe.split.outliers import ConsolidateJob
from crpipe.split.parts import Parts, SplitRange, StagedRange, ThresholdJob, read_threshold
from crpipe.split.split import SplitJob
from crpipe.split.workers import available

if TYPE_CHECKING:
    from collections.abc import Iterable

    from crpipe.campaign.campaign import Campaign
    from crpipe.config.loading import Config


def split_job(campaign: Campaign, name: str) -> SplitJob:
    """Describe the split of one range.

    Raise ConfigError for a threshold that no event can have, and for a histogram of no column.
    """
    config, paths, split, source = (
        campaign.config,
        campaign.paths,
        campaign.config.split,
        campaign.config.source,
    )
    threshold = threshold_of(campaign)
    check_threshold(campaign.layout, threshold)
    check_binnings(campaign.layout, split.histograms)
    return SplitJob(
        name=name,
        data=campaign.data,
        layout=campaign.layout,
        reader=reader_choice(campaign),
        listed=paths.manifest(name),
        staged=paths.staged(name),
        raw=paths.raw(name),
        shards=paths.shards(name),
        outliers=paths.outliers(name),
        multiplicity=paths.multiplicity(name),
        ledger=paths.ledger(name),
        threshold=threshold,
        seed=config.seed,
        parts=parts_of(config),
        histograms=split.histograms,
        shard_items=split.shard_items,
        memory_mib=split.memory_mib,
        workers=split.workers or min(available(), config.resources.split.cpus),
        on_bad_file=source.on_bad_file,
        max_quarantined=source.max_quarantined,
        on_bad_event=split.on_bad_event,
        max_rejected=split.max_rejected,
        lease_wait_s=config.train.lease_wait_s,
    )


def parts_of(config: Config) -> Parts:
    """Return what decides between training, validation and test.

    Raise ConfigError for a number of a held-out file that no file of the campaign has.
    """
    split = config.split
    if split.validation_files or split.test_files:
        check_file_numbers(split, config.ranges.first, config.last_file())
    return Parts(split.validation_fraction, split.test_fraction, split.validation_files, split.test_files)


def split_ranges(campaign: Campaign, names: Iterable[str]) -> list[SplitRange]:
    """Return where the events of ranges and the names of their raw files are listed."""
    paths = campaign.paths
    return [SplitRange(name, paths.multiplicity(name), paths.manifest(name)) for name in names]


def threshold_job(campaign: Campaign) -> ThresholdJob:
    """Describe the choice of the threshold; raise ConfigError without a quantile, or for a wrong range."""
    split, paths = campaign.config.split, campaign.paths
    if split.quantile is None:
        raise ConfigError(
            "split.quantile: not set; nothing to choose, the threshold is split.threshold "
            f"({split.threshold})"
        )
    names = [str(Range.parse(text)) for text in split.reference_ranges] or [campaign.ranges[0]]
    for name in names:
        if name not in campaign.ranges:
            raise ConfigError(f"split.reference_ranges: {name} is not a range of this campaign")
    return ThresholdJob(
        target=paths.threshold(),
        quantile=split.quantile,
        ranges=tuple(
            StagedRange(name, paths.staged(name), paths.raw(name), SplitRecord.of(paths, name))
            for name in names
        ),
        reader=reader_choice(campaign),
        on_bad_file=campaign.config.source.on_bad_file,
    )


def consolidate_job(campaign: Campaign) -> ConsolidateJob:
    """Describe the merge of all ranges' outliers."""
    paths = campaign.paths
    return ConsolidateJob(
        target=paths.outliers(CONSOLIDATED),
        data=campaign.data,
        sources=tuple((name, paths.outliers(name)) for name in campaign.ranges),
        shard_mib=campaign.config.outliers.shard_mib,
        lease_wait_s=campaign.config.train.lease_wait_s,
    )


def threshold_of(campaign: Campaign) -> int:
    """Return the threshold of a campaign; raise DataError when a quantile is set but not yet chosen."""
    split = campaign.config.split
    return split.threshold if split.quantile is None else read_threshold(campaign.paths.threshold())


def reader_choice(campaign: Campaign) -> ReaderChoice:
    """Return the reader of a campaign's raw files, with its options and side tables."""
    config = campaign.config
    return ReaderChoice(config.source.reader, config.options("reader"), campaign.tables)


def configured_reader(config: Config) -> ReaderChoice | None:
    """Return the reader that a configuration names, for files of no campaign; None where it names none."""
    if not config.source.reader:
        return None
    tables = table_paths(config.paths().tables())
    return ReaderChoice(config.source.reader, config.options("reader"), tables)
