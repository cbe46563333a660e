"""The data of a campaign: each range, its settings and side tables, and whether what is finished is whole."""

from __future__ import annotations

import filecmp
import shlex
from typing import TYPE_CHECKING, Any

from crpipe.campaign.duplicates import ALLOW, find_twins
from crpipe.campaign.ledger import read_tables
from crpipe.campaign.raw_files import (
    STAGED,
    check_present,
    check_unchanged,
    lease_folder,
    read_manifest,
    read_staged,
)
from crpipe.campaign.split_record import LISTING, SplitRecord
from crpipe.check.events import (
    check_histogram,
    check_ledger,
    check_repeated,
    check_role,
    check_table,
    read_folder,
    read_table,
)
from crpipe.check.findings import MALFORMED, deliver_again, removing, split_again
from crpipe.core.causes import is_present
from crpipe.core.files import digest, read_json
from crpipe.core.lease import is_held
from crpipe.core.paths import FINISHED, LARGE_ROLES, MANIFEST, PARTS
from crpipe.events.layout import Layout
from crpipe.source.positions import Positions, natural_order
from crpipe.split.scatter import known_columns

if TYPE_CHECKING:
    from pathlib import Path

    from crpipe.campaign.campaign import Campaign
    from crpipe.check.events import FolderEvents
    from crpipe.check.findings import CheckReport, Facts
    from crpipe.core.paths import Paths

LEASE = "lease"


def check_range(report: CheckReport, campaign: Campaign, facts: Facts, name: str) -> None:
    """Check one range as far as its data are finished."""
    paths = campaign.paths
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


# What all ranges share: the recorded keys, the layout, the threshold, side tables, numbered files.


def check_campaign_files(report: CheckReport, campaign: Campaign, facts: Facts) -> None:
    """Check the files that all ranges share."""
    paths = campaign.paths
    if not is_present(paths.campaign()) and not is_present(paths.layout()):
        report.note(str(paths.results), "no job has run yet")
        return
    # The first job of a campaign writes both, and `crpipe list` of any range is such a job.
    remedy = f"{removing(paths.campaign(), paths.layout())} && crpipe list {campaign.ranges[0]}"
    keys = report.read_object(paths.campaign(), remedy)
    with report.reading(paths.layout(), remedy):
        layout = Layout.from_description(read_json(paths.layout()))
        own = {name: value for name, value in (keys or {}).items() if name.startswith("layout.")}
        if keys is not None and layout.identity() != own:
            report.wrong(paths.layout(), "is not the layout of campaign.json", remedy)
        if facts.layout is not None and layout.describe() != facts.layout.describe():
            report.wrong(paths.layout(), "is not the layout of the shards", remedy)
    if keys is not None and facts.data != facts.recorded["data"] != "":
        report.wrong(paths.campaign(), "does not hold the keys that the shards were made with", remedy)
    _check_threshold(report, campaign, facts, keys or {})
    _check_tables(report, campaign)
    _check_positions(report, campaign)
    _check_twins(report, campaign)


def _check_twins(report: CheckReport, campaign: Campaign) -> None:
    """Find raw files of the same content in two ranges."""
    try:
        found = find_twins(campaign.paths, campaign.ranges)
    except MALFORMED:
        return  # reported with its range
    if found is None:
        return
    if campaign.config.ranges.duplicates == "allow":
        report.note(found.ranges[1], f"{found.describe()}, as {ALLOW} says")
    else:
        report.wrong(campaign.paths.ledger(found.ranges[1]), found.describe(), found.remedy())


def _check_threshold(report: CheckReport, campaign: Campaign, facts: Facts, keys: dict[str, Any]) -> None:
    """Compare the threshold of a quantile with that of the shards."""
    path = campaign.paths.threshold()
    if keys.get("split.quantile") is None or facts.threshold is None:
        return
    if facts.recorded["threshold"] != facts.threshold:
        names = keys["split.reference_ranges"] or [campaign.ranges[0]]
        # Ranges that are split have a table; of the others, the raw copies are needed for their split, too.
        stage = [f"crpipe stage {name}" for name in names if not is_present(campaign.paths.ledger(name))]
        remedy = " && ".join([removing(path), *stage, "crpipe threshold"])
        report.wrong(path, f"does not hold the threshold of the shards, {facts.threshold}", remedy)


def _check_tables(report: CheckReport, campaign: Campaign) -> None:
    record = campaign.paths.tables()
    remedy = f"{removing(record)} && crpipe tables"
    with report.reading(record, remedy):
        for row in read_tables(record).values():
            # The record stays: by its hashes another table is refused.
            report.has_bytes(record.parent / row.path, row.size, row.sha256, "crpipe tables")
            report.counts["tables"] += 1


def _check_positions(report: CheckReport, campaign: Campaign) -> None:
    paths = campaign.paths
    record, names = paths.positions(), paths.position_names()
    if not is_present(record) and not is_present(names):
        return
    remedy = f"{removing(record, names)} && crpipe list {campaign.ranges[0]}"
    row = report.read_object(record, remedy)
    with report.reading(names, remedy):
        found = Positions(record, names).read()
        if natural_order(found) != found or (row is not None and row["files"] != len(found)):
            report.wrong(names, "damaged: not the ordered names that positions.json counts", remedy)


def check_run_files(report: CheckReport, campaign: Campaign, facts: Facts) -> None:
    """Check the keys that the run recorded."""
    path = campaign.paths.run_config()
    trained = [link.name for link in campaign.chain.links if is_present(campaign.paths.receipt(link.name))]
    if trained:
        remedy = f"{removing(path)} && crpipe train {trained[0]}"
        if (
            report.read_object(path, remedy) is not None
            and facts.fingerprint != facts.recorded["fingerprint"]
        ):
            report.wrong(path, "does not hold the keys that the run was trained with", remedy)
