"""Shards on the disk: what is damaged is found, what is handed on is what came in."""

import json

import numpy as np
import pytest

from crpipe.core.errors import ShardError
from crpipe.core.files import digest
from crpipe.core.progress import Silent
from crpipe.events.batch import Events, concatenate
from crpipe.events.shard_manifest import read_manifest, verifiable, verify
from crpipe.events.shard_reader import Shards
from crpipe.events.shard_writer import write_shard
from crpipe.split.readers import READERS
from crpipe.split.split import split_range
from crpipe.workloads.muons.export.shards import export_shards
from crpipe.workloads.muons.layout import BUNDLES
from raw_files import NAME, campaign, make_events, raw_folder, write_parquet, write_staged

MULTIPLICITY = [0, 3, 25, 1, 0, 2] * 20


@pytest.fixture
def config(tmp_path):
    """A campaign of one split range."""
    config = campaign(tmp_path)
    write_parquet(raw_folder(config) / "a.parquet", MULTIPLICITY)
    write_staged(config)
    split_range(config, config.all_ranges()[0], Silent())
    return config


def test_a_flipped_byte_is_found_wherever_it_is(config):
    folder = config.paths().shards(NAME)
    verify(folder, deep=True)
    rng = np.random.default_rng(0)
    for path in sorted(folder.glob("*.parquet")):
        good = path.read_bytes()
        for place in rng.integers(len(good), size=10):
            data = bytearray(good)
            data[place] ^= 1 << rng.integers(8)
            path.write_bytes(data)
            with pytest.raises(ShardError, match=path.name):
                verify(folder, deep=True)
        path.write_bytes(good[:-1])
        with pytest.raises(ShardError, match=path.name):
            verify(folder, deep=False)
        path.write_bytes(good)


def test_a_manifest_of_another_campaign_is_refused(config):
    folder = config.paths().shards(NAME)
    assert read_manifest(folder, digest(config.data_keys()))["threshold"] == 20
    with pytest.raises(ShardError, match="made under other data keys"):
        read_manifest(folder, "0" * 16)
    (folder / "manifest.json").write_text("{}")
    with pytest.raises(ShardError, match="key data is missing"):
        read_manifest(folder, None)
    (folder / "manifest.json").unlink()
    with pytest.raises(ShardError, match="missing"):
        read_manifest(folder, None)


def test_which_folders_can_be_verified(config):
    paths = config.paths()
    made = [paths.shards(NAME), paths.outliers(NAME)]
    assert list(verifiable(config, [])) == list(verifiable(config, [NAME])) == made
    with pytest.raises(ShardError, match="missing"):
        list(verifiable(config, ["consolidated"]))


def test_a_giant_outlier_spans_row_groups_and_a_bulk_event_never_does(tmp_path, monkeypatch):
    monkeypatch.setattr("crpipe.events.shard_writer.OUTLIER_ITEMS", 10)
    columns, multiplicity, items = make_events([0, 35, 2])
    columns |= {name: np.zeros(3, np.uint32) for name in ("source_file", "source_row")}
    events = Events(columns, multiplicity, items)
    common = {"range": NAME, "data": "", "layout": "bundles", "threshold": 1}
    for role, groups in (("train", 1), ("outliers", 4)):
        folder = tmp_path / role
        entry = write_shard(folder, f"{role}-00000", role, BUNDLES, [events])
        (folder / "manifest.json").write_text(json.dumps(common | {"shards": [entry]}))
        assert verify(folder, deep=True) == (3, 37)
        assert Shards(folder, role, BUNDLES).pairs[0].items.footer.num_row_groups == groups


def test_export_gives_back_every_event_in_the_input_schema(config, tmp_path):
    paths = config.paths()
    out = tmp_path / "out"
    assert export_shards([paths.shards(NAME), paths.outliers(NAME)], out, Silent()) == len(MULTIPLICITY)
    read = [concatenate(list(READERS["bundles"].rows(path))) for path in sorted(out.iterdir())]
    events = concatenate(read)
    columns, multiplicity, items = make_events(MULTIPLICITY)
    assert sorted(events.multiplicity) == sorted(multiplicity)
    order = np.lexsort(events.items.T)
    assert np.array_equal(events.items[order], items[np.lexsort(items.T)])
    assert set(events.columns["energy_gev"]) == set(columns["energy_gev"])
