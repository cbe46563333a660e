"""The data of a campaign: its recorded settings, each range, and the consolidated outliers.

Every file has the hash that the step recorded which wrote it; the events of a range are proved one by one.
"""

from __future__ import annotations

import shlex
from itertools import product
from typing import TYPE_CHECKING, Any

from crpipe.campaign.code import READER, SIMULATOR, WORKLOAD, changes, used_code
from crpipe.campaign.duplicates import ALLOW, find_twins
from crpipe.campaign.ledger import Ledger
from crpipe.campaign.raw_files import STAGED, RawFile, lease_folder, read_manifest, read_ready, read_staged
from crpipe.campaign.raw_proofs import check_present, check_unchanged
from crpipe.campaign.records import SkippedRange, read_tables
from crpipe.campaign.split_record import (
    BULK_SHARDS,
    FILES,
    HISTOGRAM,
    LEDGER,
    LISTING,
    OUTLIER_SHARDS,
    TABLE,
    SplitRecord,
)
from crpipe.check.events import EventTable, faults_of, name_events, read_events, read_table
from crpipe.check.findings import (
    MALFORMED,
    read_hashes,
    removing,
    split_again,
)
from crpipe.core.causes import is_present
from crpipe.core.files import digest, read_json
from crpipe.core.lease import is_held
from crpipe.core.paths import CONSOLIDATED, LARGE_ROLES, MANIFEST, PARTS, Paths, Role
from crpipe.core.records import NumberedFiles
from crpipe.core.text import counted
from crpipe.events.layout import Layout
from crpipe.events.shard_manifest import open_manifest
from crpipe.events.shard_records import ShardEntry, ShardManifest
from crpipe.source.positions import RecordedPositions, natural_order
from crpipe.split.outliers import INDEX

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from crpipe.campaign.campaign import Campaign
    from crpipe.check.findings import Agreed, CheckReport

LEASE = "lease"
_SHOWN = 3  # files that a finding names


def check_range(report: CheckReport, campaign: Campaign, agreed: Agreed, name: str) -> None:
    """Check one range as far as its data are finished."""
    paths, record = campaign.paths, SplitRecord.of(campaign.paths, name)
    if is_held(paths.shards(name) / LEASE) or is_held(lease_folder(paths.raw(name)) / LEASE):
        report.note(name, "a job works on it")
        return
    outputs = {
        TABLE: paths.multiplicity(name),
        HISTOGRAM: paths.histogram(name),
        LEDGER: paths.ledger(name),
        OUTLIER_SHARDS: paths.outlier_manifest(name),
        BULK_SHARDS: paths.shard_manifest(name),
    }
    again = split_again(paths, name)
    missing = [path for path in outputs.values() if not is_present(path)]
    if len(missing) == len(outputs) and not is_present(record.folder):
        if name in agreed.trained:
            what = "missing, though a finished link was trained on this range"
            report.error(paths.shard_manifest(name), what, again)
        _check_unsplit(report, campaign, name)
        return
    report.counts["ranges"] += 1
    # A finished split restores what is missing from its own record.
    remedy = f"crpipe split {name}" if _is_finished(record) else again
    for path in missing:
        report.error(path, "missing", remedy)
    _check_record(report, record, outputs, again)
    if outputs[LEDGER] in missing:
        return
    ledger = report.read(Ledger.read, outputs[LEDGER], again)
    if ledger is None:
        return
    with report.reading(outputs[LEDGER], again):
        _check_head(report, outputs[LEDGER], ledger, name, agreed, again)
        _check_listings(report, paths, record)
        table = None
        with report.reading(outputs[TABLE], again):
            if outputs[TABLE] not in missing:
                table = read_table(report, outputs[TABLE], ledger, again)
                report.counts["events"] += ledger.events.rejected if table else 0
        for folder, roles in ((paths.shards(name), PARTS), (paths.outliers(name), LARGE_ROLES)):
            if is_present(folder / MANIFEST):
                whole = _check_shards(report, folder, roles, name, agreed, again)
                _check_events(report, folder, whole, table, ledger, again)


def _is_finished(record: SplitRecord) -> bool:
    try:
        return record.is_whole()
    except MALFORMED:
        return False


def _check_record(report: CheckReport, record: SplitRecord, outputs: Mapping[str, Path], remedy: str) -> None:
    """Compare a split's record with its hashes, and with what was delivered from it: often the same files."""
    hashes = read_hashes(report, record.folder, FILES, record.name, remedy)
    for file in FILES:
        recorded, path = record.folder / file, outputs.get(file)
        if not is_present(recorded):
            report.error(recorded, "missing; the record of the split is not whole", remedy)
            continue
        if hashes:
            report.has_bytes(recorded, None, hashes.get(file, ""), remedy)
        if path is not None and report.is_other(path, recorded, remedy):
            report.error(path, f"is not what the split recorded in {recorded}", remedy)
    _check_kept_listing(report, record, remedy)


def _check_kept_listing(report: CheckReport, record: SplitRecord, remedy: str) -> None:
    """Compare the record's copy of the listing with the ledger: it has no hash, since it holds times."""
    kept, listing = record.folder / LISTING, record.listing
    if not is_present(kept):
        if is_present(listing) and is_present(record.folder):
            report.note(record.name, "the record of its split has no copy of the listing")
        return
    if is_present(listing):
        remedy = f"cp {shlex.join(map(str, (listing, kept)))}"
    with report.reading(kept, remedy):
        if record.changes(read_manifest(kept)):
            report.error(kept, "names other files than the ledger", remedy)


def _check_listings(report: CheckReport, paths: Paths, record: SplitRecord) -> None:
    """Compare what was listed, and what is staged where that is still known, with the files of the ledger."""
    listing, staged = record.listing, paths.staged(record.name)
    remedy = f"{removing(listing)} && crpipe list {record.name}"
    with report.reading(listing, remedy):
        if changes := record.changes(read_manifest(listing)):
            what = "; ".join(each.strip() for each in changes[:_SHOWN])
            report.error(listing, f"names other files than the ledger: {what}", remedy)
    with report.reading(staged, removing(staged)):
        if is_present(staged) and record.changes(read_staged(staged)):
            report.error(staged, "lists other files than the ledger", removing(staged))


def _check_head(
    report: CheckReport, path: Path, head: Ledger | ShardManifest, name: str, agreed: Agreed, remedy: str
) -> None:
    """Compare range, keys, threshold and layout of a ledger or a manifest with those of the campaign."""
    if head.range != name:
        report.error(path, f"is of the range {head.range}", remedy)
    if agreed.data and head.data != agreed.data:
        what = f"made under other keys ({head.data}, campaign.json has {agreed.data})"
        report.error(path, what, remedy)
    if agreed.threshold is not None and head.threshold != agreed.threshold:
        what = f"the threshold is {head.threshold}, that of the campaign {agreed.threshold}"
        report.error(path, what, remedy)
    if isinstance(head, ShardManifest) and agreed.layout and head.layout != agreed.layout:
        report.error(path, "its layout is not that of layout.json", remedy)


def _check_shards(
    report: CheckReport, folder: Path, roles: tuple[Role, ...], name: str, agreed: Agreed, remedy: str
) -> dict[str, list[ShardEntry]]:
    """Check a folder of shards against its manifest; return the entries of each role that is whole."""
    path = folder / MANIFEST
    with report.reading(path, remedy):
        manifest = open_manifest(folder, None)
        _check_head(report, path, manifest, name, agreed, remedy)
        whole: dict[str, list[ShardEntry]] = {role: [] for role in roles}
        for entry in manifest.shards:
            if entry.role not in roles:
                report.error(path, f"damaged: {entry.name} has the role {entry.role!r}", remedy)
                continue
            sound = True
            for part in ("events", manifest.layout["item"]):
                file, recorded = folder / f"{entry.name}.{part}.parquet", entry.files[part]
                sound &= report.has_bytes(file, recorded.size, recorded.sha256, remedy)
            if sound and entry.role in whole:
                whole[entry.role].append(entry)
            else:
                whole.pop(entry.role, None)
        return whole
    return {}


def _check_events(
    report: CheckReport,
    folder: Path,
    whole: Mapping[str, list[ShardEntry]],
    table: EventTable | None,
    ledger: Ledger,
    remedy: str,
) -> None:
    """Compare the events in the shards of each role with those that the multiplicity table sends there."""
    for role, entries in whole.items():
        for kind, counts in (("events", ledger.events), ("items", ledger.items)):
            count = sum(getattr(entry, kind) for entry in entries)
            if count != counts.of(role):
                what = f"lists {count} {kind} of {role}, the ledger {counts.of(role)}"
                report.error(folder / MANIFEST, what, remedy)
        if table is None:
            continue
        with report.reading(folder / MANIFEST, remedy):
            events = read_events([folder / f"{entry.name}.events.parquet" for entry in entries])
            faults = faults_of(table, role, events)
            report.counts["events"] += 0 if faults else len(events.files)
            for fault, places in faults.items():
                what = (
                    f"{role}: {counted(len(places), 'event')} {fault}: "
                    f"{name_events(table, places, ledger.files)}"
                )
                report.error(folder / MANIFEST, what, remedy)


# The consolidated outliers.


def check_consolidated(report: CheckReport, campaign: Campaign, agreed: Agreed) -> None:
    """Check that the consolidated outliers are whole, and were made from those of the ranges."""
    paths, last = campaign.paths, campaign.chain.links[-1]
    folder, path = paths.outliers(CONSOLIDATED), paths.outlier_manifest(CONSOLIDATED)
    remedy = f"{removing(path)} && crpipe consolidate"
    if is_held(folder / LEASE):
        report.note(CONSOLIDATED, "a job works on it")
        return
    if not is_present(path):
        if is_present(paths.receipt(last.name)) and not last.ranges:
            report.error(path, "missing, though the outliers were trained on", remedy)
        else:
            report.note(CONSOLIDATED, "not consolidated yet")
        return
    _check_shards(report, folder, LARGE_ROLES, CONSOLIDATED, agreed, remedy)
    hashes = read_hashes(report, folder, (INDEX, MANIFEST), CONSOLIDATED, remedy)
    with report.reading(path, remedy):
        manifest = open_manifest(folder, None)
        if hashes and hashes.get(MANIFEST) != digest(manifest.as_json()):
            report.error(path, "is not the manifest of the recorded hash", remedy)
        if hashes:
            report.has_bytes(folder / INDEX, None, hashes.get(INDEX, ""), remedy)
        elif not is_present(folder / INDEX):
            report.error(folder / INDEX, "missing", remedy)
        _check_inputs(report, campaign, manifest, remedy)


def _check_inputs(report: CheckReport, campaign: Campaign, manifest: ShardManifest, remedy: str) -> None:
    """Compare what was consolidated with the outliers of the ranges: their manifests, events and items."""
    path, inputs = campaign.paths.outlier_manifest(CONSOLIDATED), manifest.inputs or {}
    sources: list[ShardManifest] = []
    for name, made_from in inputs.items():
        folder = campaign.paths.outliers(name)
        if not is_present(folder / MANIFEST):
            report.note(name, "its outliers are not there to be compared with the consolidated ones")
            return
        sources.append(open_manifest(folder, None))
        if digest(sources[-1].as_json()) != made_from:
            report.error(path, f"was made from other outliers of {name} than those of now", remedy)
    for role, kind in product(LARGE_ROLES, ("events", "items")):
        consolidated, ranges = (
            sum(getattr(entry, kind) for each in manifests for entry in each.of_role(role))
            for manifests in ([manifest], sources)
        )
        if consolidated != ranges:
            report.error(path, f"lists {consolidated} {kind} of {role}, the ranges {ranges}", remedy)
    for name in sorted({*campaign.ranges} ^ {*inputs}):
        why = "not consolidated yet" if name in campaign.ranges else "consolidated, and it is no range now"
        report.note(name, f"its outliers are {why}")


# What is not split yet.


def _check_unsplit(report: CheckReport, campaign: Campaign, name: str) -> None:
    """Check the raw copies of a staged range, and what was made of them; name what is not checked."""
    paths = campaign.paths
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
            report.error(staged, "lists other files than the list of the source", remedy)
        for file in files:
            if file.state == STAGED:
                # The other copies are verified: they stay.
                again = f"{removing(staged, raw / file.path)} && crpipe stage {name}"
                _check_copy(report, raw, file, again)
    converted = campaign.config.source.convert and is_present(paths.converted(name))
    if converted:
        remedy = f"{removing(paths.converted(name))} && crpipe convert {name}"
        with report.reading(paths.converted(name), remedy):
            for file in read_ready(paths, campaign.config.source, name):
                if file.state == STAGED:
                    _check_copy(report, raw, file, f"crpipe convert {name}")
    how = "converted" if converted else "staged"
    report.note(name, f"{how}, not split yet; the raw files are as they were then, or named above")


def _check_copy(report: CheckReport, raw: Path, file: RawFile, remedy: str) -> None:
    """Check the bytes of what the reader would read of one file."""
    with report.reading(raw / file.ready.path, remedy):
        check_present(raw, file)
        check_unchanged(raw, file)
        report.counts.update(files=1, bytes=file.ready.size if file.ready.checksum else 0)


# What all ranges share: the recorded keys, the layout, the threshold, side tables, numbered files.


def check_campaign_files(report: CheckReport, campaign: Campaign, agreed: Agreed) -> None:
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
        recorded = {name: value for name, value in (keys or {}).items() if name.startswith("layout.")}
        if keys is not None and layout.identity() != recorded:
            report.error(paths.layout(), "is not the layout of campaign.json", remedy)
        if agreed.layout and layout.describe() != agreed.layout:
            report.error(paths.layout(), "is not the layout of the shards", remedy)
    if keys is not None and agreed.data != agreed.recorded["data"] != "":
        report.error(paths.campaign(), "does not hold the keys that the shards were made with", remedy)
    begun = any(is_present(paths.ledger(name)) for name in campaign.ranges)
    check_code(report, paths.data_code(), (READER, SIMULATOR), begun)
    _check_threshold(report, campaign, agreed, keys or {})
    _check_tables(report, campaign)
    _check_positions(report, campaign)
    _check_twins(report, campaign)
    for name in campaign.config.given_up():
        path = paths.skipped(name)
        record = report.read(SkippedRange.read, path, f"{removing(path)} && crpipe run")
        if record is not None:
            report.note(name, f"skipped, nothing of it is trained on: {record.describe()}")


def _check_twins(report: CheckReport, campaign: Campaign) -> None:
    """Find raw files of the same content in two ranges."""
    try:
        twins = find_twins(campaign.paths, campaign.ranges)
    except MALFORMED:
        return  # reported with its range
    if twins is None:
        return
    if campaign.config.ranges.duplicates == "allow":
        report.note(twins.ranges[1], f"{twins.describe()}, as {ALLOW} says")
    else:
        report.error(campaign.paths.ledger(twins.ranges[1]), twins.describe(), twins.remedy())


def _check_threshold(report: CheckReport, campaign: Campaign, agreed: Agreed, keys: dict[str, Any]) -> None:
    """Compare the threshold of a quantile with that of the shards."""
    path = campaign.paths.threshold()
    if keys.get("split.quantile") is None or agreed.threshold is None:
        return
    if agreed.recorded["threshold"] != agreed.threshold:
        names = keys["split.reference_ranges"] or [campaign.ranges[0]]
        # Ranges that are split have a table; of the others, the raw copies are needed for their split, too.
        stage = [f"crpipe stage {name}" for name in names if not is_present(campaign.paths.ledger(name))]
        remedy = " && ".join([removing(path), *stage, "crpipe threshold"])
        report.error(path, f"does not hold the threshold of the shards, {agreed.threshold}", remedy)


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
    row = report.read(NumberedFiles.read, record, remedy)
    with report.reading(names, remedy):
        files = RecordedPositions(record, names).read()
        if natural_order(files) != files or (row is not None and row.files != len(files)):
            report.error(names, "damaged: not the ordered names that positions.json counts", remedy)


def check_code(report: CheckReport, path: Path, keys: Collection[str], begun: bool) -> None:
    """Check the record of the code that read the data, or trained; note code that is another one now."""
    if begun and not is_present(path):
        report.note(str(path), "missing; from the next job on it says which code was used")
    with report.reading(path, removing(path)):
        used = used_code(path)
        if {*used} - {*keys}:
            report.error(path, f"damaged: names {', '.join(sorted(used))}", removing(path))
        for line in changes(used):
            report.note(str(path), line)


def check_run_files(report: CheckReport, campaign: Campaign, agreed: Agreed) -> None:
    """Check the keys and the code that the run recorded."""
    path = campaign.paths.run_config()
    trained = [link.name for link in campaign.chain.links if is_present(campaign.paths.receipt(link.name))]
    check_code(report, campaign.paths.run_code(), (WORKLOAD,), bool(trained))
    if trained:
        remedy = f"{removing(path)} && crpipe train {trained[0]}"
        if (
            report.read_object(path, remedy) is not None
            and agreed.fingerprint != agreed.recorded["fingerprint"]
        ):
            report.error(path, "does not hold the keys that the run was trained with", remedy)
