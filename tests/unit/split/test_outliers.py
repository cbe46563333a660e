"""Consolidated outliers: every event of every range once, the same bytes after any interruption."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from crpipe.core.errors import DataError, ShardError
from crpipe.core.paths import CONSOLIDATED
from crpipe.events.shard_manifest import groups_of, read_manifest, verify
from crpipe.events.shard_reader import Shards
from crpipe.workloads.muons.layout import BUNDLES
from raw_files import campaign, consolidate, raw_folder, split, suggest, write_parquet, write_staged

MULTIPLICITIES = ([1, 30, 2, 21, 0], [5, 6, 7], [100_000, 3, 70_000, 400])
SOURCE = ("source_file", "source_row")


@pytest.fixture
def config(tmp_path):
    """A campaign of three split ranges; the second has no outliers."""
    config = campaign(tmp_path, "ranges.last=2999", "outliers.shard_mib=1")
    for number, (each, multiplicity) in enumerate(zip(config.all_ranges(), MULTIPLICITIES, strict=True)):
        write_parquet(raw_folder(config, str(each)) / "a.parquet", multiplicity, seed=number)
        write_staged(config, str(each))
        split(config, str(each))
    return config


def files_of(config):
    folder = config.paths().outliers(CONSOLIDATED)
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "lease"}


def events_in(folder):
    return list(groups_of(Shards(folder, "outliers", BUNDLES), BUNDLES))


def test_every_outlier_once_and_found_by_the_index(config):
    consolidate(config)
    folder = config.paths().outliers(CONSOLIDATED)
    assert verify(folder, deep=True) == (5, 170_451)
    manifest = read_manifest(folder, None)
    assert (manifest["range"], len(manifest["shards"])) == (CONSOLIDATED, 2)
    merged = events_in(folder)
    kept = [group for each in config.all_ranges() for group in events_in(config.paths().outliers(str(each)))]
    assert np.array_equal(np.concatenate([g.items for g in merged]), np.concatenate([g.items for g in kept]))
    ranges = [str(config.all_ranges()[index]) for index in (0, 0, 2, 2, 2)]
    index = pq.read_table(folder / "index.parquet").to_pydict()
    assert index["range"] == ranges
    assert index["multiplicity"] == [30, 21, 100_000, 70_000, 400]
    for row, part in enumerate(index["part"]):
        events = pq.read_table(folder / f"part-{part:05d}.events.parquet").slice(index["position"][row], 1)
        assert [events[name][0].as_py() for name in SOURCE] == [index[name][row] for name in SOURCE]


def test_again_and_after_any_interruption_the_same_bytes(config):
    consolidate(config)
    expected = files_of(config)
    folder = config.paths().outliers(CONSOLIDATED)
    for name in expected:
        (folder / name).unlink()
        (folder / f".{name}.part").write_bytes(b"half")
        consolidate(config)
        assert files_of(config) == expected


def test_a_changed_range_is_merged_again(config):
    consolidate(config)
    last = config.all_ranges()[-1]
    write_parquet(raw_folder(config, str(last)) / "b.parquet", [50])
    write_staged(config, str(last))
    split(config, str(last))
    consolidate(config)
    assert verify(config.paths().outliers(CONSOLIDATED), deep=True) == (3, 101)


def test_a_missing_range_is_named(config):
    last = str(config.all_ranges()[-1])
    config.paths().outlier_manifest(last).unlink()
    with pytest.raises(ShardError, match=f"{last}/manifest.json: missing.*crpipe split {last}"):
        consolidate(config)


def test_a_damaged_input_is_named(config):
    path = config.paths().outliers(str(config.all_ranges()[0])) / "outliers-00000.muons.parquet"
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(data)
    with pytest.raises(ShardError, match=r"outliers-00000\.muons\.parquet: damaged"):
        consolidate(config)
    assert not config.paths().outlier_manifest(CONSOLIDATED).exists()


def test_no_outliers_at_all(tmp_path):
    config = campaign(tmp_path)
    write_parquet(raw_folder(config) / "a.parquet", [1, 2])
    write_staged(config)
    split(config)
    consolidate(config)
    manifest = json.loads(config.paths().outlier_manifest(CONSOLIDATED).read_text())
    assert manifest["shards"] == []
    index = pq.read_table(config.paths().outliers(CONSOLIDATED) / "index.parquet")
    assert len(index) == 0


def test_suggestions_follow_the_multiplicities(config, tmp_path):
    rows = [line.split() for line in suggest(config).splitlines()[1:-1]]
    thresholds = [int(row[0]) for row in rows]
    assert thresholds == sorted(thresholds)
    assert rows[-1][1] == "0.000%"
    with pytest.raises(DataError, match="no range is split yet"):
        suggest(campaign(tmp_path / "other"))
