"""A checkpoint alone gives back its model, or an error that says what does not fit."""

import pytest
import torch

from crpipe.core.errors import CheckpointError
from crpipe.inference.checkpoints import nested, open_checkpoint
from crpipe.train.checkpoints import Store
from crpipe.workloads.muons import MuonGan, MuonGanOptions


@pytest.fixture
def save(tmp_path):
    """Write a checkpoint whose model and keys were changed: save(weights, options)."""
    options = MuonGanOptions(hidden=8)
    weights = MuonGan(options).model().state_dict()

    def write(weights=weights, **changed):
        keys = {
            f"model.{name}": value for name, value in {**options.model_dump(mode="json"), **changed}.items()
        }
        keys["train.workload"] = "crpipe.workloads.muons:MuonGan"
        state = {
            "format": 1,
            "keys": keys,
            "model": weights,
            "average": {"generator.out.bias": torch.ones(2)},
        }
        return Store(tmp_path, "k").save_checkpoint(state).path

    write.weights = weights
    return write


def test_averaged_weights_are_in_place(save):
    trained = open_checkpoint(save())
    assert trained.model.generator.out.bias.tolist() == [1.0, 1.0]
    assert torch.equal(trained.model.generator.out.weight, save.weights["generator.out.weight"])
    assert not trained.model.training


def test_weights_of_another_version_are_refused_by_name(save):
    weights = {**save.weights, "generator.new": torch.ones(1), "generator.lift.bias": torch.ones(3)}
    del weights["generator.skip.weight"]
    path = save(weights)
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(path)
    text = str(caught.value)
    for part in (
        str(path),
        "missing generator.skip.weight",
        "unexpected generator.new",
        "generator.lift.bias is [3], the model has [8]",
        "use the version that trained it",
    ):
        assert part in text


def test_many_wrong_weights_are_counted(save):
    with pytest.raises(CheckpointError, match=r"missing critic\..* and \d+ more; use the version"):
        open_checkpoint(save({}))


def test_options_of_another_version_are_refused_by_name(save):
    path = save(wings=2)
    with pytest.raises(CheckpointError, match=f"{path}: its options do not fit .*MuonGan .*: wings; use the"):
        open_checkpoint(path)


def test_dotted_names_become_a_tree():
    keys = {"model.a": 1, "model.b.c": 2, "train.x": 3}
    assert nested(keys, "model.") == {"a": 1, "b": {"c": 2}}
    assert nested(keys)["train"] == {"x": 3}
