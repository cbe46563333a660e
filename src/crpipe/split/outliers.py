"""The outliers of all ranges, merged into shards of a chosen size with an index; each event exactly once.

Those of training, validation and test stay apart: a shard holds one role, and its name begins with it.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from crpipe.campaign.duplicates import refuse_twins
from crpipe.core.causes import is_present
from crpipe.core.errors import LedgerError, ShardError
from crpipe.core.files import atomic_write, digest, is_held_open, sha256, write_json
from crpipe.core.lease import lease
from crpipe.core.paths import CONSOLIDATED, HASHES, LARGE_ROLES, MANIFEST, Role
from crpipe.core.text import counted
from crpipe.events.batch import Events, regroup
from crpipe.events.layout import MULTIPLICITY, SOURCE_FILE, SOURCE_ROW, Layout
from crpipe.events.shard_manifest import check_hashes, groups_of, layout_of, open_manifest, verify
from crpipe.events.shard_reader import REMEDY, Shards
from crpipe.events.shard_records import ShardEntry, ShardManifest
from crpipe.events.shard_writer import OUTLIER_EVENTS, OUTLIER_ITEMS, write_shard

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from crpipe.campaign.campaign import Campaign
    from crpipe.core.text import Progress


INDEX = "index.parquet"
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class RangeOutliers:
    """The outliers of one range: its folder and manifest."""

    name: str
    folder: Path
    manifest: ShardManifest


@dataclass(slots=True)
class Index:
    """Rows of the index gathered so far: where each outlier came from and where it is now."""

    layout: Layout
    tables: list[pa.Table] = field(default_factory=list)

    def schema(self) -> pa.Schema:
        """Columns of the index."""
        kinds = {each.name: pa.from_numpy_dtype(np.dtype(each.dtype)) for each in self.layout.events}
        numbers = (MULTIPLICITY, "part", "position")
        columns = [
            ("range", pa.string()),
            ("destination", pa.string()),
            (SOURCE_FILE, pa.uint32()),
            (SOURCE_ROW, pa.uint32()),
        ]
        columns += [(name, kinds[name]) for name in self.layout.group]
        columns += [(name, pa.uint32()) for name in numbers]
        return pa.schema([pa.field(name, kind, nullable=False) for name, kind in columns])

    def add(self, name: str, role: Role, events: Events, part: int, position: int) -> None:
        """Add events of the range ``name`` that are in shard ``part`` of a role from ``position`` on."""
        places = np.arange(position, position + len(events), dtype=np.uint32)
        columns = [events.columns[each] for each in (SOURCE_FILE, SOURCE_ROW, *self.layout.group)]
        arrays = [pa.repeat(text, len(events)) for text in (name, role)]
        arrays += [*map(pa.array, columns), pa.array(events.multiplicity)]
        arrays += [pa.repeat(pa.scalar(part, pa.uint32()), len(events)), pa.array(places)]
        self.tables.append(pa.Table.from_arrays(arrays, schema=self.schema()))


def consolidate_outliers(campaign: Campaign, progress: Progress) -> None:
    """Merge the outliers of all ranges of the campaign, in the order of the ranges.

    The same inputs give the same bytes, however often and after whatever interruption. One group of items or
    one giant event is held at a time. Raise ShardError for a range that is missing, damaged or of another
    campaign, DataError for raw files of the same content in two ranges, unless they are allowed, LedgerError
    when events or items do not add up.
    """
    config, paths = campaign.config, campaign.paths
    if config.ranges.duplicates == "refuse":
        refuse_twins(paths, campaign.ranges)
    folder = paths.outliers(CONSOLIDATED)
    with lease(folder, say=progress.message):
        data = campaign.data
        inputs = list(_inputs(campaign, data))
        digests = {each.name: digest(each.manifest.as_json()) for each in inputs}
        if _is_done(folder, data, digests, config.outliers.shard_mib):
            progress.message(f"{folder}: already consolidated")
            return
        if is_present(folder / INDEX):
            for each in inputs:  # before anything is deleted that could not be merged again
                for entry in each.manifest.shards:
                    check_hashes(each.folder, entry)
        _clear(folder)
        _merge(folder, inputs, digests, config.outliers.shard_mib, progress)


def _inputs(campaign: Campaign, data: str) -> Iterator[RangeOutliers]:
    folders = {name: campaign.paths.outliers(name) for name in campaign.ranges}
    missing = [(name, folder) for name, folder in folders.items() if not is_present(folder / MANIFEST)]
    if missing:
        name, folder = missing[0]
        others = counted(len(missing) - 1, "more range")
        more = f", as are those of {others}" if missing[1:] else ""
        raise ShardError(
            f"{folder / MANIFEST}: missing{more}; run `crpipe split {name}` first, or leave the range out "
            "with ranges.skip"
        )
    for name, folder in folders.items():
        yield RangeOutliers(name, folder, open_manifest(folder, data))


def _is_done(folder: Path, data: str, inputs: Mapping[str, str], shard_mib: int) -> bool:
    """Return whether the folder holds the whole result of these inputs."""
    try:
        manifest = open_manifest(folder, data)
        made_from = manifest.inputs, manifest.shard_mib
        if made_from != (inputs, shard_mib) or not is_present(folder / INDEX):
            return False
        verify(folder)
    except ShardError:  # the inputs exist: what is damaged is made again
        return False
    return True


def _clear(folder: Path) -> None:
    (folder / MANIFEST).unlink(missing_ok=True)
    for path in folder.iterdir():
        if path.name != "lease" and not is_held_open(path):
            path.unlink()


def _merge(
    folder: Path, inputs: list[RangeOutliers], digests: Mapping[str, str], shard_mib: int, progress: Progress
) -> None:
    """Write the shards, the index and the manifest; ``digests``: of the inputs, by the names of ranges."""
    first = inputs[0].manifest
    layout = _common_layout(inputs)
    index = Index(layout)
    target = shard_mib * _MIB
    total = sum(each.manifest.totals()[1] for each in inputs)
    entries: list[ShardEntry] = []
    for role in LARGE_ROLES:
        for entry in _parts(folder, role, _all_groups(inputs, role, layout, target), target, index):
            entries.append(entry)
            done = sum(each.items for each in entries)
            progress.update("consolidate", done, total, counted(len(entries), "part"))
    expected = np.sum([each.manifest.totals() for each in inputs], axis=0).tolist()
    counts = [sum(entry.events for entry in entries), sum(entry.items for entry in entries)]
    if counts != expected:
        raise LedgerError(
            f"{folder}: {layout.count(*expected)} went in, {layout.count(*counts)} came out; this is a fault "
            "in crpipe: keep the files and report it"
        )
    with atomic_write(folder / INDEX) as part:
        pq.write_table(pa.concat_tables([index.schema().empty_table(), *index.tables]), part)
    manifest = ShardManifest(
        range=CONSOLIDATED,
        data=first.data,
        layout=first.layout,
        threshold=first.threshold,
        shards=tuple(entries),
        inputs=digests,
        shard_mib=shard_mib,
    )
    hashes = {INDEX: sha256(folder / INDEX), MANIFEST: digest(manifest.as_json())}
    write_json(folder / HASHES, hashes)
    manifest.write(folder / MANIFEST)


def _common_layout(inputs: list[RangeOutliers]) -> Layout:
    """Read the layout of all ranges from their manifests; raise ShardError when one has another."""
    first, *others = [(each, layout_of(each.manifest, each.folder)) for each in inputs]
    for each, layout in others:
        if layout.identity() != first[1].identity():
            raise ShardError(
                f"{each.folder / MANIFEST}: its layout is not that of {first[0].folder / MANIFEST}: one "
                f"of the two was made with another reader or is damaged; {REMEDY} (crpipe check {each.name})"
            )
    return first[1]


def _all_groups(
    inputs: list[RangeOutliers], role: Role, layout: Layout, target: int
) -> Iterator[tuple[str, Events]]:
    """Read every outlier of a role in order with the name of its range; each file's hash is checked first."""
    most = min(OUTLIER_ITEMS, target // (4 * len(layout.items)))
    for each in inputs:
        for entry in each.manifest.of_role(role):
            check_hashes(each.folder, entry)
        shards = Shards(each.folder, role, layout)
        for group in regroup(groups_of(shards, layout), OUTLIER_EVENTS, most):
            yield each.name, group


def _parts(
    folder: Path, role: Role, groups: Iterator[tuple[str, Events]], target: int, index: Index
) -> Iterator[ShardEntry]:
    """Write the groups of one role as parts: a part is full once its decoded size reaches the target."""
    for number in itertools.count():
        first = next(groups, None)
        if first is None:
            return
        filling = _until_full(itertools.chain([first], groups), role, number, target, index)
        yield write_shard(folder, f"{role}-{number:05d}", role, index.layout, filling)


def _until_full(
    groups: Iterator[tuple[str, Events]], role: Role, number: int, target: int, index: Index
) -> Iterator[Events]:
    size = position = 0
    for name, events in groups:
        index.add(name, role, events, number, position)
        position += len(events)
        size += events.items.nbytes + sum(column.nbytes for column in events.columns.values())
        yield events
        if size >= target:
            return
