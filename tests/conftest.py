"""Fixtures of all tests: tiny shards whose every item names the event it belongs to."""

import json
import os
import sys

# Tests run beside each other, and threads that wait for a busy core spin: 171 CPU seconds instead of 101.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# The configuration of whoever starts the tests is none of theirs.
os.environ.pop("CRPIPE_CONFIG", None)

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from crpipe.core.files import sha256
from crpipe.workloads.muons.layout import BUNDLES

pytest_plugins = ("services", "long_tests", "integration.slurm.campaigns")

PARQUET = {
    "use_dictionary": False,
    "write_statistics": False,
    "use_byte_stream_split": True,
    "compression": "zstd",
    "compression_level": 1,
    "max_rows_per_page": 1 << 30,
    "write_page_checksum": True,
}


@pytest.fixture(autouse=True)
def shorter_looks(monkeypatch):
    """What is not there, or leased, in a test does not come late, but for the tests of that."""
    monkeypatch.setattr("crpipe.core.causes._SOON_S", 1.0)
    monkeypatch.setattr("crpipe.core.lease.WAIT_S", 0.0)


@pytest.fixture(autouse=True)
def one_thread():
    """A training in this process leaves as many threads as it asked for, which then wait for each other."""
    yield
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


def _table(columns):
    fields = [pa.field(name, pa.from_numpy_dtype(values.dtype), nullable=False) for name, values in columns]
    return pa.table([pa.array(values) for _, values in columns], schema=pa.schema(fields))


def _items(multiplicity, first_id):
    owner = np.repeat(np.arange(len(multiplicity)) + first_id, multiplicity)
    ends = np.cumsum(multiplicity)
    inside = np.arange(len(owner)) - np.repeat(ends - multiplicity, multiplicity)
    values = (owner, inside, -owner)
    return _table([(f.name, v.astype(np.float32)) for f, v in zip(BUNDLES.items, values, strict=True)])


def _events(multiplicity, first_id):
    ids = np.arange(len(multiplicity)) + first_id
    values = [ids.astype(np.uint64) // 4, ids.astype(np.uint64)]
    values += [(ids * scale + 1).astype(np.float32) for scale in (1.0, 1e-6, 1e-4, 0.5)]
    extra = [("multiplicity", multiplicity), ("source_file", ids * 0), ("source_row", ids)]
    columns = [(f.name, v) for f, v in zip(BUNDLES.events, values, strict=True)]
    return _table(columns + [(name, np.asarray(v, np.uint32)) for name, v in extra])


def _write_shard(folder, name, groups, first_id, items_per_group):
    """Write one shard: a list of multiplicities per events row group; item groups cut anywhere if asked."""
    paths = {part: folder / f"{name}.{part}.parquet" for part in ("events", "muons")}
    counts = []
    with (
        pq.ParquetWriter(paths["events"], _events(np.zeros(0, int), 0).schema, **PARQUET) as events,
        pq.ParquetWriter(paths["muons"], _items(np.zeros(0, int), 0).schema, **PARQUET) as muons,
    ):
        for group in groups:
            multiplicity = np.asarray(group, np.int64)
            events.write_table(_events(multiplicity, first_id), row_group_size=1 << 26)
            table = _items(multiplicity, first_id)
            step = items_per_group or max(len(table), 1)
            counts.append(max(1, -(-len(table) // step)))
            for start in range(0, counts[-1] * step, step):
                muons.write_table(table.slice(start, step), row_group_size=1 << 26)
            first_id += len(multiplicity)
        if items_per_group:
            events.add_key_value_metadata({"crpipe:groups": json.dumps(counts)})
    return {part: {"size": path.stat().st_size, "sha256": sha256(path)} for part, path in paths.items()}


@pytest.fixture(scope="session")
def write_shards():
    """Write a folder of shards: write(folder, [[multiplicities of a row group, …] of a shard, …]).

    Events are numbered through in ``primary_minor_id``; item (energy_gev, x_m, y_m) = (event, its place in
    the event, -event). ``items_per_group`` cuts the items into more row groups than the events, as in
    outlier shards. ``first_id`` is the number of the first event.
    """

    def write(folder, shards, role="train", items_per_group=0, first_id=0):
        folder.mkdir(parents=True, exist_ok=True)
        entries = []
        for number, groups in enumerate(shards):
            name = f"{role}-{number:05d}"
            files = _write_shard(folder, name, groups, first_id, items_per_group)
            events, items = sum(map(len, groups)), int(sum(map(sum, groups)))
            entries.append({"name": name, "role": role, "events": events, "items": items, "files": files})
            first_id += events
        manifest = {
            "range": "0000000-0000999",
            "data": "0" * 16,
            "layout": BUNDLES.describe(),
            "threshold": 50_000,
        }
        (folder / "manifest.json").write_text(json.dumps(manifest | {"shards": entries}))
        return folder

    return write


@pytest.fixture(scope="session")
def sound(tmp_path_factory):
    """A finished campaign of two ranges and the outliers, with an evaluation; copy it before a change."""
    from checked import FIRST, finished  # most tests need nothing of it

    campaign = finished(tmp_path_factory.mktemp("sound"))
    campaign.crpipe("evaluate", FIRST)
    return campaign
