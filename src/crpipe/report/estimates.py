"""What a plan is made from: a look at the source, and what it says of files, events, disk and tests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from crpipe.campaign.ledger import LedgerSums
from crpipe.campaign.simulators import open_simulator
from crpipe.core.causes import is_present
from crpipe.core.errors import DataError
from crpipe.core.files import tree_bytes
from crpipe.core.paths import HELD_OUT, Part, Paths, roles_of
from crpipe.core.text import counted, number
from crpipe.events.shard_records import ShardManifest
from crpipe.source.range_files import are_copied

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from crpipe.campaign.campaign import Campaign
    from crpipe.config.sections import SplitSection
    from crpipe.events.layout import Layout, Metric
    from crpipe.report.work_state import RangeFiles
    from crpipe.split.preview import FileSample


@dataclass(frozen=True, slots=True)
class PlannedWorkload:
    """What a workload says of itself before anything is trained.

    metrics: the numbers of an evaluation. per_step: batches that one step takes on each rank.
    """

    metrics: tuple[Metric, ...]
    per_step: int = 1


@dataclass(frozen=True, slots=True)
class SourceLook:
    """What a look at the source found.

    listed: files and bytes of each range that was listed now. file: one raw file, where one was read.
    notes: what was not looked at, and why. warnings: what keeps the source from being read now.
    problems: what is wrong, and what to type: the workflow would fail.
    """

    listed: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    file: FileSample | None = None
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


# What ``crpipe plan`` says, before training, of the events that judge a model.


Entry = tuple[str, list[str]]  # a label, and its lines
WARNING, _HELD_OUT = "WARNING", "held out"  # labels
_NAMED = 3  # numbers of an evaluation
_ROWS = 1 << 16  # of a table in memory at a time


def describe_held_out(
    campaign: Campaign, metrics: Sequence[Metric], expected: int | None = None
) -> Iterator[Entry]:
    """Yield what is held out, and a warning where that is too little.

    metrics: the numbers of an evaluation. expected: groups that judge, as far as they can be estimated before
    any range is split.
    """
    shares = _shares(campaign.config.split)
    if not shares:
        yield (
            WARNING,
            [
                "nothing is held out: an evaluation has no numbers. Before the first range is split,",
                "set split.validation_fraction above 0, or split.validation_files",
            ],
        )
        return
    paths = campaign.paths
    split = [
        name
        for name in campaign.ranges
        if is_present(paths.ledger(name)) and is_present(paths.multiplicity(name))
    ]
    if not split or campaign.known_layout is None:
        yield from _expected(", ".join(shares), metrics, expected)
        return
    if len(split) == len(campaign.ranges):
        yield from _trained_on(campaign, split)
    yield _judged_on(campaign, split, metrics)


def _shares(split: SplitSection) -> list[str]:
    """Describe what is held out, part by part; empty where nothing is."""
    shares = []
    for part in HELD_OUT:
        share, files = getattr(split, f"{part}_fraction"), getattr(split, f"{part}_files")
        if share:
            shares.append(f"{share:.3g} of the groups (split.{part}_fraction)")
        elif files:
            shares.append(f"files {', '.join(map(str, files))} (split.{part}_files)")
    return shares


def _expected(shares: str, metrics: Sequence[Metric], groups: int | None) -> Iterator[Entry]:
    """Yield how many groups are expected before any range is split, None where nobody knows."""
    if groups is None:
        several = any(metric.groups > 1 for metric in metrics)
        later = f"{_needed(metrics)}; plan again once a range is split"
        yield _HELD_OUT, [shares, later] if several else [shares]
        return
    expected = f"about {counted(groups, 'group')} of"
    short = [metric.title for metric in metrics if metric.groups > groups]
    if not short:
        yield _HELD_OUT, [shares, f"{expected} them, enough for every number"]
        return
    yield _HELD_OUT, [shares]
    yield (
        WARNING,
        [
            f"{expected} held-out events are expected:",
            f"not enough for {_first(short)}",
            f"{_needed(metrics)}:",
            "raise split.validation_fraction (or test_fraction), or add files",
        ],
    )


def count_groups(campaign: Campaign, ranges: Sequence[str], enough: int) -> tuple[Part, int]:
    """Count the groups of the part that judges, at most about ``enough``, in ranges that are split.

    The part is the test part where any of the ranges has test events, as in an evaluation.
    """
    roles = {name: _roles(campaign, name) for name in ranges}
    for part in reversed(HELD_OUT):
        holding = [name for name in ranges if not roles[name].isdisjoint(roles_of(part))]
        if holding:
            return part, _count(campaign, holding, part, enough)
    return HELD_OUT[0], 0


def _roles(campaign: Campaign, name: str) -> set[str]:
    paths = campaign.paths.shard_manifest(name), campaign.paths.outlier_manifest(name)
    manifests = [manifest for path in paths if (manifest := ShardManifest.read_if_any(path))]
    return {shard.role for manifest in manifests for shard in manifest.shards if shard.events}


def _count(campaign: Campaign, ranges: Sequence[str], part: Part, enough: int) -> int:
    """Read the multiplicity tables until there are ``enough`` groups."""
    assert campaign.known_layout is not None
    names = list(campaign.known_layout.group)
    of_part = pc.field("destination").isin(list(roles_of(part)))
    groups: set[tuple[object, ...]] = set()
    for name in ranges:
        path = campaign.paths.multiplicity(name)
        try:
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(_ROWS, columns=[*names, "destination"]):
                    mine = pa.Table.from_batches([batch]).filter(of_part)
                    rows = mine.group_by(names).aggregate([]).to_pylist()
                    groups.update(tuple(row.values()) for row in rows)
                    if len(groups) >= enough:
                        return len(groups)
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{path}: damaged ({error}); `crpipe check` says what to type") from error
    return len(groups)


def _judged_on(campaign: Campaign, split: Sequence[str], metrics: Sequence[Metric]) -> Entry:
    most = max((metric.groups for metric in metrics), default=1)
    part, groups = count_groups(campaign, split, most)
    if groups >= most:
        return _HELD_OUT, [
            f"{counted(most, 'group')} of {part} events or more: enough groups for every number"
        ]
    all_split = len(split) == len(campaign.ranges)
    seen = "" if all_split else f" in {number(len(split))} of {counted(len(campaign.ranges), 'range')}"
    short = [metric.title for metric in metrics if metric.groups > groups]
    few = "not enough" if all_split else "if the others hold no more, too few"
    return (
        WARNING,
        [
            f"the {part} events have {counted(groups, 'group')}{seen}:",
            f"{few} for {_first(short)}",
            f"{_needed(metrics)}: hold out more in a new results directory and run, or add files",
        ],
    )


def _first(names: Sequence[str]) -> str:
    """Name the first of many numbers, and count the others."""
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {counted(more, 'other number')}" if more > 0 else "")


def _needed(metrics: Sequence[Metric]) -> str:
    least, most = (pick((metric.groups for metric in metrics), default=1) for pick in (min, max))
    if least == most:
        return f"an evaluation needs at least {counted(most, 'group')}"
    return f"an evaluation needs at least {counted(least, 'group')}, and {number(most)} for all numbers"


def _trained_on(campaign: Campaign, split: Sequence[str]) -> Iterator[Entry]:
    events = [LedgerSums.read(campaign.paths.ledger(name)).events for name in split]
    if not sum(each.train + each.outliers for each in events):
        remedy = "lower split.validation_fraction in a new results directory and run, or add files"
        yield WARNING, ["no event is left to train on:", remedy]


# Files and bytes of a campaign, and the disk that it takes at its peak; measured as far as it has run.


# Assumptions until one range is split. Raw files are usually compressed, and so are shards, but a split's
# temporary files are not.
SHARDS_TO_RAW = 1.0
SPILLS_TO_RAW = 2.0
CONVERTED_TO_RAW = 1  # nobody knows how much a command of source.convert writes


@dataclass(frozen=True, slots=True)
class Volume:
    """Files and bytes of all ranges: ``known`` of ``ranges`` have known sizes, the others are estimated.

    bytes and largest are None where nothing is known to estimate them from.
    """

    ranges: int
    known: int
    files: int
    bytes: int | None
    largest: int | None

    @property
    def mark(self) -> str:
        """Mark an estimate."""
        return "" if self.known == self.ranges else "about "


@dataclass(frozen=True, slots=True)
class Ratios:
    """Bytes written for each byte of raw files, and in how many ranges (``seen``) this was measured.

    shards: all of a range's shards; outliers: those of them that are consolidated, and so exist twice;
    spills: a split's temporary files.
    """

    shards: float = SHARDS_TO_RAW
    outliers: float = 0.0
    spills: float = SPILLS_TO_RAW
    seen: int = 0


@dataclass(frozen=True, slots=True)
class Peak:
    """Most disk that the campaign takes at one time, in bytes: raw copies, temporary files, all shards.

    saved: what raw copies would take of files that are read where they are.
    """

    raw: int
    spills: int
    shards: int
    taken: int
    saved: int

    @property
    def more(self) -> int:
        """What is still to be written at the peak."""
        return max(0, self.raw + self.spills + self.shards - self.taken)


def measure_volume(campaign: Campaign, seen: SourceLook) -> Volume:
    """Add up the files; a range of unknown size counts as the mean of the others."""
    volumes = [known_volume(campaign, seen, name) for name in campaign.ranges]
    counts = [count for count, _ in volumes if count is not None]
    sizes = [taken for _, taken in volumes if taken is not None]
    typical_count = sum(counts) / len(counts) if counts else configured_files(campaign)
    typical_size = sum(sizes) / len(sizes) if sizes else None
    unknown = len(volumes) - len(sizes)
    return Volume(
        ranges=len(volumes),
        known=len(sizes),
        files=sum(counts) + round((len(volumes) - len(counts)) * typical_count),
        bytes=None if typical_size is None else sum(sizes) + round(unknown * typical_size),
        largest=None if typical_size is None else max(sizes or [round(typical_size)]),
    )


def measure_ratios(campaign: Campaign, files: Mapping[str, RangeFiles]) -> Ratios:
    """Compare shards and temporary files with raw files in the ranges that are split."""
    done = [files[name] for name in campaign.ranges if files[name].is_split]
    ledgers = [each.ledger for each in done if each.ledger]
    raw = sum(ledger.staged.bytes for ledger in ledgers)
    if not raw:
        return Ratios()
    bulk = sum(_shard_bytes(each.shards) for each in done)
    outliers = [campaign.paths.outlier_manifest(each.name) for each in done]
    large = sum(_shard_bytes(ShardManifest.read_if_any(path)) for path in outliers)
    spills = SPILLS_TO_RAW
    if campaign.known_layout is not None:
        layout = campaign.known_layout
        events = sum(ledger.events.listed for ledger in ledgers)
        items = sum(ledger.items.listed for ledger in ledgers)
        spills = (events * (layout.event_bytes() + _row_bytes(layout)) + items * layout.item_bytes()) / raw
    return Ratios((bulk + large) / raw, large / raw, spills, len(done))


def peak_disk(campaign: Campaign, volume: Volume, ratios: Ratios) -> Peak | None:
    """Estimate the peak: ranges staged ahead of training, all being split, and the shards of all ranges.

    None as long as no range has a known size.
    """
    if volume.bytes is None or volume.largest is None:
        return None
    source = campaign.config.source
    raw = (
        min(source.prefetch_ranges, volume.ranges)
        * volume.largest
        * (1 + CONVERTED_TO_RAW * bool(source.convert))
    )
    copied = are_copied(campaign.config, campaign.ranges[0])
    return Peak(
        raw=raw if copied else 0,
        spills=round(raw * ratios.spills),
        shards=round((ratios.shards + ratios.outliers) * volume.bytes),
        taken=tree_bytes(campaign.paths.results),
        saved=0 if copied else raw,
    )


def configured_files(campaign: Campaign) -> int:
    """Count the files of one range as long as none is listed."""
    config, source = campaign.config, campaign.config.source
    files = config.ranges.size
    if config.simulates():
        simulator = open_simulator(source.simulator, config.options("simulator"))
        files = len(simulator.files(config.all_ranges()[0]))
    return min(files, source.max_files or files)


def known_volume(campaign: Campaign, seen: SourceLook, name: str) -> tuple[int | None, int | None]:
    """Count a range's files and bytes as its manifest says, else as the source does now."""
    recorded = range_volume(campaign.paths, name)
    return seen.listed.get(name, recorded) if recorded[0] is None else recorded


def range_volume(paths: Paths, name: str) -> tuple[int | None, int | None]:
    """Count a range's files and bytes; None for what is not known yet.

    Files that a simulator writes have no size in the manifest; staging adds it.
    """
    if not is_present(paths.manifest(name)):
        return None, None
    count, taken = _read_sizes(paths.manifest(name))
    if taken is None and is_present(paths.ledger(name)):
        taken = LedgerSums.read(paths.ledger(name)).staged.bytes or None
    elif taken is None and is_present(paths.staged(name)):
        _, taken = _read_sizes(paths.staged(name))
    return count, taken


def _read_sizes(path: Path) -> tuple[int, int | None]:
    try:
        column = pq.read_table(path, columns=["size"])["size"]
    except (pa.ArrowException, KeyError) as error:
        raise DataError(f"{path}: damaged ({error}); delete it and run the same command again") from error
    return len(column), pc.sum(column).as_py() or None


def _shard_bytes(manifest: ShardManifest | None) -> int:
    shards = () if manifest is None else manifest.shards
    return sum(file.size for shard in shards for file in shard.files.values())


def _row_bytes(layout: Layout) -> int:
    """Count the bytes of one row of the multiplicity table, whose last columns are destination and reason."""
    group = sum(np.dtype(field.dtype).itemsize for field in layout.events if field.name in layout.group)
    return group + 3 * 4 + 1 + 4
