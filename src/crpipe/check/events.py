"""Where every event of a range is: the multiplicity table, the ledger and the shards say the same.

The table has a row for each event of the source. So each event is in exactly one place when the table is
whole, its sums are those of the ledger, and each role's shards hold exactly the events that it sends there.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from crpipe.campaign.ledger import Ledger, contents_of
from crpipe.campaign.raw_files import QUARANTINED
from crpipe.core.paths import CONSOLIDATED, DESTINATIONS, MANIFEST
from crpipe.events.histograms import count_columns
from crpipe.events.layout import MULTIPLICITY, SOURCE_FILE, SOURCE_ROW
from crpipe.events.shard_manifest import layout_of, read_manifest
from crpipe.events.shard_reader import consistent, open_shard, values_of
from crpipe.events.shard_records import ShardEntry
from crpipe.split.hashing import SHOWN, names_of
from crpipe.split.ledger import EDGES, SHOWN_REJECTED, histogram, staged_sums

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from crpipe.check.findings import CheckReport, Facts
    from crpipe.events.layout import Layout

_LEDGER = {
    "range",
    "data",
    "threshold",
    "files",
    "events",
    "items",
    "rejected",
    "repeated",
    "quarantined",
    "empty",
    "balanced",
    "staged",
}
# With a weight, with source.max_files, in newer ones, where the group columns look wrong.
_SOMETIMES = {"weights", "source_files", "contents", "doubtful_groups"}
_FILE = {"path", "size", "state", "reason", "checksum", "algorithm", "verified", "events", "items"}
_SHOWN = 3  # events that a finding names
_ROW_BITS = np.uint64(32)


@dataclass(frozen=True, slots=True)
class EventTable:
    """The multiplicity table of a range.

    keys: [N] source file and row of each event as one number, ascending. columns: the rest, [N] each.
    destinations: [N] place in DESTINATIONS. reasons: of rejected events, in their order.
    """

    path: Path
    keys: NDArray[np.uint64]
    columns: Columns
    destinations: NDArray[np.int32]
    reasons: list[str]

    @property
    def files(self) -> NDArray[np.int64]:
        """Source file of each event: [N]."""
        return (self.keys >> _ROW_BITS).astype(np.int64)


def keys_of(columns: Columns) -> NDArray[np.uint64]:
    """Join source file and row of events into one number each: [N]."""
    return (columns[SOURCE_FILE].astype(np.uint64) << _ROW_BITS) | columns[SOURCE_ROW].astype(np.uint64)


def read_table(path: Path, known: Sequence[str]) -> EventTable:
    """Read a multiplicity table; known: the event columns that it repeats."""
    names = [SOURCE_FILE, SOURCE_ROW, *known, MULTIPLICITY]
    with pq.ParquetFile(path, read_dictionary=["destination", "reason"]) as file:
        table = file.read([*names, "destination", "reason"], use_threads=False)
    columns = {name: values_of(table[name]) for name in names}
    places = pc.index_in(table["destination"].cast(pa.string()), value_set=pa.array(DESTINATIONS))
    destinations = values_of(pc.fill_null(places, -1))
    rejected = pa.array(destinations == DESTINATIONS.index("rejected"))
    reasons = table["reason"].filter(rejected).cast(pa.string()).to_pylist()
    return EventTable(path, keys_of(columns), columns, destinations, reasons)


def check_table(report: CheckReport, table: EventTable, ledger: Mapping[str, Any], remedy: str) -> bool:
    """Compare the table with the ledger; return whether it has the rows of each file from 0 on, once."""
    rows = (table.keys & np.uint64(0xFFFFFFFF)).astype(np.int64)
    files = table.files
    listed = ledger["files"]
    if len(table.keys) and (
        files[-1] >= len(listed) or (table.keys[1:] <= table.keys[:-1]).any() or table.destinations.min() < 0
    ):
        report.wrong(table.path, "damaged: its events are not in the order of the source, each once", remedy)
        return False
    starts = np.searchsorted(files, np.arange(len(listed) + 1))
    if (rows != np.arange(len(rows)) - starts[files]).any():
        report.wrong(table.path, "damaged: rows of a source file are missing", remedy)
        return False
    multiplicity = table.columns[MULTIPLICITY].astype(np.int64)
    items = np.concatenate([[0], np.cumsum(multiplicity)])[starts]
    for row, events, count in zip(listed, np.diff(starts), np.diff(items), strict=True):
        if (row["events"], row["items"]) != (events, count):
            report.wrong(
                table.path,
                f"{row['path']}: holds {events} events with {count} items, the ledger says {row['events']} "
                f"with {row['items']}",
                remedy,
            )
    empty = int((multiplicity == 0).sum())
    if ledger["empty"] != empty:
        report.wrong(table.path, f"holds {empty} events without items, the ledger {ledger['empty']}", remedy)
    sums = {
        "events": np.bincount(table.destinations, minlength=len(DESTINATIONS)),
        "items": np.bincount(table.destinations, multiplicity, minlength=len(DESTINATIONS)),
    }
    for kind, found in sums.items():
        for name, count in zip(DESTINATIONS, found.tolist(), strict=True):
            if ledger[kind][name] != count:
                report.wrong(
                    table.path, f"sends {count:.0f} {kind} to {name}, the ledger {ledger[kind][name]}", remedy
                )
    _check_rejected(report, table, ledger, multiplicity, remedy)
    return True


def _check_rejected(
    report: CheckReport,
    table: EventTable,
    ledger: Mapping[str, Any],
    multiplicity: NDArray[np.int64],
    remedy: str,
) -> None:
    places = np.flatnonzero(table.destinations == DESTINATIONS.index("rejected"))[:SHOWN_REJECTED]
    rows = (table.keys & np.uint64(0xFFFFFFFF)).astype(np.int64)
    expected = [
        {
            "file": ledger["files"][table.files[place]]["path"],
            "row": int(rows[place]),
            "reason": reason,
            "items": int(multiplicity[place]),
        }
        for place, reason in zip(places, table.reasons[: len(places)], strict=True)
    ]
    if ledger["rejected"] != expected:
        report.wrong(table.path, "its rejected events are not those of the ledger", remedy)


def check_ledger(report: CheckReport, path: Path, ledger: Mapping[str, Any], remedy: str) -> None:
    """Check that a ledger's own sums add up."""
    whole, files = Ledger.from_json(ledger), ledger["files"]
    if {*ledger} - _SOMETIMES != _LEDGER or any({*row} != _FILE for row in files):
        report.wrong(path, "damaged: lacks keys, or has others", remedy)
    sums = {kind: sum(row[kind] for row in files) for kind in ("events", "items")}
    listed = {kind: ledger[kind]["listed"] for kind in sums}
    aside = sum(row["state"] == QUARANTINED for row in files)
    if not (ledger["balanced"] is True and whole.is_balanced() and sums == listed):
        report.wrong(path, "its sums do not balance", remedy)
    if whole.staged != staged_sums(whole.files):
        report.wrong(path, "its sums of staged files are not those of its files", remedy)
    if aside != ledger["quarantined"]:
        report.wrong(path, f"counts {ledger['quarantined']} files set aside, and lists {aside}", remedy)
    if whole.contents not in {None, contents_of(whole.files)}:
        report.wrong(path, "its contents are not those of its files", remedy)
    if [row["path"] for row in files] != sorted({row["path"] for row in files}):
        report.wrong(path, "names a source file twice, or not in order", remedy)


def check_repeated(
    report: CheckReport, path: Path, ledger: Mapping[str, Any], layout: Layout | None, remedy: str
) -> None:
    """Check what a ledger says of events that occur twice, as far as it shows without comparing them."""
    found, files = ledger["repeated"], {row["path"]: row["events"] for row in ledger["files"]}
    sound = {*found} == {"columns", "events", "first"} and (
        layout is None or found["columns"] == list(names_of(layout))
    )
    sound = sound and 0 <= found["events"] <= ledger["events"]["listed"]
    sound = sound and len(found["first"]) == min(found["events"], SHOWN)
    if not sound or any(
        not 0 <= row[number] < files.get(row[file], 0)
        for row in found["first"]
        for file, number in (("file", "row"), ("same_as", "same_row"))
    ):
        report.wrong(path, "damaged: what it says of repeated events cannot be", remedy)


def check_histogram(
    report: CheckReport,
    path: Path,
    table: EventTable,
    ledger: Mapping[str, Any],
    weight: str,
    remedy: str,
) -> None:
    """Count the histogram of the multiplicities again, and the sum of the weights."""
    found = report.read_object(path, remedy)
    if found is None:
        return
    multiplicity = table.columns[MULTIPLICITY]
    if found["edges"] != EDGES.tolist() or found["events"] != histogram(multiplicity).tolist():
        report.wrong(path, "is not the histogram of the multiplicity table", remedy)
    if weight:
        values = table.columns[weight].astype(np.float64)
        values = np.where(np.isfinite(values), values, 0.0)
        rounding = 1e-9 * float(np.abs(values).sum())  # sums depend on their order
        if not np.allclose(histogram(multiplicity, values), found["weights"], rtol=0, atol=rounding):
            report.wrong(path, "its weights are not those of the multiplicity table", remedy)
        chosen = {name: table.destinations == place for place, name in enumerate(DESTINATIONS)}
        sums = {name: float(values[mask].sum()) for name, mask in chosen.items()}
        for name, total in (sums | {"listed": float(values.sum())}).items():
            if not math.isclose(total, ledger["weights"][name], rel_tol=0, abs_tol=rounding):
                own = ledger["weights"][name]
                report.wrong(path, f"the weights of {name} add up to {total}, the ledger says {own}", remedy)


def check_role(
    report: CheckReport,
    table: EventTable,
    folder: FolderEvents,
    role: str,
    ledger: Mapping[str, Any],
    place: Path,
    remedy: str,
) -> None:
    """Compare the events in the shards of a role with those that the table sends there, one by one."""
    entries = folder.entries(role)
    for kind in ("events", "items"):
        count = sum(entry[kind] for entry in entries)
        if count != ledger[kind][role]:
            report.wrong(place, f"lists {count} {kind} of {role}, the ledger {ledger[kind][role]}", remedy)
    if role in folder.damaged:
        return
    chosen = table.destinations == DESTINATIONS.index(role)
    columns = folder.columns[role]
    files, rows = columns[SOURCE_FILE].astype(np.int64), columns[SOURCE_ROW].astype(np.int64)
    starts = np.searchsorted(table.files, np.arange(len(ledger["files"]) + 1))
    known = files < len(ledger["files"])
    known[known] = rows[known] < np.diff(starts)[files[known]]
    # Rows of a file follow each other from 0 on, so an event's place in the table needs no search.
    places = starts[files[known]] + rows[known]
    times = np.bincount(places, minlength=len(table.keys))
    elsewhere = np.flatnonzero((times > 0) & ~chosen)
    faults = {
        "missing": table.keys[chosen & (times == 0)],
        "there twice": table.keys[chosen & (times > 1)],
        "there, though the multiplicity table does not send them there": np.concatenate(
            [table.keys[elsewhere], keys_of(columns)[~known]]
        ),
    }
    for fault, keys in faults.items():
        if len(keys):
            report.wrong(place, f"{role}: {len(keys)} events are {fault}: {_named(keys, ledger)}", remedy)
    for name in table.columns.keys() & columns.keys() - {SOURCE_FILE, SOURCE_ROW}:
        own, theirs = columns[name][known], table.columns[name][places]
        if not np.array_equal(own, theirs, equal_nan=own.dtype.kind == "f"):
            report.wrong(place, f"{role}: {name} is not that of the multiplicity table", remedy)
    report.counts["events"] += int((times[chosen] == 1).sum())


def _named(keys: NDArray[np.uint64], ledger: Mapping[str, Any]) -> str:
    """Name the first events by source file and row."""
    files = ledger["files"]
    names = []
    for key in keys[:_SHOWN].tolist():
        number, row = key >> 32, key & 0xFFFFFFFF
        names.append(f"{files[number]['path'] if number < len(files) else f'file {number}'} row {row}")
    return ", ".join(names) + (", …" if len(keys) > _SHOWN else "")


# One folder of shards: its manifest, the bytes of every file, and whose events they hold.


_KEYS = {"range", "data", "layout", "threshold", "shards"}
_MERGED = {"inputs", "shard_mib"}
Columns = dict[str, "NDArray[Any]"]


@dataclass(slots=True)
class FolderEvents:
    """The events of a folder, by role.

    columns: of each role source_file, source_row, multiplicity and those that were asked for, [N] each, in
    the order of the manifest. damaged: roles of which a shard cannot be read.
    """

    manifest: dict[str, Any]
    layout: Layout
    columns: dict[str, Columns] = field(default_factory=dict)
    damaged: set[str] = field(default_factory=set)

    def entries(self, role: str) -> list[dict[str, Any]]:
        """List the shards of a role."""
        return [entry for entry in self.manifest["shards"] if entry["role"] == role]


def read_folder(
    report: CheckReport,
    folder: Path,
    roles: tuple[str, ...],
    facts: Facts,
    remedy: str,
    wanted: tuple[str, ...] = (),
    *,
    hashes: bool = True,
) -> FolderEvents | None:
    """Check a folder of shards and read the columns that say whose events they hold.

    wanted: more event columns to read. hashes: whether the bytes are hashed, which is once enough.
    None where the manifest cannot be used.
    """
    path = folder / MANIFEST
    with report.reading(path, remedy):
        manifest = read_manifest(folder, None)
        layout = layout_of(manifest, folder)
        found = FolderEvents(manifest, layout)
        _check_head(report, path, found, facts, remedy)
        names = Counter(entry["name"] for entry in manifest["shards"])
        for name, times in names.items():
            if times > 1:
                report.wrong(path, f"damaged: names the shard {name} {times} times", remedy)
        parts: dict[str, list[Columns]] = {role: [] for role in roles}
        for entry in manifest["shards"]:
            if entry["role"] not in roles:
                report.wrong(path, f"damaged: {entry['name']} has the role {entry['role']!r}", remedy)
                continue
            columns = None
            if not hashes or _has_bytes(report, folder, entry, layout, remedy):
                columns = _read_shard(report, folder, entry, found, remedy, wanted)
            if columns is None:
                found.damaged.add(entry["role"])
            else:
                parts[entry["role"]].append(columns)
        found.columns = {role: _joined(rows, layout, wanted) for role, rows in parts.items()}
        _check_histograms(report, path, found, remedy)
        return found
    return None


def _check_head(report: CheckReport, path: Path, found: FolderEvents, facts: Facts, remedy: str) -> None:
    manifest = found.manifest
    known = _KEYS | (_MERGED if manifest["range"] == CONSOLIDATED else {"histograms"})
    if {*manifest} - known:
        report.wrong(path, f"damaged: has the unknown key {min({*manifest} - known)}", remedy)
    if facts.data and manifest["data"] != facts.data:
        report.wrong(
            path, f"made under other keys ({manifest['data']}, campaign.json has {facts.data})", remedy
        )
    if facts.threshold is not None and manifest["threshold"] != facts.threshold:
        report.wrong(
            path, f"the threshold is {manifest['threshold']}, that of the campaign {facts.threshold}", remedy
        )
    if facts.layout is not None and manifest["layout"] != facts.layout.describe():
        report.wrong(path, "its layout is not that of layout.json", remedy)


def _read_shard(
    report: CheckReport,
    folder: Path,
    entry: dict[str, Any],
    found: FolderEvents,
    remedy: str,
    wanted: tuple[str, ...],
) -> Columns | None:
    """Read the event columns of a shard; None where that is not possible."""
    with report.reading(folder / f"{entry['name']}.events.parquet", remedy):
        pair = open_shard(folder, ShardEntry.from_json(entry), found.layout)
        names = [SOURCE_FILE, SOURCE_ROW, MULTIPLICITY, *wanted]
        names += [name for name in found.manifest.get("histograms", {}) if name not in names]
        groups = []
        for group in range(pair.events.groups):
            groups.append(pair.events.read(group, names))
            consistent(pair, group, groups[-1][MULTIPLICITY])
        return {name: np.concatenate([each[name] for each in groups]) for name in names} if groups else {}
    return None


def _has_bytes(report: CheckReport, folder: Path, entry: dict[str, Any], layout: Layout, remedy: str) -> bool:
    """Hash both files of a shard."""
    files = entry["files"]
    paths = {part: folder / f"{entry['name']}.{part}.parquet" for part in ("events", layout.item)}
    sound = [
        report.has_bytes(path, files[part]["size"], files[part]["sha256"], remedy)
        for part, path in paths.items()
    ]
    return all(sound)


def _joined(parts: list[Columns], layout: Layout, wanted: tuple[str, ...]) -> Columns:
    """Join the columns of several shards; of none, columns without rows."""
    kinds = {each.name: each.dtype for each in layout.events}
    names = {name: kinds[name] for name in wanted}
    names |= dict.fromkeys((SOURCE_FILE, SOURCE_ROW, MULTIPLICITY), "uint32")
    filled = [part for part in parts if part]
    if not filled:
        return {name: np.empty(0, kind) for name, kind in names.items()}
    return {name: np.concatenate([part[name] for part in filled]) for name in filled[0]}


def _check_histograms(report: CheckReport, path: Path, found: FolderEvents, remedy: str) -> None:
    """Count the histograms of the training events again."""
    described = found.manifest.get("histograms", {})
    if not described or "train" in found.damaged:
        return
    binnings = {name: (each["low"], each["high"], each["bins"]) for name, each in described.items()}
    columns = found.columns["train"]
    empty = {name: np.empty(0) for name in binnings}
    counted = count_columns({**empty, **columns}, binnings)
    for name, found_now in counted.items():
        if found_now.describe() != described[name]:
            report.wrong(path, f"damaged: the histogram of {name} is not that of the training events", remedy)
