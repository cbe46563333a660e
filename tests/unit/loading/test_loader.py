import contextlib
import json
import threading

import numpy as np
import pytest

from crpipe.core.errors import ShardError
from crpipe.events.batch import Cursor
from crpipe.events.shard_streams import RowStream
from crpipe.loading.loader import START, Loader
from damage import flip

RANDOM = np.random.default_rng(0)
SHARDS = [[RANDOM.poisson(3, 40).tolist() for _ in range(3)] for _ in range(2)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, write_shards):
    return write_shards(tmp_path_factory.mktemp("shards"), SHARDS)


@pytest.fixture
def own_folder(tmp_path, write_shards):
    return write_shards(tmp_path, SHARDS)


def load(folder, **options):
    return Loader(folder, "train", **{"batch_events": 50, "seed": (1, 2), "epochs": 1} | options)


def read(loader, start=START):
    with contextlib.closing(loader.batches(start)) as stream:
        return list(stream)


def ids(batches):
    return np.concatenate([events.columns["primary_minor_id"] for events, _ in batches])


def loader_threads():
    return [each for each in threading.enumerate() if each.name.startswith(("loader", "decode"))]


def test_every_event_comes_once_with_its_own_items(folder):
    loader = load(folder)
    assert (loader.events, loader.items) == (240, sum(sum(group) for shard in SHARDS for group in shard))
    batches = read(loader)
    assert len(batches) == loader.batches_per_epoch == 5
    assert sorted(ids(batches)) == list(range(240))
    for events, _ in batches:
        owner = np.repeat(events.columns["primary_minor_id"], events.multiplicity)
        assert np.array_equal(events.items[:, 0], owner)
        assert np.array_equal(events.items[:, 2], -owner.astype(np.float32))
        assert events.items.flags.c_contiguous
        assert events.items.flags.writeable


def test_cursors_lead_through_the_epochs(folder):
    cursors = [cursor for _, cursor in read(load(folder, batch_events=120, epochs=2))]
    assert cursors == [(0, 1), (1, 0), (1, 1), (2, 0)]


def test_events_of_all_row_groups_meet_in_early_batches(folder):
    first, _ = next(iter(read(load(folder, batch_events=80))))
    assert len(set(first.columns["primary_minor_id"] // 40)) >= 2
    assert np.any(np.diff(first.columns["primary_minor_id"].astype(int)) < 0)


def test_a_cursor_at_the_end_yields_nothing_and_one_beyond_is_refused(folder):
    assert read(load(folder), Cursor(1, 0)) == read(load(folder), Cursor(0, 5)) == []
    with pytest.raises(ShardError, match="epoch 0, batch 6 lies outside"):
        load(folder).batches(Cursor(0, 6))


def test_resume_reads_one_window_only(own_folder, monkeypatch):
    loader = load(own_folder, batch_events=10)
    *_, (expected, _) = read(loader)
    reads = []
    fill = RowStream.fill
    monkeypatch.setattr(
        RowStream, "fill", lambda self, rows, out: (reads.append(rows * len(out)), fill(self, rows, out))
    )
    ((last, _),) = read(loader, Cursor(0, loader.batches_per_epoch - 1))
    assert np.array_equal(last.items, expected.items)
    assert 0 < sum(reads) < 3 * loader.items / 4


def test_a_role_without_shards_has_no_batches(folder):
    loader = Loader(folder, "validation", batch_events=10, seed=(1,), epochs=2)
    assert (loader.events, loader.batches_per_epoch, read(loader)) == (0, 0, [])


def test_folders_of_different_layouts_are_refused(tmp_path, write_shards):
    folders = [write_shards(tmp_path / name, SHARDS) for name in "abc"]
    manifest = json.loads((folders[1] / "manifest.json").read_text())
    manifest["layout"]["events"][2]["unit"] = "TeV"
    (folders[1] / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ShardError, match=r"b/manifest.json: its layout differs from that of .*a, "):
        load(folders)


def test_a_file_that_was_replaced_is_found(tmp_path, write_shards):
    folders = [write_shards(tmp_path / name, SHARDS) for name in "ab"]
    loader = load(folders)
    write_shards(folders[1], [[[3, 4]], [[5]]])
    with pytest.raises(ShardError, match="the file was replaced while it was in use"):
        read(loader)


@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_prefetch_changes_nothing(folder, prefetch):
    assert np.array_equal(ids(read(load(folder, prefetch=prefetch))), ids(read(load(folder))))


def test_the_threads_end_with_the_generator(folder):
    with contextlib.closing(load(folder, batch_events=5).batches()) as stream:
        next(stream)
        names = {thread.name.split("_")[0] for thread in loader_threads()}
        assert names == {"loader", "decode"}
    assert loader_threads() == []


@pytest.mark.parametrize("part", ["events", "muons"])
def test_a_flipped_byte_is_found_while_reading_and_the_threads_end(tmp_path, write_shards, part):
    folders = [write_shards(tmp_path / name, SHARDS) for name in "ab"]
    flip(folders[1] / f"train-00001.{part}.parquet", 100)
    with pytest.raises(ShardError, match=f"b/train-00001.{part}.parquet: row group 0 cannot be read"):
        read(load(folders))
    assert loader_threads() == []
