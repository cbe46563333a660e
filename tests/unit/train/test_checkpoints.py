"""Checkpoints and snapshots certify themselves; what is damaged is never used and never overwritten."""

import os
import subprocess

import pytest
import torch

from crpipe.core.chain import key_of
from crpipe.core.errors import CheckpointError, DiskError
from crpipe.train.checkpoints import FORMAT, Store, load, refuse_other_keys, verified


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
    assert load(store.newest_snapshot(told.append))["weight"][0] == 5
    assert str(newest) in told[0]
    assert "damaged" in told[0]


def test_a_checkpoint_cut_in_half_is_set_aside(store):
    saved = store.save_checkpoint(state(1))
    saved.path.write_bytes(saved.path.read_bytes()[:100])
    told = []
    assert store.checkpoint(told.append) is None
    assert "damaged" in told[0]
    assert len(list(store.folder.glob("*.damaged"))) == 1


def test_a_full_disk_names_the_file_and_leaves_nothing_behind(store, monkeypatch):
    def full(fd):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskError, match=r"checkpoint-.*\.pt: cannot write: the disk is full"):
        store.save_checkpoint(state(1))
    assert list(store.folder.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount a small file system")
def test_a_file_system_without_room_is_a_disk_error(tmp_path):
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", tmp_path], check=False).returncode:
        pytest.skip("needs the right to mount")
    try:
        with pytest.raises(DiskError, match=r"snapshot-k-0000000005-.*\.pt: cannot write: the disk is full"):
            Store(tmp_path, "k").save_snapshot({"weight": torch.zeros(100_000)}, 5)
        assert list(tmp_path.iterdir()) == []
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_what_a_killed_save_left_is_dropped(store):
    (store.folder / f".snapshot-{store.key}-0000000005.part").write_text("half")
    store.save_snapshot(state(10), 10)
    store.drop_parts()
    assert [path.name[0] for path in store.folder.iterdir()] == ["s"]


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
    return int(load(store.newest_snapshot(print))["weight"][0])
