"""How a state was computed travels with it; another way to compute is named, or refused."""

import json
import os
import subprocess
import sys
import zipfile

import pytest
import torch

from crpipe.core.errors import CheckpointError
from crpipe.core.journal import Journal
from crpipe.train.checkpoints import CheckpointStore, load
from crpipe.train.numerics import compare, difference, hashes, kinds, numerics
from crpipe.train.ranks import World
from models import interrupted, trained
from toy import RANGES, toy_config

FIRST, SECOND, _ = RANGES
WORLD = World(0, 1, torch.device("cpu"))
SHOWN = "import torch; from crpipe.train.numerics import *; from crpipe.train.ranks import World; "
SHOWN += "import json; print(json.dumps(numerics(World(0, 1, torch.device('cpu')))))"


def of_process(**variables):
    done = subprocess.run(
        [sys.executable, "-c", SHOWN], env=os.environ | variables, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def made_before(path):
    """Take the numerics out of a snapshot: as an earlier version of crpipe wrote it."""
    state = torch.load(path, weights_only=True)
    del state["numerics"]
    stem = path.stem.split("-")
    path.unlink()
    CheckpointStore(path.parent, stem[1]).save_snapshot(state, int(stem[2]))


def test_it_is_the_same_each_time_and_in_each_process():
    mine = numerics(WORLD)
    assert numerics(WORLD) == mine
    there = of_process(OMP_NUM_THREADS=str(torch.get_num_threads()))
    assert {**there, "threads": 0} == {**mine, "threads": 0}
    assert difference([mine], numerics(WORLD)) == ""


def test_it_draws_nothing_from_the_generators_of_training():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    numerics(WORLD)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"), reason="needs a processor with AVX2"
)
def test_other_instructions_are_seen_and_named():
    plain = of_process(ATEN_CPU_CAPABILITY="default")
    told = difference([plain], numerics(WORLD))
    assert "instruction set" in told
    assert "DEFAULT" in told
    assert "results of functions of tensors" in told


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("threads", "CPU threads 99, here"),
        ("torch", "torch 99, here"),
        ("numpy", "numpy 99, here"),
        ("device", "device 99, here cpu"),
        ("products", "other results of matrix products"),
        ("library", "other results of the C library's float64 functions (here: "),
        ("random", "other random numbers"),
    ],
)
def test_what_differs_is_said_in_words(name, words):
    here = numerics(WORLD)
    other = {**here, name: 99}
    assert difference([other], here).startswith(words)
    said = []
    compare([other], [here], "s.pt", "warn", said.append)
    assert len(said) == 1
    assert "\n" not in said[0]
    with pytest.raises(CheckpointError, match="train.numerics: warn"):
        compare([other], [here], "s.pt", "refuse", said.append)


def test_processes_of_several_kinds_are_compared_with_all_those_of_the_last_job():
    one = numerics(WORLD)
    other, third = ({**one, "instructions": name} for name in ("AVX2", "AVX512"))
    assert kinds([one, other, one]) == [one, other]
    for known, here, named in (
        ([one, other], [other, one], ""),
        ([third, one, other], [one, other], ""),
        ([one], [one, other], "here AVX2"),  # as where the second node of a job is another one
        ([one, other], [one], "instruction set AVX2"),
        ([], [one, other], "an earlier version of crpipe"),
    ):
        said = []
        compare(known, here, "s.pt", "warn", said.append)
        assert len(said) == bool(named)
        assert named in "".join(said)


def test_the_numerics_of_the_last_job_are_the_last(tmp_path):
    for threads in (1, 2, 1):
        interrupted(toy_config(tmp_path, train={"threads": threads}))
    _, checkpoint, told = trained(toy_config(tmp_path, train={"threads": 1}))
    assert "numerics" not in told
    assert [each["threads"] for each in checkpoint["numerics"]] == [2, 1]


def test_receipt_checkpoint_and_journal_hold_it(tmp_path):
    config = toy_config(tmp_path, train={"threads": 1})
    receipt, checkpoint, _ = trained(config)
    (used,) = checkpoint["numerics"]
    assert used["threads"] == 1
    assert receipt["numerics"] == hashes([used])
    rows = [row for row in Journal(config.paths().train_journal()).rows() if row["what"] == "numerics"]
    assert rows[0].items() >= used.items()
    assert rows[0]["c_library"]


def test_the_same_numerics_are_silent_at_a_resume_and_in_the_next_link(tmp_path):
    config = toy_config(tmp_path, train={"threads": 1, "numerics": "refuse"})
    whole = toy_config(tmp_path / "whole", train={"threads": 1})
    interrupted(config)
    receipt, checkpoint, told = trained(config)
    assert "numerics" not in told
    assert len(checkpoint["numerics"]) == 1
    assert receipt["sha256"] == trained(whole)[0]["sha256"]
    assert "numerics" not in trained(config, SECOND)[2]


@pytest.mark.parametrize("policy", ["warn", "refuse"])
def test_a_resume_with_other_threads_is_told_or_refused(tmp_path, policy):
    path = interrupted(toy_config(tmp_path, train={"threads": 1}))
    config = toy_config(tmp_path, train={"threads": 2, "numerics": policy})
    if policy == "refuse":
        with pytest.raises(CheckpointError, match=f"{path.name}.*CPU threads 1, here 2"):
            trained(config)
        assert path.exists()
        assert "numerics" not in trained(toy_config(tmp_path, train={"threads": 1, "numerics": policy}))[2]
        return
    receipt, checkpoint, told = trained(config)
    assert told.count("CPU threads 1, here 2") == 1
    assert [each["threads"] for each in checkpoint["numerics"]] == [1, 2]
    assert receipt["numerics"] == hashes(checkpoint["numerics"])


def test_so_is_a_link_whose_parent_was_computed_otherwise(tmp_path):
    trained(toy_config(tmp_path, train={"threads": 1}))
    with pytest.raises(CheckpointError, match="CPU threads 1, here 2"):
        trained(toy_config(tmp_path, train={"threads": 2, "numerics": "refuse"}), SECOND)
    _, checkpoint, told = trained(toy_config(tmp_path, train={"threads": 2}), SECOND)
    assert told.count("CPU threads 1, here 2") == 1
    assert [each["threads"] for each in checkpoint["numerics"]] == [2]


def test_a_snapshot_of_an_earlier_version_is_named(tmp_path):
    made_before(interrupted(toy_config(tmp_path)))
    with pytest.raises(CheckpointError, match="an earlier version of crpipe"):
        trained(toy_config(tmp_path, train={"numerics": "refuse"}))
    receipt, _, told = trained(toy_config(tmp_path))
    assert told.count("an earlier version of crpipe") == 1
    assert len(receipt["numerics"]) == 1


def test_damaged_numerics_are_no_checkpoint(tmp_path):
    path = interrupted(toy_config(tmp_path))
    state = torch.load(path, weights_only=True)
    for wrong in ("text", ["text"], [{"threads": torch.zeros(1)}]):
        torch.save({**state, "numerics": wrong}, tmp_path / "wrong.pt")
        assert zipfile.is_zipfile(tmp_path / "wrong.pt")
        with pytest.raises(CheckpointError, match="numerics is no list of mappings"):
            load(tmp_path / "wrong.pt")
