"""Shards on the disk: what is damaged is found, and their layout is what the manifest describes."""

import json

import numpy as np
import pytest

from crpipe.campaign.campaign import Campaign
from crpipe.core.errors import ShardError
from crpipe.events.batch import Events
from crpipe.events.shard_manifest import open_manifest, verify
from crpipe.events.shard_reader import Shards
from crpipe.events.shard_writer import write_shard
from crpipe.workloads.muons.layout import BUNDLES
from raw_files import (
    NAME,
    campaign,
    make_events,
    raw_folder,
    read_through,
    split,
    write_parquet,
    write_staged,
)

MULTIPLICITY = [0, 3, 25, 1, 0, 2] * 20


@pytest.fixture
def config(tmp_path):
    """A campaign of one split range."""
    config = campaign(tmp_path)
    write_parquet(raw_folder(config) / "a.parquet", MULTIPLICITY)
    write_staged(config)
    split(config)
    return config


def test_a_flipped_byte_is_found_wherever_it_is(config):
    folder = config.paths().shards(NAME)
    read_through(folder)
    rng = np.random.default_rng(0)
    for path in sorted(folder.glob("*.parquet")):
        good = path.read_bytes()
        for place in rng.integers(len(good), size=10):
            data = bytearray(good)
            data[place] ^= 1 << rng.integers(8)
            path.write_bytes(data)
            with pytest.raises(ShardError, match=path.name):
                read_through(folder)
        path.write_bytes(good[:-1])
        with pytest.raises(ShardError, match=path.name):
            verify(folder)
        path.write_bytes(good)


def test_a_manifest_of_another_campaign_is_refused(config):
    folder = config.paths().shards(NAME)
    assert open_manifest(folder, Campaign.open(config).data).as_json()["threshold"] == 20
    with pytest.raises(ShardError, match="made under other data keys"):
        open_manifest(folder, "0" * 16)
    (folder / "manifest.json").write_text("{}")
    with pytest.raises(ShardError, match="damaged .data is missing"):
        open_manifest(folder, None)
    (folder / "manifest.json").unlink()
    with pytest.raises(ShardError, match="missing"):
        open_manifest(folder, None)


def test_a_giant_outlier_spans_row_groups_and_a_bulk_event_never_does(tmp_path, monkeypatch):
    monkeypatch.setattr("crpipe.events.shard_writer.OUTLIER_ITEMS", 10)
    columns, multiplicity, items = make_events([0, 35, 2])
    columns |= {name: np.zeros(3, np.uint32) for name in ("source_file", "source_row")}
    events = Events(columns, multiplicity, items)
    common = {"range": NAME, "data": "", "layout": BUNDLES.describe(), "threshold": 1}
    for role, groups in (("train", 1), ("outliers", 4)):
        folder = tmp_path / role
        entry = write_shard(folder, f"{role}-00000", role, BUNDLES, [events])
        (folder / "manifest.json").write_text(json.dumps(common | {"shards": [entry.as_json()]}))
        assert read_through(folder) == (3, 37)
        assert Shards(folder, role, BUNDLES).pairs[0].items.groups == groups
