"""Checkpoints and snapshots certify themselves; what is damaged is never used and never overwritten."""

import json
import os
import subprocess
import sys
import threading
import zipfile

import numpy as np
import pytest
import torch

from counting import state_of
from crpipe.core.errors import CheckpointError, DiskError, UnseenError, exit_code_is_retryable, is_retryable
from crpipe.core.files import write_json
from crpipe.core.ranges import checkpoint_key
from crpipe.train.checkpoints import (
    FORMAT,
    CheckpointStore,
    load,
    refuse_other_keys,
)
from crpipe.train.link_start import checkpoint_file, verified
from failing import failing


def state(value):
    weight = torch.full((3,), float(value))
    return state_of({"model.hidden": 64}, {"weight": weight}, weight=weight, format=FORMAT)


@pytest.fixture
def store(tmp_path):
    return CheckpointStore(tmp_path, checkpoint_key("0000000-0000999", "f", ""))


def test_a_checkpoint_comes_back_as_it_was(store):
    saved = store.save_checkpoint(state(7))
    found = store.checkpoint(print)
    assert found == saved
    assert torch.equal(load(found.path)["weight"], torch.full((3,), 7.0))


def test_equal_states_give_equal_bytes(store, tmp_path):
    other = CheckpointStore(tmp_path / "other", store.key)
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
            CheckpointStore(tmp_path, "k").save_snapshot({"weight": torch.zeros(100_000)}, 5)
        assert list(tmp_path.iterdir()) == []
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_what_a_killed_save_left_is_dropped(store):
    (store.folder / f".snapshot-{store.key}-0000000005.part").write_text("half")
    store.save_snapshot(state(10), 10)
    store.drop_parts()
    assert [path.name[0] for path in store.folder.iterdir()] == ["s"]


def test_snapshots_of_another_key_are_not_seen(store):
    CheckpointStore(store.folder, "another").save_snapshot(state(1), 1)
    assert store.newest_snapshot(print) is None


def test_a_missing_checkpoint_says_what_to_do(store):
    with pytest.raises(CheckpointError, match="missing; restore it, or delete its receipt"):
        verified(store.folder / "checkpoint-x-0123456789abcdef.pt")


def test_a_file_that_is_no_checkpoint_is_refused(tmp_path):
    path = tmp_path / "x.pt"
    path.write_text("nothing")
    with pytest.raises(CheckpointError, match="cannot be loaded"):
        load(path)


MALFORMED = {
    "keys is missing": {"keys": None},
    "average is no mapping": {"average": [1]},
    "keys has both a and a.b": {"keys": {"a": 1, "a.b": 2}},
    "the key a is no plain value": {"keys": {"a": torch.ones(1)}},
    "keys has a key that is no text": {"keys": {1: 1}},
    "model holds w, no tensor": {"model": {"w": 1.0}},
    "average holds w, no tensor": {"average": {"w": None}},
    "counters has no cursor": {"counters": {}},
    "the counter step is no whole number": {"counters": {**state(1)["counters"], "step": "7"}},
    "the share p is no number": {"shares": {"p": float("nan")}},
    "the optimizer p is none": {"optimizers": {"p": {"state": {3: {}}, "param_groups": [{"params": [0]}]}}},
    "range is no name of a range": {"range": "../x"},
}


@pytest.mark.parametrize("said", MALFORMED)
def test_malformed_content_behind_the_right_hash_is_refused(store, said):
    changed = {**state(1), **MALFORMED[said]}
    path = store.save_checkpoint({name: value for name, value in changed.items() if value is not None}).path
    with pytest.raises(CheckpointError, match=f"{path}: not a checkpoint as crpipe writes it: {said}; use"):
        load(path)


def test_a_tensor_that_claims_more_numbers_than_the_file_holds_is_refused(tmp_path):
    path = tmp_path / "x.pt"
    torch.save({**state(1), "model": {"w": torch.zeros(1).expand(10**12)}}, path)
    with pytest.raises(CheckpointError, match="model holds w, no tensor"):
        load(path)


class Runs:
    def __reduce__(self):
        return os.system, ("true",)


@pytest.mark.parametrize("content", [Runs(), torch.nn.Linear(1, 1), {"format": 1, "keys": np.float64(1)}])
@pytest.mark.parametrize("zipped", [True, False])
def test_torch_never_advises_to_load_what_is_not_safe(tmp_path, content, zipped):
    path = tmp_path / "x.pt"
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(CheckpointError) as caught:
        load(path)
    assert "cannot be loaded" in str(caught.value)
    assert "weights_only" not in str(caught.value)


def test_an_archive_that_unpacks_to_more_than_it_is_is_refused(tmp_path, store):
    saved = store.save_checkpoint(state(1)).path
    bomb = tmp_path / "bomb.pt"
    with zipfile.ZipFile(saved) as source, zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as packed:
        for name in source.namelist():
            packed.writestr(name, source.read(name) + bytes(1 << 20))
    with pytest.raises(CheckpointError, match=r"cannot be loaded \(it holds \d+ bytes in \d+\)"):
        load(bomb)


@pytest.mark.parametrize("names", [{"range": "../x"}, {"checkpoint": "/etc/passwd"}, {"range": 3}])
def test_a_receipt_points_into_its_store_only(tmp_path, names):
    path = tmp_path / "receipt.json"
    write_json(path, {"range": "0000000-0000999", "checkpoint": "checkpoint-k-0.pt", **names})
    with pytest.raises(CheckpointError, match="no names of files"):
        checkpoint_file(path)


def test_other_keys_are_listed_with_both_values(store):
    with pytest.raises(CheckpointError, match="model.hidden: checkpoint 64, run 128"):
        refuse_other_keys(state(1), {"model.hidden": 128}, store.folder)


def load_newest(store):
    return int(load(store.newest_snapshot(print))["weight"][0])


READS = """
import json, os, sys
from pathlib import Path
from crpipe.core.errors import CrpipeError
from crpipe.train.checkpoints import load
from crpipe.train.link_start import verified

found = []
for nth in range(1, 400):
    os.environ["FAIL"] = f"read:{sys.argv[2]}:{nth}:{sys.argv[1]}"
    try:
        load(verified(Path(sys.argv[1])).path)
        found.append("")
        break
    except CrpipeError as error:
        found.append(f"{type(error).__name__}: {error}")
print(json.dumps(found))
"""


@pytest.mark.parametrize("number", [5, 12])  # EIO, ENOMEM
def test_each_failed_read_of_a_checkpoint_is_an_error_of_the_machine(store, tmp_path, number):
    path = store.save_checkpoint(state(3)).path
    command = [sys.executable, "-c", READS, str(path), str(number)]
    env = failing(tmp_path, "none", 0, "none")
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    *failed, last = json.loads(done.stdout)
    assert failed
    assert last == ""
    for text in failed:
        assert text.startswith(("DiskError: ", "HostMemoryError: ")), text
        assert str(path) in text


def test_a_parents_checkpoint_that_is_seen_late_is_waited_for(store):
    saved = store.save_checkpoint(state(3))
    receipt = store.folder.parent.parent / "ranges" / f"{store.folder.name}.json"
    receipt.parent.mkdir(parents=True, exist_ok=True)
    receipt.write_text("{}")
    away = saved.path.rename(saved.path.with_suffix(".away"))
    timer = threading.Timer(0.3, away.rename, [saved.path])
    timer.start()
    assert verified(saved.path) == saved
    saved.path.unlink()
    with pytest.raises(UnseenError, match=r"not seen on this machine, though .*\.json names it") as caught:
        verified(saved.path)
    assert is_retryable(type(caught.value).__name__)
    assert exit_code_is_retryable(caught.value.exit_code)
