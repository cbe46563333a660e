"""One staged range becomes shards, outliers and a balanced ledger, in one pass over its raw files.

Raw files are scattered into buckets in parallel, then buckets are gathered into shards in parallel; the bytes
depend on the job's description and the raw files alone. Nothing counts until the finished record exists.
"""

from __future__ import annotations

import shlex
import shutil
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Literal

import numpy as np

from crpipe.campaign.raw_files import (
    STAGED,
    RawFile,
    count_source_files,
    read_manifest,
    read_staged,
)
from crpipe.campaign.records import SplitKey
from crpipe.campaign.split_record import (
    BULK_SHARDS,
    HISTOGRAM,
    KEY,
    LEDGER,
    LISTING,
    NOTES,
    OUTLIER_SHARDS,
    SPILLS,
    TABLE,
    SplitRecord,
    left_notes,
)
from crpipe.core.causes import is_present
from crpipe.core.errors import FormatError, ShardError
from crpipe.core.files import (
    clear_tree,
    digest,
    is_held_open,
    publish,
    remove_tree,
    replacing,
    writing,
)
from crpipe.core.lease import lease
from crpipe.core.paths import LARGE_ROLES, MANIFEST, PARTS
from crpipe.events.shard_manifest import verify
from crpipe.events.shard_reader import open_shard
from crpipe.events.shard_records import ShardManifest
from crpipe.split import gather, scatter
from crpipe.split.delivery import deliver, remove_raw
from crpipe.split.grouping import doubtful_groups, have_repeats
from crpipe.split.hashing import count_repeated
from crpipe.split.ledger import (
    check_unique,
    check_written,
    describe_histograms,
    make_ledger,
    write_table,
)
from crpipe.split.parts import REJECTED, TEST, VALIDATION, SplitRange, refuse_torn_groups
from crpipe.split.spill import remove_spans, span_count
from crpipe.split.workers import in_order, return_freed_memory, reuse_freed_memory

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from crpipe.campaign.ledger import Ledger
    from crpipe.campaign.readers import CheckedReader, ReaderChoice
    from crpipe.core.text import Progress
    from crpipe.events.histograms import Binning
    from crpipe.events.layout import Layout
    from crpipe.events.shard_records import ShardEntry
    from crpipe.split.parts import Parts
    from crpipe.split.scatter import FileReport, Scattered

_SHOWN_REJECTED = 3  # events that a message names
_MOST_TASKS = 64  # spills that are open at once while shards are gathered
_TASKS_PER_WORKER = 10
_WORKER_MIB = 256  # decoded block, its gathered copy, one row group on its way to the disk
_WORKER_RAW = 256 << 20  # raw bytes below which another process costs more than it brings


@dataclass(frozen=True, slots=True)
class SplitJob:
    """One range to split.

    data: digest of everything that changes a shard. layout: that of the reader.
    listed, staged, raw: the range's manifest, its staged table, and the folder of its raw copies.
    shards, outliers, multiplicity, ledger: what is written, the first two being folders.
    max_rejected: share of the range's events that may be invalid where these are rejected.
    parts: what decides between training, validation and test. histograms: bins of event columns to count.
    shard_items: items of one bulk shard, about. memory_mib: for buffers, of all workers together.
    """

    name: str
    data: str
    layout: Layout
    reader: ReaderChoice
    listed: Path
    staged: Path
    raw: Path
    shards: Path
    outliers: Path
    multiplicity: Path
    ledger: Path
    threshold: int
    seed: int
    parts: Parts
    histograms: Mapping[str, Binning]
    shard_items: int
    memory_mib: int
    workers: int
    on_bad_file: Literal["fail", "quarantine"]
    max_quarantined: int
    on_bad_event: Literal["fail", "reject"]
    max_rejected: float
    lease_wait_s: float

    @property
    def record(self) -> SplitRecord:
        """The record of the finished split."""
        return SplitRecord(self.name, self.listed, self.shards, self.outliers, self.ledger)

    def places(self) -> dict[str, Path]:
        """Final names of the files in the record, the shards' manifest last."""
        return {
            TABLE: self.multiplicity,
            HISTOGRAM: self.multiplicity.with_name(f"{self.name}.{HISTOGRAM}"),
            LEDGER: self.ledger,
            OUTLIER_SHARDS: self.outliers / MANIFEST,
            BULK_SHARDS: self.shards / MANIFEST,
        }

    def processes(self, raw_bytes: int) -> int:
        """Count the processes to use: as asked, as the memory allows, and as the work is worth."""
        return max(1, min(self.workers, self.memory_mib // _WORKER_MIB, -(-raw_bytes // _WORKER_RAW)))


@dataclass(frozen=True, slots=True)
class _Run:
    """A split in progress; ``files`` is the staged table.

    careful: the attempt before was killed while it read a file: read in a process of its own.
    """

    job: SplitJob
    files: list[RawFile]
    progress: Progress
    careful: bool = False

    @property
    def spills(self) -> Path:
        """Directory of the temporary files."""
        return self.job.shards / SPILLS

    @property
    def key(self) -> SplitKey:
        """What the outputs follow from, besides the raw files' bytes."""
        rows = [(file.path, file.size, file.state, file.checksum) for file in self.files]
        return SplitKey(data=self.job.data, threshold=self.job.threshold, staged=digest(rows))


def split_range(job: SplitJob, progress: Progress) -> None:
    """Split a staged range and delete its raw files; a finished range is adopted, whatever is staged.

    Safe to kill at any moment and to run again. Raise FormatError for a bad file or an invalid event that
    the job does not let pass, SourceError for a raw file that is not what was staged, ForeignError when the
    reader fails, LedgerError when events or items do not add up, LeaseError when another live job splits the
    range, DataError (ShardError) for a finished range that was made from other files (under other keys).
    """
    with lease(job.shards, wait_s=job.lease_wait_s, say=progress.say):
        if job.record.is_whole():
            _adopt(job)
            progress.say(f"{job.name}: already split")
        else:
            run = _Run(job, read_staged(job.staged), progress, careful=_was_killed(job, progress))
            check_unique(run.files, job.staged)
            if not job.record.has_key(run.key):
                job.record.refuse_other_files(run.files)
            _split(run)
        deliver(job.record.folder, job.places())
        for folder in (job.shards, job.outliers):
            verify(folder, deep=False)
        remove_tree(job.shards / SPILLS)
        remove_raw(job.raw, (job.shards, job.outliers), job.workers, job.lease_wait_s, progress)


def _adopt(job: SplitJob) -> None:
    """Check that a finished range is what this job would make; only a person may take it back."""
    key = SplitKey.read(job.record.folder / KEY)
    for name, before, value in (("data", key.data, job.data), ("threshold", key.threshold, job.threshold)):
        if before != value:
            raise ShardError(
                f"{job.shards}: was split with another key ({name} {before}, now {value}); restore the "
                f"configuration, or make the range again: {job.record.remove()}, and run it again"
            )
    if is_present(job.listed):
        job.record.refuse_other_listing(read_manifest(job.listed))


def _was_killed(job: SplitJob, progress: Progress) -> bool:
    """Report which files the attempt before read when it, and nobody else, ended."""
    found = left_notes(job.shards / SPILLS / NOTES)
    if found:
        progress.say(f"{job.name}: the attempt before was killed while it read {', '.join(found.values())}")
    return bool(found)


def _split(run: _Run) -> None:
    reuse_freed_memory()
    reader = run.job.reader.open()
    _clear(run)
    readable, reports, totals = _totals(run, reader)
    rules = _rules(run, totals)
    scattered = list(_scatter(run, readable, rules, reports, totals))
    reports += [report for each in scattered for report in each.files]
    _check_some_left(run, reports)
    reports.sort(key=lambda report: report.file.number)
    aside = [file for file in run.files if file.state != STAGED]
    ledger = make_ledger(
        reports,
        aside,
        totals,
        run.job.layout,
        range=run.job.name,
        data=run.job.data,
        threshold=run.job.threshold,
        empty=0,  # known from the histogram
        source_files=count_source_files(run.job.listed),
        notes=sorted(reader.notes) or None,
    )
    repeated = count_repeated(run.spills, run.files, run.job.layout, run.progress)
    ledger = replace(ledger, repeated=repeated)
    entries = list(_gather(run, rules, scattered))
    check_written(ledger, entries, run.job.layout)
    if doubt := _doubtful_groups(run, entries):
        ledger = replace(ledger, doubtful_groups=doubt)
        run.progress.say(f"warning: {run.job.name}: {doubt}")
    _record(run, ledger, entries, scattered)


def _clear(run: _Run) -> None:
    """Remove what an earlier attempt or another staged table left, the commit points first."""
    job = run.job
    for path in (job.shards / MANIFEST, job.outliers / MANIFEST, job.ledger):
        path.unlink(missing_ok=True)
    remove_tree(job.record.folder)
    for path in job.shards.iterdir():
        if path.is_dir():
            remove_tree(path)
        elif path.name != "lease" and not is_held_open(path):
            path.unlink()
    clear_tree(job.outliers)
    with writing(run.spills):
        run.spills.mkdir()


def _totals(
    run: _Run, reader: CheckedReader
) -> tuple[list[RawFile], list[FileReport], dict[int, tuple[int, int]]]:
    """Count events and items of each raw file by its own account; report the files that have none."""
    readable: list[RawFile] = []
    bad: list[FileReport] = []
    totals: dict[int, tuple[int, int]] = {}
    staged = [file for file in run.files if file.state == STAGED]
    count = scatter.CountFile(run.job.raw, run.job.reader, None if run.careful else reader)
    counted = in_order(count, staged, 1, notes=run.spills / NOTES, spawn=run.careful)
    for file, found in zip(staged, counted, strict=True):
        if isinstance(found, str):
            bad.append(scatter.FileReport(file, bad=found))
            _check_quarantine(run, bad)
        else:
            totals[file.number] = found
            readable.append(file)
    return readable, bad, totals


def _rules(run: _Run, totals: dict[int, tuple[int, int]]) -> scatter.Rules:
    job = run.job
    files = job.parts.of_files(run.files, job.name)
    everything = np.array(list(totals.values()), np.int64).reshape(-1, 2).sum(axis=0)
    expected = [everything]
    for part, fraction in ((VALIDATION, job.parts.validation_fraction), (TEST, job.parts.test_fraction)):
        whole = [totals[number] for number in totals if files.get(number) == part]
        expected.append(fraction * everything + np.array(whole, np.int64).reshape(-1, 2).sum(axis=0))
    return scatter.Rules(
        spans=span_count(int(everything[0]), int(everything[1]), job.layout),
        reader=job.reader,
        seed=job.seed,
        threshold=job.threshold,
        parts=job.parts,
        files=files,
        histograms=job.histograms,
        buckets=tuple(
            gather.bucket_count(int(events), int(items), job.shard_items) for events, items in expected
        ),
    )


def _scatter(
    run: _Run,
    files: list[RawFile],
    rules: scatter.Rules,
    bad: list[FileReport],
    totals: Mapping[int, tuple[int, int]],
) -> Iterator[Scattered]:
    job = run.job
    total = sum(file.size for file in files)
    workers = job.processes(total)
    share = max(1, -(-len(files) // min(_MOST_TASKS, _TASKS_PER_WORKER * workers)))
    tasks = [
        scatter.Task(number, job.raw, run.spills, tuple(files[start : start + share]), rules)
        for number, start in enumerate(range(0, len(files), share))
    ]
    expected = sum(totals[file.number][0] for file in files)
    done, seen = 0, list(bad)
    read: list[FileReport] = []
    results = in_order(scatter.scatter, tasks, workers, notes=run.spills / NOTES, spawn=run.careful)
    for finished in results:
        seen += [report for report in finished.files if report.bad]
        _check_quarantine(run, seen)
        read += finished.files
        _check_events(run, read, expected)
        done += sum(report.file.size for report in finished.files)
        run.progress.advance(f"split {job.name}: reading", done, total, f"{len(seen)} files set aside")
        yield finished


def _check_quarantine(run: _Run, bad: list[FileReport]) -> None:
    """Raise FormatError when bad files are not allowed, or there are more than are allowed."""
    job = run.job
    if not bad:
        return
    if job.on_bad_file == "fail":
        raise FormatError(
            f"{bad[-1].bad}, or set it aside with source.on_bad_file: quarantine; {_repair(job)}"
        )
    run.progress.say(f"set aside: {bad[-1].bad}")
    aside = sum(file.state != STAGED for file in run.files) + len(bad)
    if aside > job.max_quarantined:
        raise FormatError(
            f"{job.name}: {aside} bad files, {job.max_quarantined} may be set aside "
            f"(source.max_quarantined); the last: {bad[-1].bad}; {_repair(job)}"
        )


def _check_events(run: _Run, reports: list[FileReport], expected: int) -> None:
    """Raise FormatError for an invalid event, or where such are rejected, for more than are allowed.

    expected: events of the whole range, by the files' own account.
    """
    job = run.job
    rejected = sum(len(report.rejected) for report in reports)
    if not rejected:
        return
    if job.on_bad_event == "fail":
        (first,) = _first_rejected(run, reports, 1)
        raise FormatError(
            f"{first}; have the file made again, or leave such events out with split.on_bad_event: reject; "
            f"{_repair(job)}"
        )
    if rejected > job.max_rejected * expected:
        raise FormatError(
            f"{job.name}: {rejected} of {expected} events or more are rejected, at most "
            f"{job.max_rejected:.3g} of them may be (split.max_rejected): {_reasons(run, reports)}; have the "
            "files made again, look for a wrong unit or reader (source.reader), or, if such events are to be "
            f"left out, raise split.max_rejected; {_repair(job)}"
        )


def _check_some_left(run: _Run, reports: list[FileReport]) -> None:
    """Raise FormatError where all that the range holds was rejected or set aside, whatever is allowed."""
    job = run.job
    kept = sum(int(report.events[:REJECTED].sum()) for report in reports)
    rejected = sum(len(report.rejected) for report in reports)
    bad = [report.bad for report in reports if report.bad]
    bad += [file.reason for file in run.files if file.state != STAGED]
    if kept or not (rejected or bad):
        return
    first = "; ".join(filter(None, (_reasons(run, reports), *bad[:1])))
    raise FormatError(
        f"{job.name}: no event is left, all {rejected} are rejected and {len(bad)} files set aside: {first}; "
        f"have the files made again, or leave the range out with ranges.skip: [{job.name}]; {_repair(job)}"
    )


def _reasons(run: _Run, reports: list[FileReport]) -> str:
    return "; ".join(_first_rejected(run, reports, _SHOWN_REJECTED))


def _first_rejected(run: _Run, reports: list[FileReport], most: int) -> list[str]:
    """Name file, row and reason of the first rejected events."""
    found = (
        f"{run.job.raw / report.file.path}: row {row}: {reason}"
        for report in reports
        for row, reason, _ in report.rejected
    )
    return list(islice(found, most))


def _repair(job: SplitJob) -> str:
    """Say how a repaired file is taken: the old listing and copy would be used otherwise."""
    stale = shlex.join(map(str, (job.listed, job.staged)))
    return f"once the file is repaired: rm {stale}, and run the same command again"


def _gather(run: _Run, rules: scatter.Rules, scattered: list[Scattered]) -> Iterator[ShardEntry]:
    job = run.job
    common = {"spills": run.spills, "layout": job.layout, "seed": rules.seed}
    bulk, blocks = common | {"folder": job.shards}, [each.blocks for each in scattered]
    outliers = [aside for each in scattered for aside in each.outliers]
    borders = rules.first_of_spans(), rules.first_buckets()
    tasks = gather.all_bulk_tasks(bulk, blocks, *borders, job.shard_items)
    tasks += gather.outlier_tasks(common | {"folder": job.outliers}, outliers, job.shard_items)
    done, total = 0, sum(task.items for task in tasks)
    workers = job.processes(sum(file.size for file in run.files))
    if rules.spans > 1:
        return_freed_memory()  # of the first half
    for task, entry in zip(tasks, in_order(gather.gather, tasks, workers), strict=True):
        remove_spans(run.spills, task.first_span)
        done += task.items
        run.progress.advance(f"split {job.name}: writing", done, total)
        yield entry


def _doubtful_groups(run: _Run, entries: list[ShardEntry]) -> str:
    """Look at the events of the first training shard, which is a sample of the range."""
    first = next((entry for entry in entries if entry.role == PARTS[0]), None)
    if first is None:
        return ""
    layout = run.job.layout
    events = open_shard(run.job.shards, first, layout).events
    if have_repeats(list(events.read(0, list(layout.group)).values())):  # mostly, and soon known
        return ""
    return doubtful_groups(events.read(0, [field.name for field in layout.events]), layout)


def _record(run: _Run, ledger: Ledger, entries: list[ShardEntry], scattered: list[Scattered]) -> None:
    """Write everything that is declared to the workflow into one record, which appears whole or not at all.

    A workflow engine deletes a failed job's outputs: one that dies between its last output and its end would
    lose them after the raw files are gone. They are restored from the record.
    """
    job = run.job
    counted = describe_histograms(ledger, job.histograms, (each.histograms for each in scattered))
    part = job.record.folder.with_suffix(".part")
    manifest = ShardManifest(
        range=job.name, data=job.data, threshold=job.threshold, layout=job.layout.describe(), shards=()
    )
    with writing(part):
        part.mkdir()
        with replacing(part / TABLE) as table:
            histogram = write_table(table, run.spills, range(len(scattered)), job.layout)
    if job.parts.by_files:
        whole = SplitRange(job.name, part / TABLE, job.staged)
        refuse_torn_groups([whole], job.layout)
    histogram.write(part / HISTOGRAM)
    empty = histogram.events[0]  # the first bin holds nothing else
    replace(ledger, empty=empty).write(part / LEDGER)
    outliers = tuple(entry for entry in entries if entry.role in LARGE_ROLES)
    bulk = tuple(entry for entry in entries if entry.role in PARTS)
    replace(manifest, shards=outliers).write(part / OUTLIER_SHARDS)
    replace(manifest, shards=bulk, histograms=counted).write(part / BULK_SHARDS)
    if is_present(job.listed):
        with replacing(part / LISTING) as copy:
            shutil.copyfile(job.listed, copy)  # no second name: one damage must not take both
    run.key.write(part / KEY)
    publish(part, job.record.folder)
