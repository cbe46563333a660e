"""One staged range becomes shards, outliers and a balanced ledger, in one pass over its raw files.

Raw files are scattered into buckets, these gathered into shards; nothing counts before the finished record.
"""

from __future__ import annotations

import os
import shlex
import shutil
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from crpipe.campaign.code import accepted_code, record_data_code
from crpipe.campaign.raw_files import STAGED, RawFile, count_source_files, lease_folder, read_ready
from crpipe.campaign.raw_proofs import describe_replaced, with_checksum
from crpipe.campaign.records import SplitKey
from crpipe.campaign.split_record import (
    BULK_SHARDS,
    FILES,
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
from crpipe.core.errors import FormatError
from crpipe.core.files import (
    atomic_write,
    clear_tree,
    digest,
    disk_errors,
    is_held_open,
    publish,
    remove_tree,
    write_hashes,
)
from crpipe.core.lease import lease
from crpipe.core.paths import LARGE_ROLES, MANIFEST, PARTS, Paths
from crpipe.core.text import counted
from crpipe.events.histograms import check_binnings
from crpipe.events.shard_manifest import check_on_disk, verify
from crpipe.events.shard_reader import open_shard
from crpipe.events.shard_records import ShardEntry, ShardManifest
from crpipe.split import gather, scatter
from crpipe.split.grouping import doubtful_groups, have_repeats
from crpipe.split.hashing import count_repeated
from crpipe.split.ledger import check_unique, check_written, describe_histograms, make_ledger, write_table
from crpipe.split.parts import REJECTED, TEST, VALIDATION, Parts, refuse_groups_in_two_parts
from crpipe.split.spill import remove_spans, span_count
from crpipe.split.workers import available, in_order, return_freed_memory, reuse_freed_memory

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from crpipe.campaign.campaign import Campaign
    from crpipe.campaign.ledger import Ledger
    from crpipe.campaign.readers import CheckedReader
    from crpipe.config.loading import Config
    from crpipe.core.text import Progress
    from crpipe.split.scatter import FileReport, ScatterResult

_SHOWN_REJECTED = 3  # events that a message names
_MOST_TASKS = 64  # spills that are open at once while shards are gathered
_TASKS_PER_WORKER = 10
_WORKER_MB = 1000  # libraries, decoded block, its gathered copy, one row group on its way to the disk
_WORKER_RAW = 256 << 20  # raw bytes below which another process costs more than it brings


@dataclass(frozen=True, slots=True)
class _SplitContext:
    """A split in progress.

    parts, threshold: what decides where an event goes. files: the staged table. careful: the attempt before
    was killed while it read a file: read in a process of its own.
    """

    campaign: Campaign
    name: str
    progress: Progress
    parts: Parts
    threshold: int
    files: list[RawFile]
    careful: bool

    @property
    def raw(self) -> Path:
        """Directory of the raw copies, or of links to the raw files."""
        return self.campaign.paths.raw(self.name)

    @property
    def record(self) -> SplitRecord:
        """The record of the finished split, with the folders of the shards."""
        return SplitRecord.of(self.campaign.paths, self.name)

    @property
    def spills(self) -> Path:
        """Directory of the temporary files."""
        return self.record.shards / SPILLS

    @property
    def key(self) -> SplitKey:
        """What the outputs follow from, besides the raw files' bytes."""
        rows = [(file.path, file.size, file.state, file.checksum) for file in self.files]
        return SplitKey(data=self.campaign.data, threshold=self.threshold, staged=digest(rows))

    def processes(self, raw_bytes: int) -> int:
        """Count the processes to use: as the job's CPUs and memory allow, and as the work is worth."""
        by_memory = self.campaign.config.resources.split.mem_mb // _WORKER_MB
        return max(1, min(_workers(self.campaign.config), by_memory, -(-raw_bytes // _WORKER_RAW)))


def split_range(campaign: Campaign, name: str, progress: Progress, *, accept_code: bool = False) -> None:
    """Split a staged range and delete its raw copies; a finished range is adopted, whatever is staged.

    accept_code: whether the reader may have other code than for the ranges before, which the ledger notes.
    Safe to kill at any moment and to run again. Raise FormatError for a bad file or an invalid event that
    the configuration does not let pass, SourceError for a raw file that is not what was staged, PluginError
    when the reader fails, LedgerError when events or items do not add up, LeaseError when another live job
    splits the range, DataError (ShardError) for a finished range that was made from other files (under other
    keys), ConfigError for a threshold, a histogram or a held-out file that the campaign cannot have, or where
    the reader's code changed.
    """
    config, paths = campaign.config, campaign.paths
    threshold, parts = campaign.threshold(), Parts.of(config)
    check_binnings(campaign.layout, config.split.histograms)
    record, staged = SplitRecord.of(paths, name), paths.staged(name)
    with lease(record.shards, say=progress.message):
        if record.is_whole():
            record.adopt(campaign.data, threshold)
            progress.message(f"{name}: already split")
        else:
            files, careful = read_ready(paths, config.source, name), _was_killed(record, progress)
            run = _SplitContext(campaign, name, progress, parts, threshold, files, careful)
            check_unique(files, staged)
            if record.rows():  # they must be the files that it was made from, before it is made again
                run = replace(run, files=[with_checksum(run.raw, file) for file in files])
            if not record.has_key(run.key):
                record.refuse_other_files(run.files)
            record_data_code(campaign, name, progress.message, accept=accept_code)
            _split(run)
        publish_outputs(record.folder, _outputs(paths, name))
        for folder in (record.shards, record.outliers):
            verify(folder)
        remove_tree(record.shards / SPILLS)
        remove_raw(campaign, name, _workers(config), progress)


def _outputs(paths: Paths, name: str) -> dict[str, Path]:
    """Return the final names of the files in the record, the shards' manifest last."""
    return {
        TABLE: paths.multiplicity(name),
        HISTOGRAM: paths.histogram(name),
        LEDGER: paths.ledger(name),
        OUTLIER_SHARDS: paths.outlier_manifest(name),
        BULK_SHARDS: paths.shard_manifest(name),
    }


def _workers(config: Config) -> int:
    return min(available(), config.resources.split.cpus)


def _was_killed(record: SplitRecord, progress: Progress) -> bool:
    """Report which files the attempt before read when it, and nobody else, ended."""
    notes = left_notes(record.shards / SPILLS / NOTES)
    if notes:
        files = ", ".join(notes.values())
        progress.message(f"{record.name}: the attempt before was killed while it read {files}")
    return bool(notes)


def _split(run: _SplitContext) -> None:
    reuse_freed_memory()
    reader = run.campaign.reader.open()
    _clear(run)
    readable, reports, totals = _totals(run, reader)
    rules = _rules(run, totals)
    scattered = list(_scatter(run, readable, rules, reports, totals))
    reports += [report for each in scattered for report in each.files]
    _check_some_left(run, reports)
    reports.sort(key=lambda report: report.file.number)
    read = {report.file.number: report.file for report in reports}
    listed, run = run.files, replace(run, files=[read.get(file.number, file) for file in run.files])
    if changed := describe_replaced(listed, run.files):
        run.progress.message(f"warning: {run.name}: {changed}")
    aside = [file for file in run.files if file.state != STAGED]
    layout = run.campaign.layout
    ledger = make_ledger(
        reports,
        aside,
        totals,
        layout,
        range=run.name,
        data=run.campaign.data,
        threshold=run.threshold,
        empty=0,  # known from the histogram
        source_files=count_source_files(run.record.listing),
        notes=sorted(filter(None, [*reader.notes, changed])) or None,
        code=accepted_code(run.campaign.paths.data_code()),
    )
    ledger = replace(ledger, repeated=count_repeated(run.spills, run.files, layout, run.progress))
    entries = list(_gather(run, rules, scattered))
    check_written(ledger, entries, run.campaign.layout)
    if doubt := _doubtful_groups(run, entries):
        ledger = replace(ledger, doubtful_groups=doubt)
        run.progress.message(f"warning: {run.name}: {doubt}")
    _commit_record(run, ledger, entries, scattered)


def _clear(run: _SplitContext) -> None:
    """Remove what an earlier attempt or another staged table left, the commit points first."""
    record = run.record
    for path in (record.shards / MANIFEST, record.outliers / MANIFEST, record.ledger):
        path.unlink(missing_ok=True)
    remove_tree(record.folder)
    for path in record.shards.iterdir():
        if path.is_dir():
            remove_tree(path)
        elif path.name != "lease" and not is_held_open(path):
            path.unlink()
    clear_tree(record.outliers)
    with disk_errors(run.spills):
        run.spills.mkdir()


def _totals(
    run: _SplitContext, reader: CheckedReader
) -> tuple[list[RawFile], list[FileReport], dict[int, tuple[int, int]]]:
    """Count events and items of each raw file by its own account; report the files that have none."""
    readable: list[RawFile] = []
    bad: list[FileReport] = []
    totals: dict[int, tuple[int, int]] = {}
    staged = [file for file in run.files if file.state == STAGED]
    opened = None if run.careful else reader
    count = partial(scatter.count_file, run.raw, run.campaign.reader, opened)
    # A refusal must end the work at once: what is left of its notes tells of a killed process.
    with closing(in_order(count, staged, 1, notes=run.spills / NOTES, spawn=run.careful)) as counted:
        for file, count_or_fault in zip(staged, counted, strict=True):
            if isinstance(count_or_fault, str):
                bad.append(scatter.FileReport(with_checksum(run.raw, file), bad=count_or_fault))
                _check_quarantine(run, bad)
            else:
                totals[file.number] = count_or_fault
                readable.append(file)
    return readable, bad, totals


def _rules(run: _SplitContext, totals: dict[int, tuple[int, int]]) -> scatter.Rules:
    config, parts = run.campaign.config, run.parts
    files = parts.of_files(run.files, run.name)
    everything = np.array(list(totals.values()), np.int64).reshape(-1, 2).sum(axis=0)
    expected = [everything]
    for part, fraction in ((VALIDATION, parts.validation_fraction), (TEST, parts.test_fraction)):
        sizes = [totals[number] for number in totals if files.get(number) == part]
        expected.append(fraction * everything + np.array(sizes, np.int64).reshape(-1, 2).sum(axis=0))
    return scatter.Rules(
        spans=span_count(int(everything[0]), int(everything[1]), run.campaign.layout),
        reader=run.campaign.reader,
        seed=config.seed,
        threshold=run.threshold,
        parts=parts,
        files=files,
        histograms=config.split.histograms,
        buckets=tuple(
            gather.bucket_count(int(events), int(items), config.split.shard_items)
            for events, items in expected
        ),
    )


def _scatter(
    run: _SplitContext,
    files: list[RawFile],
    rules: scatter.Rules,
    bad: list[FileReport],
    totals: Mapping[int, tuple[int, int]],
) -> Iterator[ScatterResult]:
    total = sum(file.size for file in files)
    workers = run.processes(total)
    share = max(1, -(-len(files) // min(_MOST_TASKS, _TASKS_PER_WORKER * workers)))
    tasks = [
        scatter.Task(number, run.raw, run.spills, tuple(files[start : start + share]), rules)
        for number, start in enumerate(range(0, len(files), share))
    ]
    expected = sum(totals[file.number][0] for file in files)
    done, seen, read = 0, list(bad), bad[:0]
    for finished in in_order(scatter.scatter, tasks, workers, notes=run.spills / NOTES, spawn=run.careful):
        seen += [report for report in finished.files if report.bad]
        _check_quarantine(run, seen)
        read += finished.files
        for doubt in finished.doubts:
            run.progress.message(f"warning: {run.name}: {doubt}")
        _check_events(run, read, expected)
        done += sum(report.file.size for report in finished.files)
        run.progress.update(
            f"split {run.name}: reading", done, total, f"{counted(len(seen), 'file')} set aside"
        )
        yield finished


def _check_quarantine(run: _SplitContext, bad: list[FileReport]) -> None:
    """Raise FormatError when bad files are not allowed, or there are more than are allowed."""
    source = run.campaign.config.source
    if not bad:
        return
    if source.on_bad_file == "fail":
        raise FormatError(
            f"{bad[-1].bad}, or set it aside with source.on_bad_file: quarantine; {_repair(run, bad[-1].bad)}"
        )
    run.progress.message(f"set aside: {bad[-1].bad}")
    aside = sum(file.state != STAGED for file in run.files) + len(bad)
    if aside > source.max_quarantined:
        raise FormatError(
            f"{run.name}: {counted(aside, 'bad file')}, {source.max_quarantined} may be set aside "
            f"(source.max_quarantined); the last: {bad[-1].bad}; {_repair(run)}"
        )


def _check_events(run: _SplitContext, reports: list[FileReport], expected: int) -> None:
    """Raise FormatError for an invalid event, or where such are rejected, for more than are allowed.

    expected: events of the whole range, by the files' own account.
    """
    split = run.campaign.config.split
    rejected = sum(len(report.rejected) for report in reports)
    if not rejected:
        return
    if split.on_bad_event == "fail":
        (first,) = _first_rejected(run, reports, 1)
        raise FormatError(
            f"{first}; have the file made again, or leave such events out with split.on_bad_event: reject; "
            f"{_repair(run)}"
        )
    if rejected > split.max_rejected * expected:
        raise FormatError(
            f"{run.name}: {rejected} of {expected} events or more are rejected, at most "
            f"{split.max_rejected:.3g} of them may be (split.max_rejected): {_reasons(run, reports)}; have "
            "the files made again, look for a wrong unit or reader (source.reader), or, if such events are "
            f"to be left out, raise split.max_rejected; {_repair(run)}"
        )


def _check_some_left(run: _SplitContext, reports: list[FileReport]) -> None:
    """Raise FormatError where all that the range holds was rejected or set aside, whatever is allowed."""
    kept = sum(int(report.events[:REJECTED].sum()) for report in reports)
    rejected = sum(len(report.rejected) for report in reports)
    bad = [report.bad for report in reports if report.bad]
    bad += [file.reason for file in run.files if file.state != STAGED]
    if kept or not (rejected or bad):
        return
    first = "; ".join(filter(None, (_reasons(run, reports), *bad[:1])))
    raise FormatError(
        f"{run.name}: no event is left, all {rejected} are rejected and {counted(len(bad), 'file')} "
        f"set aside: {first}; have the files made again, or leave the range out with ranges.skip: "
        f"[{run.name}]; {_repair(run)}"
    )


def _reasons(run: _SplitContext, reports: list[FileReport]) -> str:
    return "; ".join(_first_rejected(run, reports, _SHOWN_REJECTED))


def _first_rejected(run: _SplitContext, reports: list[FileReport], most: int) -> list[str]:
    """Name file, row and reason of the first rejected events."""
    rejected = (
        f"{run.raw / report.file.ready.path}: row {row}: {reason}"
        for report in reports
        for row, reason, _ in report.rejected
    )
    return list(islice(rejected, most))


def _repair(run: _SplitContext, problem: str = "") -> str:
    """Return how a repaired file, or side table, is taken: the old listing and copies would be used."""
    stale = shlex.join(map(str, (run.record.listing, run.campaign.paths.staged(run.name))))
    tables = [name for name, path in run.campaign.reader.tables.items() if str(path) in problem]
    other = f"; if the table {tables[0]} is wrong, give another one with a new `results`" if tables else ""
    return f"once the file is repaired: rm {stale}, and run the same command again{other}"


def _gather(run: _SplitContext, rules: scatter.Rules, scattered: list[ScatterResult]) -> Iterator[ShardEntry]:
    record, shard_items = run.record, run.campaign.config.split.shard_items
    common = {"spills": run.spills, "layout": run.campaign.layout, "seed": rules.seed}
    bulk, blocks = common | {"folder": record.shards}, [each.blocks for each in scattered]
    outliers = [segment for each in scattered for segment in each.outliers]
    borders = rules.first_of_spans(), rules.first_buckets()
    tasks = gather.all_bulk_tasks(bulk, blocks, *borders, shard_items)
    tasks += gather.outlier_tasks(common | {"folder": record.outliers}, outliers, shard_items)
    done, total = 0, sum(task.items for task in tasks)
    workers = run.processes(sum(file.size for file in run.files))
    if rules.spans > 1:
        return_freed_memory()  # of the first half
    for task, entry in zip(tasks, in_order(gather.gather, tasks, workers), strict=True):
        remove_spans(run.spills, task.first_span)
        done += task.items
        run.progress.update(f"split {run.name}: writing", done, total)
        yield entry


def _doubtful_groups(run: _SplitContext, entries: list[ShardEntry]) -> str:
    """Examine the events of the first training shard, which is a sample of the range."""
    first = next((entry for entry in entries if entry.role == PARTS[0]), None)
    if first is None:
        return ""
    layout = run.campaign.layout
    events = open_shard(run.record.shards, first, layout).events
    if have_repeats(list(events.read(0, list(layout.group)).values())):  # mostly, and soon known
        return ""
    return doubtful_groups(events.read(0, [field.name for field in layout.events]), layout)


def _commit_record(
    run: _SplitContext, ledger: Ledger, entries: list[ShardEntry], scattered: list[ScatterResult]
) -> None:
    """Write everything that is declared to the workflow into one record, which appears whole or not at all.

    A workflow engine deletes a failed job's outputs: one that dies between its last output and its end would
    lose them after the raw files are gone. They are restored from the record.
    """
    campaign, record, layout = run.campaign, run.record, run.campaign.layout
    binnings = campaign.config.split.histograms
    counted = describe_histograms(ledger, binnings, (each.histograms for each in scattered))
    part = record.folder.with_suffix(".part")
    manifest = ShardManifest(
        range=run.name, data=campaign.data, threshold=run.threshold, layout=layout.describe(), shards=()
    )
    with disk_errors(part):
        part.mkdir()
        with atomic_write(part / TABLE) as table:
            histogram = write_table(table, run.spills, range(len(scattered)), layout)
    if run.parts.by_files:
        refuse_groups_in_two_parts(campaign, {run.name: part / TABLE})
    histogram.write(part / HISTOGRAM)
    empty = histogram.events[0]  # the first bin holds nothing else
    replace(ledger, empty=empty).write(part / LEDGER)
    outliers = tuple(entry for entry in entries if entry.role in LARGE_ROLES)
    bulk = tuple(entry for entry in entries if entry.role in PARTS)
    replace(manifest, shards=outliers).write(part / OUTLIER_SHARDS)
    replace(manifest, shards=bulk, histograms=counted).write(part / BULK_SHARDS)
    if is_present(record.listing):
        with atomic_write(part / LISTING) as copy:
            shutil.copyfile(record.listing, copy)  # no second name: one damage must not take both
    run.key.write(part / KEY)
    write_hashes(part, FILES)
    publish(part, record.folder)


# What follows once a split is recorded: its files get their final names, and its raw copies are deleted.


def publish_outputs(record: Path, outputs: Mapping[str, Path]) -> None:
    """Publish the record's files under their final names, the shards' manifest last."""
    for source, target in outputs.items():
        if is_present(target) and target.samefile(record / source):
            os.utime(target)  # renaming one link of a file over another would leave both
            continue
        with atomic_write(target) as part:
            _copy(record / source, part)


def _copy(source: Path, target: Path) -> None:
    """Link a file to a second name, or copy it where the file system has no links; its time is now."""
    target.unlink(missing_ok=True)
    try:
        target.hardlink_to(source)
    except OSError:
        shutil.copyfile(source, target)
    os.utime(target)


def remove_raw(campaign: Campaign, name: str, workers: int, progress: Progress) -> None:
    """Delete the raw copies, once every byte of the shards was read back from the disk.

    Raise ShardError when one is not what was written, LeaseError when a job stages the range and does not end
    in time; the raw copies are then kept.
    """
    paths, raw = campaign.paths, campaign.paths.raw(name)
    if not is_present(raw):
        return
    check_on_disk((paths.shards(name), paths.outliers(name)), workers)
    with lease(lease_folder(raw), say=progress.message):
        held = clear_tree(raw)
    if held:
        progress.message(
            f"{raw}: deleted, but for {counted(len(held), 'file')} that another process has open; the next "
            "head deletes what is left"
        )
