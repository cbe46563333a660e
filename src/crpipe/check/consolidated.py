"""The consolidated outliers: made from the outliers of every range, each event once and in order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq

from crpipe.check.events import Columns, read_folder
from crpipe.check.findings import CheckReport, merge_again
from crpipe.core.causes import is_present
from crpipe.core.files import digest
from crpipe.core.lease import is_held
from crpipe.core.paths import CONSOLIDATED, LARGE_ROLES, MANIFEST
from crpipe.events.layout import MULTIPLICITY, SOURCE_FILE, SOURCE_ROW
from crpipe.events.shard_manifest import read_manifest
from crpipe.events.shard_reader import values_of
from crpipe.split.outliers import INDEX

if TYPE_CHECKING:
    from pathlib import Path

    from crpipe.campaign.campaign import Campaign
    from crpipe.check.events import FolderEvents
    from crpipe.check.findings import Facts
    from crpipe.core.paths import Role

_NUMBERS = (SOURCE_FILE, SOURCE_ROW, MULTIPLICITY)


def check_merged(report: CheckReport, campaign: Campaign, facts: Facts) -> None:
    """Check the consolidated outliers against those of the ranges."""
    folder, remedy = campaign.paths.outliers(CONSOLIDATED), merge_again(campaign.paths, CONSOLIDATED)
    if is_held(folder / "lease"):
        report.note(CONSOLIDATED, "a job works on it")
        return
    if not is_present(folder / MANIFEST):
        if (
            is_present(campaign.paths.receipt(campaign.chain.names[-1]))
            and not campaign.chain.links[-1].ranges
        ):
            report.wrong(folder / MANIFEST, "missing, though the outliers were trained on", remedy)
        else:
            report.note(CONSOLIDATED, "not consolidated yet")
        return
    found = read_folder(report, folder, LARGE_ROLES, facts, remedy, _wanted(facts))
    if found is None:
        return
    with report.reading(folder / MANIFEST, remedy):
        if found.manifest["range"] != CONSOLIDATED:
            report.wrong(folder / MANIFEST, f"is of the range {found.manifest['range']}", remedy)
        inputs = _check_inputs(report, campaign, found.manifest, remedy)
        if found.damaged:
            return
        with report.reading(folder / INDEX, remedy):
            expected = _from_ranges(campaign, facts, inputs)
            for role, (_, columns) in expected.items():
                if not _equal(columns, found.columns[role]):
                    report.wrong(
                        folder / MANIFEST, f"its events are not those of the ranges' {role}, in order", remedy
                    )
            ranges = [name for names, _ in expected.values() for name in names]
            _check_index(report, folder / INDEX, found, ranges, remedy)


def _wanted(facts: Facts) -> tuple[str, ...]:
    return tuple(each.name for each in facts.layout.events) if facts.layout else ()


def _check_inputs(
    report: CheckReport, campaign: Campaign, manifest: dict[str, Any], remedy: str
) -> tuple[str, ...]:
    """Compare the manifests that were merged with those of the ranges; return the ranges in order."""
    inputs, path = manifest["inputs"], campaign.paths.outlier_manifest(CONSOLIDATED)
    for name, made_from in inputs.items():
        folder = campaign.paths.outliers(name)
        if not is_present(folder / MANIFEST):
            report.note(name, "its outliers are not there to be compared with the consolidated ones")
        elif digest(read_manifest(folder, None)) != made_from:
            report.wrong(path, f"was made from other outliers of {name} than those of now", remedy)
    for name in campaign.ranges:
        if name not in inputs:
            report.note(name, "its outliers are not consolidated yet")
    return tuple(sorted(inputs))


def _from_ranges(
    campaign: Campaign, facts: Facts, names: tuple[str, ...]
) -> dict[Role, tuple[list[str], Columns]]:
    """Read the outliers of all ranges, by role in the order in which they are merged, with their ranges."""
    parts: dict[Role, list[tuple[str, Columns]]] = {role: [] for role in LARGE_ROLES}
    for name in names:
        # What is damaged there is reported with its range.
        own = read_folder(
            CheckReport(), campaign.paths.outliers(name), LARGE_ROLES, facts, "", _wanted(facts), hashes=False
        )
        if own is not None:
            for role, found in parts.items():
                found.append((name, own.columns[role]))
    return {
        role: ([name for name, part in found for _ in part[SOURCE_ROW]], _joined([part for _, part in found]))
        for role, found in parts.items()
    }


def _joined(parts: list[Columns]) -> Columns:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]} if parts else {}


def _equal(one: Columns, other: Columns) -> bool:
    return all(
        np.array_equal(one[name], other[name], equal_nan=one[name].dtype.kind == "f")
        for name in one.keys() & other.keys()
    ) and bool(one.keys() & other.keys())


def _check_index(
    report: CheckReport, path: Path, found: FolderEvents, ranges: list[str], remedy: str
) -> None:
    """Compare the index with the merged events: range, role, source, multiplicity, part and position."""
    columns = _joined([found.columns[role] for role in LARGE_ROLES])
    sizes = {role: [entry["events"] for entry in found.entries(role)] for role in LARGE_ROLES}
    places = {
        **{name: columns[name] for name in (*_NUMBERS, *found.layout.group) if name in columns},
        "part": np.concatenate([np.repeat(np.arange(len(own)), own) for own in sizes.values()]),
        "position": np.concatenate([np.arange(size) for own in sizes.values() for size in [0, *own]]),
    }
    roles = [role for role, own in sizes.items() for _ in range(sum(own))]
    with pq.ParquetFile(path) as file:
        index = file.read(use_threads=False)
    texts = {"range": ranges, "destination": roles}
    if any(index[name].to_pylist() != values for name, values in texts.items()) or not all(
        np.array_equal(values_of(index[name]), values) for name, values in places.items()
    ):
        report.wrong(path, "does not say where the merged events are", remedy)
