"""A checkpoint is read without torch, and nothing that it names is executed."""

import os
import pickle
import zipfile

import pytest
import torch

from counting import state_of
from crpipe.check.training import checkpoint_metadata
from crpipe.core.errors import CheckpointError
from crpipe.train.checkpoints import CheckpointStore, load

STATE = state_of(
    {"seed": 1},
    {"weight": torch.ones(3, 2), "half": torch.ones(2, dtype=torch.float16)},
    average={"weight": torch.zeros(3, 2)},
    optimizers={"adam": {"state": {0: {"step": torch.tensor(3.0)}}, "param_groups": [{"params": [0]}]}},
    metrics={"loss": 0.1, "nan": float("nan")},
    range="a",
)


def test_the_notes_are_those_that_torch_reads(tmp_path):
    path = CheckpointStore(tmp_path, "k").save_checkpoint(STATE).path
    whole, notes = load(path), checkpoint_metadata(path)
    assert set(notes) == set(whole) - {"model", "average", "optimizers"}
    assert repr(notes) == repr({name: whole[name] for name in notes})


class Harmful:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_nothing_that_a_checkpoint_names_is_called(tmp_path):
    made, path = tmp_path / "made", tmp_path / "x.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x/data.pkl", pickle.dumps({"counters": {}, "metrics": Harmful(str(made))}))
    checkpoint_metadata(path)
    assert not made.exists()


@pytest.mark.parametrize("content", [b"", b"no zip file", b"PK\x05\x06" + bytes(18)])
def test_another_file_is_refused(tmp_path, content):
    path = tmp_path / "x.pt"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"x\.pt: not a checkpoint of crpipe"):
        checkpoint_metadata(path)
