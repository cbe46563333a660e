"""One range: how far its data are, and whether what is finished is whole."""

from __future__ import annotations

import filecmp
import shlex
from typing import TYPE_CHECKING, Any

from crpipe.check.accounts import (
    check_histogram,
    check_ledger,
    check_repeated,
    check_role,
    check_table,
    read_table,
)
from crpipe.check.findings import MALFORMED
from crpipe.check.job import deliver_again, removing, split_again
from crpipe.check.shard_files import read_folder
from crpipe.core.causes import is_present
from crpipe.core.destinations import LARGE_ROLES, PARTS
from crpipe.core.files import digest
from crpipe.core.lease import is_held
from crpipe.core.paths import FINISHED, MANIFEST
from crpipe.core.raw_files import (
    STAGED,
    check_present,
    check_unchanged,
    lease_folder,
    read_manifest,
    read_staged,
)
from crpipe.events.split_record import LISTING, SplitRecord
from crpipe.split.scatter import known_columns

if TYPE_CHECKING:
    from pathlib import Path

    from crpipe.check.findings import CheckReport
    from crpipe.check.job import CheckJob, Facts
    from crpipe.check.shard_files import FolderEvents
    from crpipe.core.paths import Paths

LEASE = "lease"


def check_range(report: CheckReport, job: CheckJob, facts: Facts, name: str) -> None:
    """Check one range as far as its data are finished."""
    paths = job.paths
    if is_held(paths.shards(name) / LEASE) or is_held(lease_folder(paths.raw(name)) / LEASE):
        report.note(name, "a job works on it")
        return
    delivered = _delivered(paths, name)
    record = paths.shards(name) / FINISHED
    if any(is_present(path) for path in delivered.values()) or is_present(record):
        report.counts["ranges"] += 1
        missing = [path for path in delivered.values() if not is_present(path)]
        remedy = deliver_again(name) if _is_finished(paths, name) else split_again(paths, name)
        for path in missing:
            report.wrong(path, "missing", remedy)
        _check_split(report, paths, facts, name)
        return
    if name in facts.trained:
        report.wrong(
            paths.shard_manifest(name),
            "missing, though a finished link was trained on this range",
            split_again(paths, name),
        )
    _check_unsplit(report, paths, name)


def _is_finished(paths: Paths, name: str) -> bool:
    try:
        return SplitRecord.of(paths, name).is_whole()
    except MALFORMED:
        return False


def _delivered(paths: Paths, name: str) -> dict[str, Path]:
    """Map the names in a split's record to the files that are delivered from it."""
    table = paths.multiplicity(name)
    return {
        "multiplicity.parquet": table,
        "histogram.json": table.with_name(f"{name}.histogram.json"),
        "ledger.json": paths.ledger(name),
        "outliers.json": paths.outlier_manifest(name),
        "shards.json": paths.shard_manifest(name),
    }


def _check_split(report: CheckReport, paths: Paths, facts: Facts, name: str) -> None:
    remedy = split_again(paths, name)
    known = known_columns(facts.layout) if facts.layout else ()
    folders = {
        folder: read_folder(report, folder, roles, facts, remedy, known)
        for folder, roles in (
            (paths.shards(name), PARTS),
            (paths.outliers(name), LARGE_ROLES),
        )
        if is_present(folder / MANIFEST)
    }
    path = paths.ledger(name)
    ledger = report.read_object(path, remedy) if is_present(path) else None
    with report.reading(path, remedy):
        _check_record(report, paths, name, ledger)
    if ledger is None:
        return
    with report.reading(path, remedy):
        check_ledger(report, path, ledger, remedy)
        check_repeated(report, path, ledger, facts.layout, remedy)
        _check_heads(report, path, ledger, name, folders, remedy)
        _check_files(report, paths, name, ledger)
    with report.reading(paths.multiplicity(name), remedy):
        if is_present(paths.multiplicity(name)):
            table = read_table(paths.multiplicity(name), known)
            if not check_table(report, table, ledger, remedy):
                return
            report.counts["events"] += ledger["events"]["rejected"]
            for folder, found in folders.items():
                if found is not None:
                    for role in found.columns:
                        check_role(report, table, found, role, ledger, folder / MANIFEST, remedy)
            weight = facts.layout.weight if facts.layout else ""
            histogram = _delivered(paths, name)["histogram.json"]
            if is_present(histogram):
                check_histogram(report, histogram, table, ledger, weight, remedy)


def _check_heads(
    report: CheckReport,
    path: Path,
    ledger: dict[str, Any],
    name: str,
    folders: dict[Path, FolderEvents | None],
    remedy: str,
) -> None:
    """Compare range, keys and threshold of the ledger and the manifests."""
    heads = {path: ledger} | {folder / MANIFEST: found.manifest for folder, found in folders.items() if found}
    for place, head in heads.items():
        if head["range"] != name:
            report.wrong(place, f"is of the range {head['range']}", remedy)
        for key in ("data", "threshold"):
            if head[key] != ledger[key]:
                report.wrong(place, f"its {key} is {head[key]}, that of the ledger {ledger[key]}", remedy)


def _check_record(report: CheckReport, paths: Paths, name: str, ledger: dict[str, Any] | None) -> None:
    """Compare a split's record with what was delivered from it: mostly two names of one file."""
    folder, remedy = paths.shards(name) / FINISHED, split_again(paths, name)
    for own, path in _delivered(paths, name).items():
        twin = folder / own
        if not is_present(twin):
            report.wrong(twin, "missing; the record of the split is not whole", remedy)
        elif is_present(path) and not path.samefile(twin) and not filecmp.cmp(path, twin, shallow=False):
            report.wrong(path, f"is not what the split recorded in {twin}", remedy)
    key = report.read_object(folder / "key.json", remedy)
    if key is None or ledger is None:
        return
    rows = [(row["path"], row["size"], row["state"], row["checksum"]) for row in ledger["files"]]
    head = {name: ledger[name] for name in ("data", "threshold")}
    # A file that the split itself set aside was staged before: its ledger no longer says so.
    if {name: key[name] for name in head} != head or (
        not ledger["quarantined"] and key["staged"] != digest(rows)
    ):
        report.wrong(folder / "key.json", "is not the key of this ledger", remedy)


def _check_files(report: CheckReport, paths: Paths, name: str, ledger: dict[str, Any]) -> None:
    """Compare the ledger's files with what was listed, and with the staged table where it is still there."""
    sizes = {row["path"]: row["size"] for row in ledger["files"]}
    listing = paths.manifest(name)
    remedy = f"{removing(listing)} && crpipe list {name}"
    with report.reading(listing, remedy):
        entries = read_manifest(listing)
        listed = {entry.path: entry.size for entry in entries}
        if len(listed) != len(entries):
            report.wrong(listing, "names a file twice", remedy)
        for path in sorted({*listed} ^ {*sizes}):
            where = "the ledger" if path in listed else "the list of files"
            report.wrong(listing, f"{path} is missing in {where}", remedy)
        for path in sorted({*listed} & {*sizes}):
            if listed[path] is not None and listed[path] != sizes[path]:
                report.wrong(listing, f"{path}: {listed[path]} bytes, the ledger says {sizes[path]}", remedy)
    _check_kept_listing(report, paths, name)
    staged = paths.staged(name)
    if is_present(staged):
        with report.reading(staged, removing(staged)):
            if {file.path: file.size for file in read_staged(staged)} != sizes:
                report.wrong(staged, "lists other files than the ledger", removing(staged))


def _check_kept_listing(report: CheckReport, paths: Paths, name: str) -> None:
    """Check the record's copy of the listing against the ledger."""
    record = SplitRecord.of(paths, name)
    kept, listing = record.folder / LISTING, paths.manifest(name)
    remedy = (
        f"cp {shlex.join(map(str, (listing, kept)))}" if is_present(listing) else split_again(paths, name)
    )
    if is_present(listing) and not is_present(kept):
        report.note(name, "the record of its split has no copy of the listing")
    if is_present(kept):
        with report.reading(kept, remedy):
            if record.differs(read_manifest(kept)):
                report.wrong(kept, "names other files than the ledger", remedy)


def _check_unsplit(report: CheckReport, paths: Paths, name: str) -> None:
    """Check the raw copies of a staged range; name what is not judged."""
    listing, staged, raw = paths.manifest(name), paths.staged(name), paths.raw(name)
    if not is_present(listing) and not is_present(staged):
        report.note(name, "not listed yet")
        return
    listed: set[str] = set()
    if is_present(listing):
        remedy = f"{removing(listing)} && crpipe list {name}"
        with report.reading(listing, remedy):
            listed = {entry.path for entry in read_manifest(listing)}
    if not is_present(staged):
        report.note(name, "listed, not staged yet")
        return
    remedy = f"{removing(staged)} && crpipe stage {name}"
    with report.reading(staged, remedy):
        files = read_staged(staged)
        if is_present(listing) and {file.path for file in files} != listed:
            report.wrong(staged, "lists other files than the list of the source", remedy)
        for file in files:
            if file.state == STAGED:
                # The other copies are verified: they stay.
                again = f"{removing(staged, raw / file.path)} && crpipe stage {name}"
                with report.reading(raw / file.path, again):
                    check_present(raw, file)
                    check_unchanged(raw, file)
                    report.counts.update(files=1, bytes=file.size)
    report.note(name, "staged, not split yet; the raw copies are whole, or named above")
