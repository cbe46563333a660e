"""One folder of shards: its manifest, the bytes of every file, and whose events they hold."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from crpipe.core.paths import CONSOLIDATED, MANIFEST
from crpipe.events.histograms import count_columns
from crpipe.events.layout import MULTIPLICITY, SOURCE_FILE, SOURCE_ROW
from crpipe.events.shard_manifest import layout_of, read_manifest
from crpipe.events.shard_reader import consistent, open_shard

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from crpipe.check.findings import CheckReport
    from crpipe.check.job import Facts
    from crpipe.events.layout import Layout

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
        pair = open_shard(folder, entry, found.layout)
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
    for name, histogram in counted.items():
        if histogram.describe() != described[name]:
            report.wrong(path, f"damaged: the histogram of {name} is not that of the training events", remedy)
