"""One staged range becomes shards, outliers and a balanced ledger, in one pass over its raw files.

Raw files are scattered into buckets in parallel, then buckets are gathered into shards in parallel; the bytes
depend on the configuration and the raw files alone. Nothing counts until the finished record stands.
"""

from __future__ import annotations

import os
import shlex
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from crpipe.core.errors import FormatError
from crpipe.core.files import digest, publish, read_json, remove_tree, replacing, write_json, writing
from crpipe.core.lease import lease
from crpipe.events.shard_manifest import MANIFEST, verify
from crpipe.split import gather, scatter
from crpipe.split.ledger import EDGES, check_written, make_ledger, write_table
from crpipe.split.readers import Reader, open_reader
from crpipe.split.staged import STAGED, RawFile, check_present, read_staged
from crpipe.split.threshold import threshold_of
from crpipe.split.workers import available, in_order, keep_freed_memory

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from crpipe.config.loading import Config
    from crpipe.core.progress import Progress
    from crpipe.core.ranges import Range
    from crpipe.split.scatter import FileReport, Scattered
    from crpipe.split.spill import Block

_SPILLS = ".scatter"
_RECORD = ".finished"
_MOST_TASKS = 64  # spills that are open at once while shards are gathered
_TASKS_PER_WORKER = 10
_WORKER_MIB = 256  # decoded block, its gathered copy, one row group on its way to the disk
_WORKER_RAW = 256 << 20  # raw bytes below which another process costs more than it brings


@dataclass(frozen=True, slots=True)
class Job:
    """One range being split; ``files`` is its staged table."""

    config: Config
    name: str
    files: list[RawFile]
    reader: Reader
    threshold: int
    progress: Progress

    @property
    def raw(self) -> Path:
        """Directory of the raw copies."""
        return self.config.paths().raw(self.name)

    @property
    def shards(self) -> Path:
        """Directory of the bulk shards."""
        return self.config.paths().shards(self.name)

    @property
    def spills(self) -> Path:
        """Directory of the temporary files."""
        return self.shards / _SPILLS

    @property
    def key(self) -> dict[str, Any]:
        """What the outputs follow from, besides the raw files' bytes."""
        rows = [(file.path, file.size, file.state, file.checksum) for file in self.files]
        return {"data": self.data, "threshold": self.threshold, "staged": digest(rows)}

    @property
    def data(self) -> str:
        """Digest of the data keys."""
        return digest(self.config.data_keys())

    def workers(self, raw_bytes: int) -> int:
        """Processes to use: as asked, as the memory allows, and as the work is worth."""
        split = self.config.split
        wanted = split.workers or min(available(), self.config.resources.split.cpus)
        return max(1, min(wanted, split.memory_mib // _WORKER_MIB, -(-raw_bytes // _WORKER_RAW)))


def split_range(config: Config, name: Range, progress: Progress) -> None:
    """Split a staged range and delete its raw files.

    Safe to kill at any moment and to run again. Raise FormatError for a bad file or an impossible event that
    the configuration does not let pass, SourceError for a raw file that is not what was staged, LedgerError
    when events or muons do not add up, LeaseError when another live job splits the range.
    """
    paths = config.paths()
    folder = paths.shards(str(name))
    with lease(folder, wait_s=config.train.lease_wait_s, say=progress.say):
        if _is_delivered(config, str(name)):
            progress.say(f"{name}: already split")
        else:
            files = read_staged(paths.staged(str(name)))
            reader = open_reader(config.source.reader, config.options("reader"))
            job = Job(config, str(name), files, reader, threshold_of(config), progress)
            if not _is_recorded(job):
                _split(job)
        _deliver(config, str(name))
        for each in (folder, paths.outliers(str(name))):
            verify(each, deep=False)
        remove_tree(folder / _SPILLS)
        remove_tree(paths.raw(str(name)))


def _is_delivered(config: Config, name: str) -> bool:
    """Tell whether the range was split and its staged table is already gone."""
    paths = config.paths()
    record = paths.shards(name) / _RECORD / "key.json"
    if paths.staged(name).exists() or not record.exists():
        return False
    return bool(read_json(record)["data"] == digest(config.data_keys()))


def _is_recorded(job: Job) -> bool:
    record = job.shards / _RECORD / "key.json"
    return record.exists() and bool(read_json(record) == job.key)


def _split(job: Job) -> None:
    keep_freed_memory()
    _clear(job)
    readable, reports, totals = _totals(job)
    rules = _rules(job, totals)
    scattered = list(_scatter(job, readable, rules, reports))
    reports += [report for each in scattered for report in each.files]
    reports.sort(key=lambda report: report.file.number)
    aside = [file for file in job.files if file.state != STAGED]
    ledger = make_ledger(reports, aside, totals)
    blocks = [block for each in scattered for block in each.blocks]
    entries = list(_gather(job, rules, blocks))
    check_written(ledger, entries)
    _record(job, ledger, entries, len(scattered))


def _clear(job: Job) -> None:
    """Remove what an earlier attempt or another staged table left, the commit points first."""
    paths = job.config.paths()
    for path in (paths.shard_manifest(job.name), paths.outlier_manifest(job.name), paths.ledger(job.name)):
        path.unlink(missing_ok=True)
    remove_tree(job.shards / _RECORD)
    for path in job.shards.iterdir():
        if path.is_dir():
            remove_tree(path)
        elif path.name != "lease":
            path.unlink()
    remove_tree(paths.outliers(job.name))
    with writing(job.spills):
        job.spills.mkdir()


def _totals(job: Job) -> tuple[list[RawFile], list[FileReport], dict[int, tuple[int, int]]]:
    """Count events and items of each raw file by its own account; tell which files cannot even do that."""
    readable: list[RawFile] = []
    bad: list[FileReport] = []
    totals: dict[int, tuple[int, int]] = {}
    for file in job.files:
        if file.state != STAGED:
            continue
        check_present(job.raw, file)
        try:
            totals[file.number] = job.reader.totals(job.raw / file.path, {})
            readable.append(file)
        except FormatError as error:
            bad.append(scatter.FileReport(file, bad=str(error)))
            _check_quarantine(job, bad)
    return readable, bad, totals


def _rules(job: Job, totals: dict[int, tuple[int, int]]) -> scatter.Rules:
    config = job.config
    events = sum(events for events, _ in totals.values())
    items = sum(items for _, items in totals.values())
    fraction = config.split.validation_fraction
    shard_items = config.split.shard_items
    return scatter.Rules(
        reader=config.source.reader,
        options=config.options("reader"),
        seed=config.seed,
        threshold=job.threshold,
        validation_fraction=fraction,
        train_buckets=gather.bucket_count(events, items, shard_items),
        validation_buckets=gather.bucket_count(int(events * fraction), int(items * fraction), shard_items),
    )


def _scatter(
    job: Job, files: list[RawFile], rules: scatter.Rules, bad: list[FileReport]
) -> Iterator[Scattered]:
    total = sum(file.size for file in files)
    workers = job.workers(total)
    share = max(1, -(-len(files) // min(_MOST_TASKS, _TASKS_PER_WORKER * workers)))
    tasks = [
        scatter.Task(number, job.raw, job.spills, tuple(files[start : start + share]), rules)
        for number, start in enumerate(range(0, len(files), share))
    ]
    done = 0
    seen = list(bad)
    for finished in in_order(scatter.scatter, tasks, workers):
        seen += [report for report in finished.files if report.bad]
        _check_quarantine(job, seen)
        _check_events(job, finished.files)
        done += sum(report.file.size for report in finished.files)
        job.progress.advance(f"split {job.name}: reading", done, total, f"{len(seen)} files set aside")
        yield finished


def _check_quarantine(job: Job, bad: list[FileReport]) -> None:
    """Raise FormatError when bad files are not allowed, or there are more than are allowed."""
    source = job.config.source
    if not bad:
        return
    if source.on_bad_file == "fail":
        raise FormatError(f"{bad[-1].bad}, or set it aside with source.on_bad_file: quarantine; {_then(job)}")
    job.progress.say(f"set aside: {bad[-1].bad}")
    aside = sum(file.state != STAGED for file in job.files) + len(bad)
    if aside > source.max_quarantined:
        raise FormatError(
            f"{job.name}: {aside} bad files, {source.max_quarantined} may be set aside "
            f"(source.max_quarantined); the last: {bad[-1].bad}; {_then(job)}"
        )


def _check_events(job: Job, reports: list[FileReport]) -> None:
    """Raise FormatError for the first impossible event unless the configuration rejects such events."""
    if job.config.split.on_bad_event == "reject":
        return
    for report in reports:
        for row, reason, _ in report.rejected:
            raise FormatError(
                f"{job.raw / report.file.path}: row {row}: {reason}; have the file made anew, or leave such "
                f"events out with split.on_bad_event: reject; {_then(job)}"
            )


def _then(job: Job) -> str:
    """What has files made anew taken: what was listed and copied before would else be read again."""
    paths = job.config.paths()
    stale = shlex.join(map(str, (paths.manifest(job.name), paths.staged(job.name))))
    return f"once it is made anew: rm {stale}, and the same again"


def _gather(job: Job, rules: scatter.Rules, blocks: list[Block]) -> Iterator[dict[str, Any]]:
    shard_items = job.config.split.shard_items
    common = {"folder": job.shards, "spills": job.spills, "layout": job.reader.layout, "seed": rules.seed}
    train, outlier = rules.train_buckets, rules.outlier_bucket
    tasks = gather.bulk_tasks(common, "train", blocks, 0, train, shard_items)
    tasks += gather.bulk_tasks(common, "validation", blocks, train, outlier, shard_items)
    aside = common | {"folder": job.config.paths().outliers(job.name)}
    tasks += gather.outlier_tasks(aside, blocks, outlier, shard_items)
    done, total = 0, sum(task.items for task in tasks)
    workers = job.workers(sum(file.size for file in job.files))
    for task, entry in zip(tasks, in_order(gather.gather, tasks, workers), strict=True):
        done += task.items
        job.progress.advance(f"split {job.name}: writing", done, total)
        yield entry


def _record(job: Job, ledger: dict[str, Any], entries: list[dict[str, Any]], spills: int) -> None:
    """Put everything that is declared to the workflow into one record, which appears whole or not at all.

    A workflow engine deletes a failed job's outputs: one that dies between its last output and its end would
    lose them after the raw files are gone. From the record they are made again.
    """
    part = job.shards / f"{_RECORD}.part"
    common = {
        "range": job.name,
        "data": job.data,
        "layout": job.reader.layout.describe(),
        "threshold": job.threshold,
    }
    with writing(part):
        part.mkdir()
        with replacing(part / "multiplicity.parquet") as table:
            counts = write_table(table, job.spills, range(spills), job.reader.layout)
    write_json(part / "histogram.json", {"edges": EDGES.tolist(), "events": counts.tolist()})
    head = {"range": job.name, "data": job.data, "threshold": job.threshold}
    write_json(part / "ledger.json", head | ledger)
    outliers = [entry for entry in entries if entry["role"] == "outliers"]
    bulk = [entry for entry in entries if entry["role"] != "outliers"]
    write_json(part / "outliers.json", common | {"shards": outliers})
    write_json(part / "shards.json", common | {"shards": bulk})
    write_json(part / "key.json", job.key)
    publish(part, job.shards / _RECORD)


def _deliver(config: Config, name: str) -> None:
    """Put the record's files in their places, the shards' manifest last."""
    paths = config.paths()
    record = paths.shards(name) / _RECORD
    table = paths.multiplicity(name)
    places = {
        "multiplicity.parquet": table,
        "histogram.json": table.with_name(f"{name}.histogram.json"),
        "ledger.json": paths.ledger(name),
        "outliers.json": paths.outliers(name) / MANIFEST,
        "shards.json": paths.shard_manifest(name),
    }
    for source, target in places.items():
        if target.exists() and target.samefile(record / source):
            os.utime(target)  # renaming one link of a file over another would leave both
            continue
        with replacing(target) as part:
            _copy(record / source, part)


def _copy(source: Path, target: Path) -> None:
    """Give a file a second name, or a copy where the file system has no links; its time is now."""
    target.unlink(missing_ok=True)
    try:
        target.hardlink_to(source)
    except OSError:
        shutil.copyfile(source, target)
    os.utime(target)
