"""The table of ``crpipe plan``: what a campaign will read, write and run, before it does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow.compute as pc
import pyarrow.parquet as pq

from crpipe.core.files import GIB, digest, free_bytes, read_json, tree_bytes
from crpipe.core.paths import CONSOLIDATED, OUTLIERS
from crpipe.report.text import Column, counted, number, size, table

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from crpipe.config.loading import Config
    from crpipe.core.paths import Paths

# Bytes of one event (one row: a primary at one depth) in the converter's files, measured on 2.54 M events.
EVENT_BYTES = 181
# Shards against raw files, measured on 12.9 M muons in the converter's layout.
SHARDS_TO_RAW = 0.75
# A split's temporary files, 77 bytes an event and 12 a muon, against raw files of 11 muons an event.
SPILLS_TO_RAW = 1.15
LABEL = 12


@dataclass(frozen=True, slots=True)
class Volume:
    """Files and bytes of all ranges; ``listed`` of ``ranges`` are known, the rest is estimated from them."""

    ranges: int
    listed: int
    files: int
    bytes: int
    largest: int

    @property
    def mark(self) -> str:
        """Mark an estimate."""
        return "" if self.listed == self.ranges else "about "


@dataclass(frozen=True, slots=True)
class Peak:
    """Most disk that the campaign takes at one time, in bytes: raw copies, what splits spill, all shards."""

    raw: int
    spills: int
    shards: int
    taken: int

    @property
    def more(self) -> int:
        """What is still to be written at the peak."""
        return max(0, self.raw + self.spills + self.shards - self.taken)


def render_plan(config: Config) -> str:
    """Describe ranges, bytes, peak disk and jobs; warn where it does not fit."""
    volume = measure(config)
    return "\n".join([*_facts(config, volume), "", *_jobs(config)])


def measure(config: Config) -> Volume:
    """Add up the manifests; a range without one counts as the mean of the others, or as configured.

    A source whose files are made when they are staged lists no sizes: these are estimated too.
    """
    manifests = [config.paths().manifest(str(name)) for name in config.all_ranges()]
    known = [_manifest(path) for path in manifests if path.exists()]
    sized = [(count, taken) for count, taken in known if taken]
    typical = _mean(sized) if sized else _typical(config)
    everything = sized + [typical] * (len(manifests) - len(sized))
    return Volume(
        ranges=len(manifests),
        listed=len(sized),
        files=sum(count for count, _ in everything),
        bytes=sum(taken for _, taken in everything),
        largest=max(taken for _, taken in everything),
    )


def peak_disk(config: Config, volume: Volume) -> Peak:
    """Estimate the peak: ranges staged ahead of training, all of them being split, and all ranges' shards.

    Outliers stand there twice, in their range and consolidated; a range that has been split shows how many.
    """
    paths = config.paths()
    done = [name for name in map(str, config.all_ranges()) if paths.ledger(name).exists()]
    share, outliers = SHARDS_TO_RAW, 0.0
    if done:
        raw = sum(item["size"] for name in done for item in read_json(paths.ledger(name))["files"])
        bulk = sum(_shard_bytes(paths.shard_manifest(name)) for name in done)
        large = sum(_shard_bytes(paths.outlier_manifest(name)) for name in done)
        share, outliers = ((bulk + large) / raw, large / raw) if raw else (share, outliers)
    ahead = min(config.source.look_ahead, volume.ranges)
    return Peak(
        raw=ahead * volume.largest,
        spills=round(ahead * volume.largest * SPILLS_TO_RAW),
        shards=round((share + outliers) * volume.bytes),
        taken=tree_bytes(paths.results),
    )


def _manifest(path: Path) -> tuple[int, int]:
    table_ = pq.read_table(path, columns=["size"])
    return table_.num_rows, pc.sum(table_["size"]).as_py() or 0


def _mean(known: list[tuple[int, int]]) -> tuple[int, int]:
    files, taken = (sum(column) for column in zip(*known, strict=True))
    return round(files / len(known)), round(taken / len(known))


def _typical(config: Config) -> tuple[int, int]:
    return config.ranges.step, round(config.source.range_gib * GIB)


def _shard_bytes(manifest: Path) -> int:
    if not manifest.exists():
        return 0
    shards = read_json(manifest)["shards"]
    return sum(file["size"] for shard in shards for file in shard["files"].values())


def _facts(config: Config, volume: Volume) -> Iterator[str]:
    peak, free = peak_disk(config, volume), free_bytes(config.paths().results)
    budget = config.source.disk_budget_gib * GIB
    unknown = volume.ranges - volume.listed
    ranges = config.all_ranges()
    skipped = f", {len(config.ranges.skip)} skipped" if config.ranges.skip else ""
    yield _line("run", f"{config.run}, fingerprint {digest(config.train_keys())}")
    yield _line("source", config.source.files or config.source.uri)
    yield _line("ranges", f"{volume.ranges}{skipped}: {ranges[0]} to {ranges[-1]}")
    yield _line("files", f"{volume.mark}{number(volume.files)}, {volume.mark}{size(volume.bytes)}")
    if unknown:
        yield _line("", f"an estimate: {counted(unknown, 'range')} not listed yet, or without sizes")
    ahead = min(config.source.look_ahead, volume.ranges)
    yield _line(
        "raw copies", f"{size(peak.raw)} at most: {ahead} ranges ahead, {size(volume.largest)} the largest"
    )
    yield _line("", f"budget {size(budget)} (source.disk_budget_gib)")
    yield _line("splitting", f"{size(peak.spills)} at most: temporary files of {counted(ahead, 'range')}")
    yield _line("shards", f"about {size(peak.shards)} for all ranges")
    yield _line("disk", f"{size(peak.more)} more at the peak, {size(free)} free, {size(peak.taken)} taken")
    if peak.raw > budget:
        yield _line("WARNING", "raw copies exceed their budget: lower source.look_ahead or raise the budget")
    if peak.more > free:
        yield _line("WARNING", "this does not fit on the disk: free some space, or set `results` elsewhere")


def _line(label: str, text: str) -> str:
    return f"{label:<{LABEL}}{text}"


def _jobs(config: Config) -> list[str]:
    counts = _job_counts(config)
    columns = [
        Column("rule", list(counts)),
        Column("jobs", [number(jobs) for jobs, _ in counts.values()], right=True),
        Column("done", [number(done) for _, done in counts.values()], right=True),
    ]
    return table(columns, 80)


def _job_counts(config: Config) -> dict[str, tuple[int, int]]:
    """Jobs of each rule, and how many of them have left their output."""
    paths, names = config.paths(), [str(item) for item in config.all_ranges()]
    split = [_is_split(paths, name) for name in names]
    outputs = {
        "list": [paths.manifest(name).exists() for name in names],
        "stage": [done or paths.staged(name).exists() for name, done in zip(names, split, strict=True)],
        "split": split,
        "train": [paths.receipt(name).exists() for name in names],
        "outliers_consolidated": [paths.outlier_manifest(CONSOLIDATED).exists()],
        "train_outliers": [paths.receipt(OUTLIERS).exists()],
    }
    return {rule: (len(done), sum(done)) for rule, done in outputs.items()}


def _is_split(paths: Paths, name: str) -> bool:
    made = (paths.ledger(name), paths.shard_manifest(name), paths.outlier_manifest(name))
    return all(path.exists() for path in made)
