import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from crpipe.core.errors import ShardError
from crpipe.events.shard_reader import Shards, touched
from crpipe.workloads.muons.layout import BUNDLES
from damage import flip

SHARDS = [[[2, 0, 3], [1, 1]], [[4], [0, 0]]]


@pytest.fixture
def own_folder(tmp_path, write_shards):
    return write_shards(tmp_path, SHARDS)


def load(folder, role="train"):
    return Shards(folder, role, BUNDLES)


def test_intervals_that_a_span_touches():
    borders = np.array([0, 10, 10, 25])
    assert touched(borders, 0, 10) == (0, 1)
    assert touched(borders, 9, 11) == (0, 3)
    assert touched(borders, 10, 25) == (2, 3)
    assert touched(borders, 7, 7) == (0, 0)


def test_a_group_knows_the_rows_of_its_items(own_folder):
    shards = load(own_folder)
    group = shards.group(0, 1)
    assert group.item_rows.tolist() == [5, 6, 7]
    assert group.columns["primary_minor_id"].tolist() == [3, 4]
    items = np.empty((2, 3), np.float32)
    shards.items(0, 5, 7, items)
    assert items[:, 0].tolist() == [3, 4]


def test_multiplicities_of_all_shards_in_order(own_folder):
    assert load(own_folder).multiplicities().tolist() == [2, 0, 3, 1, 1, 4, 0, 0]


def test_items_reach_over_row_groups(tmp_path, write_shards):
    shards = load(write_shards(tmp_path, [[[2, 7, 1]]], items_per_group=3))
    items = np.empty((7, 3), np.float32)
    shards.items(0, 2, 9, items)
    assert items[:, 1].tolist() == list(range(7))


def test_only_the_role_asked_for_is_opened(own_folder):
    assert load(own_folder, "validation").pairs == []


def everything(folder):
    shards = load(folder)
    found = []
    for group in (shards.group(0, 0), shards.group(0, 1)):
        items = np.empty((group.item_rows[-1] - group.item_rows[0], 3), np.float32)
        shards.items(0, group.item_rows[0], group.item_rows[-1], items)
        found += [*group.columns.values(), group.multiplicity, items]
    return [values.tobytes() for values in found]


@pytest.mark.parametrize("part", ["events", "muons"])
def test_no_flipped_bit_anywhere_gives_other_data(own_folder, part):
    whole = everything(own_folder)
    path = own_folder / f"train-00000.{part}.parquet"
    data = path.read_bytes()
    refused = 0
    for position in range(0, len(data), 7):
        damaged = bytearray(data)
        damaged[position] ^= 1 << position % 8
        path.write_bytes(damaged)
        try:
            assert everything(own_folder) == whole  # a byte that carries no data
        except ShardError as error:
            assert path.stem in str(error)  # noqa: PT017 - either outcome is right
            refused += 1
    assert refused > len(data) / 7 / 2


def test_a_short_file_is_refused_at_once(own_folder):
    path = own_folder / "train-00000.muons.parquet"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ShardError, match=r"train-00000.muons.parquet: \d+ bytes, the manifest says \d+"):
        load(own_folder)


def test_a_missing_file_is_refused_at_once(own_folder):
    (own_folder / "train-00001.events.parquet").unlink()
    with pytest.raises(ShardError, match=r"train-00001.events.parquet: missing"):
        load(own_folder)


def test_a_damaged_footer_is_refused_at_once(own_folder):
    flip(own_folder / "train-00001.events.parquet", -2)
    with pytest.raises(ShardError, match=r"train-00001.events.parquet: the footer cannot be read"):
        load(own_folder)


def test_a_folder_without_manifest_is_refused(tmp_path):
    with pytest.raises(ShardError, match=r"manifest.json: missing"):
        load(tmp_path)


def change_manifest(folder, change):
    manifest = json.loads((folder / "manifest.json").read_text())
    change(manifest["shards"])
    (folder / "manifest.json").write_text(json.dumps(manifest))


def test_a_manifest_with_other_counts_is_refused(own_folder):
    change_manifest(own_folder, lambda shards: shards[0].update(items=1))
    with pytest.raises(ShardError, match=r"train-00000.muons.parquet: \d+ rows, the manifest says 1"):
        load(own_folder)


def test_a_manifest_without_a_key_is_refused(own_folder):
    change_manifest(own_folder, lambda shards: shards[0].pop("files"))
    with pytest.raises(ShardError, match="damaged .files is missing"):
        load(own_folder)


def test_items_of_another_shard_are_refused(tmp_path, write_shards):
    write_shards(tmp_path, [[[1, 2], [3]], [[2, 2], [2]]])
    (tmp_path / "train-00001.muons.parquet").rename(tmp_path / "train-00000.muons.parquet")
    size = (tmp_path / "train-00000.muons.parquet").stat().st_size
    change_manifest(tmp_path, lambda shards: shards.pop())
    change_manifest(tmp_path, lambda shards: shards[0]["files"]["muons"].update(size=size))
    with pytest.raises(ShardError, match=r"train-00000.events.parquet: row group 0 counts 3 items"):
        load(tmp_path).group(0, 0)


def test_row_groups_that_do_not_match_are_refused(tmp_path, write_shards):
    write_shards(tmp_path, [[[1, 2], [3]]])
    aligned = (tmp_path / "train-00000.events.parquet").read_bytes()
    write_shards(tmp_path, [[[1, 2], [3]]], items_per_group=1)
    (tmp_path / "train-00000.events.parquet").write_bytes(aligned)
    change_manifest(tmp_path, lambda shards: shards[0]["files"]["events"].update(size=len(aligned)))
    with pytest.raises(ShardError, match="2 row groups do not match the 6"):
        load(tmp_path)


def test_a_column_of_another_type_is_refused(own_folder):
    path = own_folder / "train-00000.muons.parquet"
    table = pq.read_table(path)
    wide = table.set_column(1, "x_m", table["x_m"].cast(pa.float64()))
    pq.write_table(wide, path)
    change_manifest(own_folder, lambda shards: shards[0]["files"]["muons"].update(size=path.stat().st_size))
    with pytest.raises(ShardError, match="train-00000.muons.parquet: no column x_m of float32"):
        load(own_folder)
