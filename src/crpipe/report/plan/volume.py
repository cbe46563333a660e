"""Files and bytes of a campaign, and the disk that it takes at its peak; measured as far as it has run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from crpipe.core.causes import is_present
from crpipe.core.errors import DataError
from crpipe.core.files import read_json, tree_bytes
from crpipe.events.ledger_file import read_sums

if TYPE_CHECKING:
    from pathlib import Path

    from crpipe.core.paths import Paths
    from crpipe.events.layout import Layout
    from crpipe.report.campaign_view import CampaignView
    from crpipe.report.plan.job import PlanJob

# Assumptions until one range is split. Raw files are usually compressed, and so are shards, but a split's
# temporary files are not.
SHARDS_TO_RAW = 1.0
SPILLS_TO_RAW = 2.0


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
    """Most disk that the campaign takes at one time, in bytes: raw copies, temporary files, all shards."""

    raw: int
    spills: int
    shards: int
    taken: int

    @property
    def more(self) -> int:
        """What is still to be written at the peak."""
        return max(0, self.raw + self.spills + self.shards - self.taken)


def measure_volume(job: PlanJob) -> Volume:
    """Add up the files; a range of unknown size counts as the mean of the others, or as configured."""
    found = [known_volume(job, name) for name in job.view.ranges]
    counts = [count for count, _ in found if count is not None]
    sizes = [taken for _, taken in found if taken is not None]
    typical_count = sum(counts) / len(counts) if counts else job.range_files
    typical_size = sum(sizes) / len(sizes) if sizes else job.range_bytes
    unknown = len(found) - len(sizes)
    return Volume(
        ranges=len(found),
        known=len(sizes),
        files=sum(counts) + round((len(found) - len(counts)) * typical_count),
        bytes=None if typical_size is None else sum(sizes) + round(unknown * typical_size),
        largest=None if typical_size is None else max(sizes or [round(typical_size)]),
    )


def measure_ratios(view: CampaignView) -> Ratios:
    """Compare shards and temporary files with raw files in the ranges that are split."""
    paths = view.paths
    done = [name for name in view.ranges if is_split(view, name)]
    ledgers = [read_sums(paths.ledger(name)) for name in done]
    raw = sum(ledger["staged"]["bytes"] for ledger in ledgers)
    if not raw:
        return Ratios()
    bulk = sum(_shard_bytes(paths.shard_manifest(name)) for name in done)
    large = sum(_shard_bytes(paths.outlier_manifest(name)) for name in done)
    spills = SPILLS_TO_RAW
    if view.layout is not None:
        layout = view.layout
        events, items = (sum(ledger[kind]["listed"] for ledger in ledgers) for kind in ("events", "items"))
        spills = (events * (layout.event_bytes() + _row_bytes(layout)) + items * layout.item_bytes()) / raw
    return Ratios((bulk + large) / raw, large / raw, spills, len(done))


def peak_disk(job: PlanJob, volume: Volume, ratios: Ratios) -> Peak | None:
    """Estimate the peak: ranges staged ahead of training, all being split, and the shards of all ranges.

    None as long as no range has a known size.
    """
    if volume.bytes is None or volume.largest is None:
        return None
    ahead = min(job.look_ahead, volume.ranges) * volume.largest
    return Peak(
        raw=ahead,
        spills=round(ahead * ratios.spills),
        shards=round((ratios.shards + ratios.outliers) * volume.bytes),
        taken=tree_bytes(job.view.paths.results),
    )


def known_volume(job: PlanJob, name: str) -> tuple[int | None, int | None]:
    """Count a range's files and bytes as its manifest says, else as the source does now."""
    made = range_volume(job.view.paths, name)
    return job.seen.listed.get(name, made) if made[0] is None else made


def range_volume(paths: Paths, name: str) -> tuple[int | None, int | None]:
    """Count a range's files and bytes; None for what is not known yet.

    Files that a simulator writes have no size in the manifest; staging adds it.
    """
    if not is_present(paths.manifest(name)):
        return None, None
    count, taken = _read_sizes(paths.manifest(name))
    if taken is None and is_present(paths.ledger(name)):
        taken = read_sums(paths.ledger(name))["staged"]["bytes"] or None
    elif taken is None and is_present(paths.staged(name)):
        _, taken = _read_sizes(paths.staged(name))
    return count, taken


def _read_sizes(path: Path) -> tuple[int, int | None]:
    try:
        column = pq.read_table(path, columns=["size"])["size"]
    except (pa.ArrowException, KeyError) as error:
        raise DataError(f"{path}: damaged ({error}); delete it and run the same command again") from error
    return len(column), pc.sum(column).as_py() or None


def _shard_bytes(manifest: Path) -> int:
    if not is_present(manifest):
        return 0
    shards = read_json(manifest)["shards"]
    return sum(file["size"] for shard in shards for file in shard["files"].values())


def _row_bytes(layout: Layout) -> int:
    """Count the bytes of one row of the multiplicity table, whose last columns are destination and reason."""
    group = sum(np.dtype(field.dtype).itemsize for field in layout.events if field.name in layout.group)
    return group + 3 * 4 + 1 + 4


def is_split(view: CampaignView, name: str) -> bool:
    """Return whether all files of a split range are there."""
    made = [view.paths.ledger(name), view.paths.shard_manifest(name)]
    if view.has_outliers:
        made.append(view.paths.outlier_manifest(name))
    return all(is_present(path) for path in made)
