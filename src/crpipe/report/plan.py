"""The table of ``crpipe plan``: what a campaign will read, write and run, before it does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from crpipe.core.errors import DataError
from crpipe.core.files import free_bytes, read_json, tree_bytes
from crpipe.core.mounts import mount_of
from crpipe.core.paths import CONSOLIDATED, OUTLIERS
from crpipe.core.raw_files import count_listed, far_fewer
from crpipe.report.held_out import WARNING, describe_held_out
from crpipe.report.text import Column, counted, number, size, table

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from crpipe.core.paths import Paths
    from crpipe.events.layout import Layout
    from crpipe.events.metric import Metric
    from crpipe.report.campaign_view import CampaignView

# Assumptions until one range is split. Raw files are usually compressed, and so are shards, but a split's
# temporary files are not.
SHARDS_TO_RAW = 1.0
SPILLS_TO_RAW = 2.0
LABEL = 12


@dataclass(frozen=True, slots=True)
class PlanJob:
    """What a plan is made from.

    source: URI or list file, as configured. look_ahead: ranges that may be staged ahead of training.
    range_files, range_bytes: one range as long as none is listed; bytes are None where nobody knows them
    before the files are staged, because a simulator writes them. held_out: what the configuration holds
    out, in words; metrics: the numbers of an evaluation.
    """

    view: CampaignView
    source: str
    look_ahead: int
    range_files: int
    range_bytes: int | None
    held_out: tuple[str, ...] = ()
    metrics: tuple[Metric, ...] = ()


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


def render_plan(job: PlanJob) -> str:
    """Describe ranges, bytes, peak disk and jobs; warn where it does not fit."""
    return "\n".join([*_facts(job), "", *_jobs(job.view)])


def measure_volume(job: PlanJob) -> Volume:
    """Add up the files; a range of unknown size counts as the mean of the others, or as configured."""
    found = [_range_volume(job.view.paths, name) for name in job.view.ranges]
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
    done = [name for name in view.ranges if _is_split(view, name)]
    ledgers = [read_json(paths.ledger(name)) for name in done]
    raw = sum(_raw_bytes(ledger) for ledger in ledgers)
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


def _range_volume(paths: Paths, name: str) -> tuple[int | None, int | None]:
    """Count a range's files and bytes; None for what is not known yet.

    Files that a simulator writes have no size in the manifest; staging adds it.
    """
    if not paths.manifest(name).exists():
        return None, None
    count, taken = _read_sizes(paths.manifest(name))
    if taken is None and paths.ledger(name).exists():
        taken = _raw_bytes(read_json(paths.ledger(name))) or None
    elif taken is None and paths.staged(name).exists():
        _, taken = _read_sizes(paths.staged(name))
    return count, taken


def _read_sizes(path: Path) -> tuple[int, int | None]:
    try:
        column = pq.read_table(path, columns=["size"])["size"]
    except (pa.ArrowException, KeyError) as error:
        raise DataError(f"{path}: damaged ({error}); delete it and run the same command again") from error
    return len(column), pc.sum(column).as_py() or None


def _raw_bytes(ledger: dict[str, Any]) -> int:
    return sum(item["size"] or 0 for item in ledger["files"] if item["state"] == "staged")


def _shard_bytes(manifest: Path) -> int:
    if not manifest.exists():
        return 0
    shards = read_json(manifest)["shards"]
    return sum(file["size"] for shard in shards for file in shard["files"].values())


def _row_bytes(layout: Layout) -> int:
    """Count the bytes of one row of the multiplicity table, whose last columns are destination and reason."""
    group = sum(np.dtype(field.dtype).itemsize for field in layout.events if field.name in layout.group)
    return group + 3 * 4 + 1 + 4


def _facts(job: PlanJob) -> Iterator[str]:
    view, volume = job.view, measure_volume(job)
    skipped = f", {len(view.skipped)} skipped" if view.skipped else ""
    yield _line("run", f"{view.run}, fingerprint {view.fingerprint}")
    yield _line("source", job.source)
    yield _line("ranges", f"{volume.ranges}{skipped}: {view.ranges[0]} to {view.ranges[-1]}")
    yield from _volume(volume)
    yield from _few_files(view)
    yield from _held_out(job)
    yield from _disk(job, volume)
    yield from _locks(view)


def _volume(volume: Volume) -> Iterator[str]:
    taken = "of unknown size" if volume.bytes is None else f"{volume.mark}{size(volume.bytes)}"
    yield _line("files", f"{volume.mark}{number(volume.files)}, {taken}")
    unknown = volume.ranges - volume.known
    if volume.bytes is None:
        yield _line("", "sizes are known once the first range is staged: run it, then plan again")
    elif unknown:
        basis = f"the mean of {counted(volume.known, 'range')}" if volume.known else "source.range_gib each"
        yield _line("", f"assumed: {basis}, for {counted(unknown, 'range')} not listed yet, or without sizes")


def _held_out(job: PlanJob) -> Iterator[str]:
    label = "held out"
    for line in describe_held_out(job.view, job.held_out, job.metrics):
        warns = line.startswith(WARNING)
        yield _line(WARNING if warns else label, line.removeprefix(f"{WARNING} "))
        label = ""


def _few_files(view: CampaignView) -> Iterator[str]:
    """Warn of ranges with far fewer files than the others: their listing may not be whole."""
    manifests = {name: view.paths.manifest(name) for name in view.ranges}
    counts = {name: count_listed(path) for name, path in manifests.items() if path.exists()}
    for name, count in far_fewer(counts).items():
        yield _line("WARNING", f"range {name} has {counted(count, 'file')}, far fewer than the others:")
        yield _line("", f"if there are more, delete {manifests[name]} to list it again")


def _disk(job: PlanJob, volume: Volume) -> Iterator[str]:
    ratios = measure_ratios(job.view)
    peak, free = peak_disk(job, volume, ratios), free_bytes(job.view.paths.results)
    budget = job.view.disk_budget
    ahead = min(job.look_ahead, volume.ranges)
    if peak is None:
        yield _line("disk", f"{size(free)} free; raw copies have a budget of {size(budget)}")
        return
    most = f"{ahead} ranges ahead, {size(volume.largest or 0)} the largest"
    yield _line("raw copies", f"{size(peak.raw)} at most: {most}")
    yield _line("", f"budget {size(budget)} (source.disk_budget_gib)")
    yield _line("splitting", f"{size(peak.spills)} at most: temporary files of {counted(ahead, 'range')}")
    yield _line("shards", f"about {size(peak.shards)} for all ranges")
    basis = (
        f"measured in {counted(ratios.seen, 'split range')}"
        if ratios.seen
        else "assumed until the first range is split"
    )
    shares = f"shards {ratios.shards:.2f}, temporary files {ratios.spills:.2f} of the raw files' bytes"
    yield _line("", f"{basis}: {shares}")
    yield _line("disk", f"{size(peak.more)} more at the peak, {size(free)} free, {size(peak.taken)} taken")
    if peak.raw > budget:
        yield _line("WARNING", "raw copies exceed their budget: lower source.look_ahead or raise the budget")
    if peak.more > free:
        yield _line("WARNING", "this does not fit on the disk: free some space, or set `results` elsewhere")


def _locks(view: CampaignView) -> Iterator[str]:
    """Warn where locks may hold within one host only: two of them could work on the same range."""
    for folder in (view.paths.results, view.paths.runs):
        mount = mount_of(folder)
        if mount is not None and mount.may_lock_locally():
            yield _line(
                "WARNING", f"{folder}: on {mount.describe()}: its locks may hold within one host only:"
            )
            yield _line("", "always start the workflow on the same host, or have it mounted with -o flock")


def _line(label: str, text: str) -> str:
    return f"{label:<{LABEL}}{text}"


def _jobs(view: CampaignView) -> list[str]:
    counts = _job_counts(view)
    columns = [
        Column("rule", list(counts)),
        Column("jobs", [number(jobs) for jobs, _ in counts.values()], right=True),
        Column("done", [number(done) for _, done in counts.values()], right=True),
    ]
    return table(columns, 80)


def _job_counts(view: CampaignView) -> dict[str, tuple[int, int]]:
    """Jobs of each rule, and how many of them have left their output."""
    paths, names = view.paths, view.ranges
    split = [_is_split(view, name) for name in names]
    outputs = {
        "list": [paths.manifest(name).exists() for name in names],
        "stage": [done or paths.staged(name).exists() for name, done in zip(names, split, strict=True)],
        "split": split,
        "train": [paths.receipt(link.name).exists() for link in view.chain.links if link.ranges],
    }
    if view.has_outliers:
        outputs["outliers_consolidated"] = [paths.outlier_manifest(CONSOLIDATED).exists()]
        outputs["train_outliers"] = [paths.receipt(OUTLIERS).exists()]
    return {rule: (len(done), sum(done)) for rule, done in outputs.items()}


def _is_split(view: CampaignView, name: str) -> bool:
    made = [view.paths.ledger(name), view.paths.shard_manifest(name)]
    if view.has_outliers:
        made.append(view.paths.outlier_manifest(name))
    return all(path.exists() for path in made)
