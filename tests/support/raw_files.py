"""Raw files in the muon simulation's schemas, ranges staged from them, and the data jobs over them."""

import json

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from crpipe.campaign.campaign import Campaign
from crpipe.campaign.readers import configured_reader
from crpipe.config.loading import load_config
from crpipe.core import checksums
from crpipe.core.paths import LARGE_ROLES, ROLES
from crpipe.core.text import NullProgress
from crpipe.events.shard_manifest import check_hashes, groups_of, open_manifest, read_layout, verify
from crpipe.events.shard_reader import Shards
from crpipe.split.export import export_shards
from crpipe.split.outliers import consolidate_outliers
from crpipe.split.parts import choose_threshold
from crpipe.split.split import split_range
from crpipe.workloads.muons.layout import BUNDLES, MUON, PRIMARY
from named import NAMED, READERS

NAME = "0000000-0000999"
DEPTHS = 5  # rows of one primary


def read_through(folder):
    """Check all hashes of a folder of shards, and read all events; return how many events and items."""
    totals, manifest, layout = verify(folder), open_manifest(folder, None), read_layout(folder)
    for entry in manifest.shards:
        check_hashes(folder, entry)
    for role in ROLES:
        for _ in groups_of(Shards(folder, role, layout), layout):
            pass
    return totals


def make_events(multiplicity, seed=0):
    """Columns and items in which each muon tells its event: x_m is the event's row, y_m its place."""
    rng = np.random.default_rng(seed)
    multiplicity = np.asarray(multiplicity, np.uint32)
    n, total = len(multiplicity), int(multiplicity.sum())
    rows = np.arange(n)
    columns = {
        "primary_major_id": np.full(n, 7 + seed, np.uint64),
        "primary_minor_id": (rows // DEPTHS).astype(np.uint64),
        "energy_gev": rng.uniform(1e3, 1e6, n).astype(np.float32),
        "zenith_rad": rng.uniform(0, 1, n).astype(np.float32),
        "mass_number": rng.choice([1, 4, 56], n).astype(np.float32),
        "depth_m": (1000 + 100 * (rows % DEPTHS)).astype(np.float32),
    }
    owner = np.repeat(rows, multiplicity)
    inside = np.arange(total) - np.repeat(np.cumsum(multiplicity) - multiplicity, multiplicity)
    inside %= 1_000_000  # y_m beyond that is impossible
    items = np.stack([rng.uniform(1, 1e3, total), owner, inside], axis=1).astype(np.float32)
    return columns, multiplicity, items


def nested(columns, multiplicity, items, primary=None, muon=None):
    """The converter's table; ``primary`` and ``muon`` name the values of its lists (missing ones are 0)."""
    primary = primary or [field.name for field in PRIMARY]
    muon = muon or [field.name for field in MUON]
    n, total = len(multiplicity), len(items)
    values = [np.asarray(columns.get(name, np.zeros(n)), np.float32) for name in primary]
    tracks = dict(zip([field.name for field in MUON], items.T, strict=True))
    tracks["time"] = np.where((items == 0).all(axis=1), 0, 5)  # 0 in a muon that stands for none
    tracks |= {name: np.repeat(columns[name], multiplicity) for name in muon if name not in tracks}
    muons = np.stack([np.asarray(tracks[name], np.float32) for name in muon], axis=1)
    starts = np.concatenate([[0], np.cumsum(multiplicity)]).astype(np.int32)
    arrays = {
        "primary": lists(np.stack(values, axis=1)),
        "muons": pa.ListArray.from_arrays(pa.array(starts), lists(muons)),
    }
    for name in BUNDLES.group:
        if name not in primary:
            arrays[name] = pa.array(columns[name])
    assert len(muons) == total
    return pa.table(arrays)


def lists(values):
    starts = np.arange(len(values) + 1, dtype=np.int32) * values.shape[1]
    return pa.ListArray.from_arrays(pa.array(starts), pa.array(np.ascontiguousarray(values).reshape(-1)))


def write_parquet(path, multiplicity, seed=0, row_group=1000, **layout):
    pq.write_table(nested(*make_events(multiplicity, seed), **layout), path, row_group_size=row_group)
    return path


def write_hdf5(path, multiplicity, seed=0, zeros_for_none=False):
    """The converter's HDF5 file, with a muon of zeros for each empty event if asked."""
    columns, counts, items = make_events(multiplicity, seed)
    ids = [columns[name].astype(np.float32) for name in BUNDLES.group]
    values = [columns[field.name] for field in PRIMARY]
    primaries = np.stack([*ids, *values[:3], np.full(len(counts), 9, np.float32), values[3]], axis=1)
    if zeros_for_none:
        empty = counts == 0
        items = np.insert(items, np.cumsum(counts, dtype=np.int64)[empty], 0, axis=0)
        counts = np.where(empty, 1, counts)
        time = np.where((items == 0).all(axis=1), 0, 5)
    else:
        time = np.full(len(items), 5)
    tags = [np.repeat(each, counts) for each in ids]
    with h5py.File(path, "w") as file:
        file["primaries"] = primaries.astype(np.float32)
        file["muons"] = np.stack([*tags, *items.T, time], axis=1).astype(np.float32)
        file["counts"] = counts.astype(np.int32)
    return path


def keys(root):
    """The keys of a campaign of one range with results under ``root``."""
    return (
        f"source.reader={READERS['bundles']}",
        f"train.workload={NAMED['train']['workload']}",
        f"results={root}/results",
        f"runs={root}/runs",
        "ranges.last=999",
        "split.outlier_above=20",
        "split.validation_fraction=0.3",
        "resources.split.cpus=1",
        "split.max_rejected=1",
    )


def campaign(root, *overrides):
    """A campaign of one range with results under ``root``; its raw files are not simulated."""
    return load_config((), (*keys(root), *overrides))


def raw_folder(config, name=NAME):
    folder = config.paths().raw(name)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def write_staged(config, name=NAME, quarantined=()):
    """Write the staged table of whatever is in the range's raw folder."""
    folder = config.paths().raw(name)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    rows = [
        {
            "path": str(path.relative_to(folder)),
            "uri": f"file://{path.name}",
            "size": path.stat().st_size,
            "mtime": None,
            "state": "staged",
            "reason": "",
            "checksum": checksums.of_file(path, "crc32c"),
            "algorithm": "crc32c",
            "verified": "copy-compare",
        }
        for path in files
    ]
    aside = {"size": 1, "mtime": None, "state": "quarantined", "reason": "short"}
    aside |= {"uri": "", "checksum": "", "algorithm": "", "verified": ""}
    rows += [{"path": path, **aside} for path in quarantined]
    write_rows(config.paths().staged(name), rows)


def write_rows(path, rows):
    """Write a staged table from its rows."""
    rows.sort(key=lambda row: row["path"])
    pq.write_table(pa.Table.from_pylist(rows), path)


def changed(config, **keys):
    """The configuration with other values: ``split={"max_rejected": 0.1}``."""
    sections = {name: getattr(config, name).model_copy(update=each) for name, each in keys.items()}
    return config.model_copy(update=sections)


def split(config, name=NAME, **keys):
    """Split one range; ``keys`` are changed in the configuration first."""
    split_range(Campaign.open(changed(config, **keys)), name, NullProgress())


def consolidate(config):
    consolidate_outliers(Campaign.open(config), NullProgress())


def choose(config):
    choose_threshold(Campaign.open(config), NullProgress())


def export(config, out, name=NAME, reader=True):
    """Export the outliers and the bulk of a range, in the raw files' schema or, without a reader, flat."""
    folders = [config.paths().shards(name), config.paths().outliers(name)]
    choice = configured_reader(config) if reader else None
    return export_shards(folders, out, choice, NullProgress())


def ledger_of(config, name=NAME):
    """The ledger of a range, as a tree."""
    return json.loads(config.paths().ledger(name).read_text())


def events_in(config, role, layout=BUNDLES, name=NAME):
    """The events of a role of a range, row group by row group."""
    paths = config.paths()
    folder = paths.outliers(name) if role in LARGE_ROLES else paths.shards(name)
    return list(groups_of(Shards(folder, role, layout), layout))


def product_bytes(config, name=NAME):
    """Every declared product of a split, as {name: bytes}."""
    paths = config.paths()
    table = paths.multiplicity(name)
    single = [paths.ledger(name), table, table.with_name(f"{name}.histogram.json")]
    found = [
        path for folder in (paths.shards(name), paths.outliers(name)) for path in folder.glob("[a-z]*.*")
    ]
    return {f"{path.parent.parent.name}/{path.name}": path.read_bytes() for path in [*single, *found]}
