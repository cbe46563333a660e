"""Checkpoints and snapshots certify themselves; what is damaged is never used and never overwritten."""

import pytest
import torch

from crpipe.errors import CheckpointError
from crpipe.train.store import FORMAT, Store, key_of, load, refuse_other_keys, verified


def state(value):
    return {"format": FORMAT, "keys": {"model.hidden": 64}, "weight": torch.full((3,), float(value))}


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path, key_of("0000000-0000999", "f", ""))


def test_a_checkpoint_comes_back_as_it_was(store):
    saved = store.save_checkpoint(state(7))
    found = store.checkpoint(print)
    assert found == saved
    assert torch.equal(load(found.path)["weight"], torch.full((3,), 7.0))


def test_equal_states_give_equal_bytes(store, tmp_path):
    other = Store(tmp_path / "other", store.key)
    other.folder.mkdir()
    assert store.save_checkpoint(state(1)).sha256 == other.save_checkpoint(state(1)).sha256


def test_the_last_two_snapshots_are_kept(store):
    for step in (5, 10, 15):
        store.save_snapshot(state(step), step)
    assert len(list(store.folder.glob("snapshot-*"))) == 2
    assert load_newest(store) == 15


def test_a_damaged_snapshot_falls_back_to_the_one_before_and_says_so(store):
    store.save_snapshot(state(5), 5)
    newest = store.save_snapshot(state(10), 10).path
    newest.write_bytes(newest.read_bytes()[:-40])
    told = []
    assert store.newest_snapshot(told.append)["weight"][0] == 5
    assert str(newest) in told[0]
    assert "damaged" in told[0]


def test_a_checkpoint_cut_in_half_is_set_aside(store):
    saved = store.save_checkpoint(state(1))
    saved.path.write_bytes(saved.path.read_bytes()[:100])
    told = []
    assert store.checkpoint(told.append) is None
    assert "damaged" in told[0]
    assert len(list(store.folder.glob("*.damaged"))) == 1


def test_snapshots_of_another_key_are_not_seen(store):
    Store(store.folder, "another").save_snapshot(state(1), 1)
    assert store.newest_snapshot(print) is None


def test_a_missing_checkpoint_says_what_to_do(store):
    with pytest.raises(CheckpointError, match="missing; restore it, or delete its receipt"):
        verified(store.folder / "checkpoint-x-0123456789abcdef.pt")


def test_a_file_that_is_no_checkpoint_is_refused(tmp_path):
    path = tmp_path / "x.pt"
    path.write_text("nothing")
    with pytest.raises(CheckpointError, match="cannot be loaded"):
        load(path)


def test_other_keys_are_listed_with_both_values(store):
    with pytest.raises(CheckpointError, match="model.hidden: checkpoint 64, run 128"):
        refuse_other_keys(state(1), {"model.hidden": 128}, store.folder)


def load_newest(store):
    return int(store.newest_snapshot(print)["weight"][0])
