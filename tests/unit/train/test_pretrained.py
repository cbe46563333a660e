"""A training starts from the weights that its user named, or not at all."""

import json

import pytest
import torch

from crpipe.core.errors import CheckpointError, ConfigError
from crpipe.core.text import NullProgress
from crpipe.train.checkpoints import Store, load
from crpipe.train.pretrained import match_weights
from crpipe.train.state import TrainState
from models import train_range
from told import Told
from toy import RANGES, Toy, ToyOptions, toy_config

FIRST, SECOND, _ = RANGES


def weights(**shapes):
    return {name.replace("_", "."): torch.zeros(shape) for name, shape in shapes.items()}


OWN = weights(encoder_a=(2, 3), encoder_b=(2,), head_a=(4,))


def test_without_a_map_all_that_fits_is_loaded():
    found = match_weights(OWN, weights(encoder_a=(2, 3), encoder_b=(5,), old=(1,)), {})
    assert found.chosen == {"encoder.a": "encoder.a"}
    assert (found.missing, found.unexpected) == (("encoder.b", "head.a"), ("encoder.b", "old"))
    assert "loaded 1 of 3 weights; missing: encoder.b, head.a" in found.describe()


def test_a_map_loads_what_it_names_and_nothing_else():
    there = weights(model_a=(2, 3), model_b=(2,), head_a=(4,), model_more=(9,))
    found = match_weights(OWN, there, {"model.": "encoder."})
    assert found.chosen == {"encoder.a": "model.a", "encoder.b": "model.b"}
    assert (found.missing, found.unexpected) == (("head.a",), ("head.a", "model.more"))


def test_the_longest_prefix_counts():
    found = match_weights(OWN, weights(m_head_a=(4,), m_a=(2, 3)), {"m.": "encoder.", "m.head.": "head."})
    assert found.chosen == {"head.a": "m.head.a", "encoder.a": "m.a"}


@pytest.mark.parametrize(
    ("there", "prefixes", "said"),
    [
        (weights(a=(2,)), {}, "nothing was loaded"),
        (
            weights(model_a=(2, 3)),
            {"encoder.": "encoder."},
            r"'encoder.': 'encoder.' matches nothing; .* model",
        ),
        (
            weights(model_a=(2, 3)),
            {"model.": "body."},
            r"'model.': 'body.' matches nothing; .* encoder., head.",
        ),
        (weights(model_a=(2, 4)), {"model.": "encoder."}, r"model.a is \[2, 4\] .* encoder.a is \[2, 3\]"),
        (
            weights(m_a=(4,), n_a=(4,)),
            {"m.": "head.", "n.": "head."},
            "both m.a and n.a are mapped to head.a",
        ),
    ],
)
def test_what_cannot_be_loaded_is_an_error_that_names_it(there, prefixes, said):
    with pytest.raises(CheckpointError, match=said):
        match_weights(OWN, there, prefixes)


def trained(root, **options):
    config = toy_config(root, **options)
    train_range(config, FIRST, NullProgress())
    receipt = json.loads(config.paths().receipt(FIRST).read_text())
    return config, receipt, load(config.paths().store(FIRST) / receipt["checkpoint"])


def test_a_mapped_part_is_loaded_the_rest_is_fresh_and_all_of_it_is_recorded(tmp_path):
    old, receipt, before = trained(tmp_path / "old")
    source = str(old.paths().receipt(FIRST))
    # A rate of zero: what was loaded is still there at the end.
    start = {"init_from": source, "init_map": {"critic.": "critic."}}
    new, made, after = trained(tmp_path / "new", train=start, model={"rate": 0.0}, seed=9)
    assert made["parent"] == receipt["sha256"]
    for name, value in after["model"].items():
        assert torch.equal(value, before["model"][name]) == name.startswith("critic")
    record = json.loads((new.paths().run_dir() / "init_from.json").read_text())
    assert record["sha256"] == receipt["sha256"]
    assert record["loaded"] == {name: name for name in before["model"] if name.startswith("critic")}
    assert record["missing"] == record["unexpected"] == sorted(n for n in before["model"] if n[0] == "g")
    assert after["counters"]["events"] == 300


def test_the_averaged_weights_start_from_the_averaged_ones(tmp_path):
    _, _, before = trained(tmp_path / "old")
    toy = Toy(ToyOptions())
    state = TrainState(toy.model(), toy.phases(), 1, torch.device("cpu"))
    state.init_from(before, {"generator.": "generator."})
    own = dict(state.model.named_parameters())
    for name, value in before["average"].items():
        assert torch.equal(state.average[name], value)
        assert torch.equal(own[name], before["model"][name])
        assert not torch.equal(value, own[name])


@pytest.mark.parametrize(
    ("name", "said"),
    [("none.pt", "none.pt does not exist"), ("mine.pt", "no hash in its name")],
)
def test_a_file_that_cannot_be_verified_is_refused(tmp_path, name, said):
    (tmp_path / "mine.pt").write_bytes(b"x")
    with pytest.raises(CheckpointError, match=said):
        trained(tmp_path / "new", train={"init_from": str(tmp_path / name)})


@pytest.mark.parametrize("key", [{"init_map": {"a.": "b."}}, {"start_after": FIRST}])
def test_a_map_or_a_link_without_a_checkpoint_is_refused(tmp_path, key):
    with pytest.raises(ConfigError, match="no checkpoint is named"):
        toy_config(tmp_path, train=key)


def test_a_run_goes_on_after_a_link_of_another_run(tmp_path):
    """With the settings of the old run it ends in the very weights that the old run ends in."""
    old, receipt, _ = trained(tmp_path)
    train_range(old, SECOND, NullProgress())
    start = {"init_from": str(old.paths().receipt(FIRST)), "start_after": FIRST}
    new = toy_config(tmp_path, run="fork", train=start)
    train_range(new, SECOND, NullProgress())
    found = [json.loads(config.paths().receipt(SECOND).read_text()) for config in (old, new)]
    assert found[1]["parent"] == receipt["sha256"]
    first, second = (
        load(config.paths().store(SECOND) / made["checkpoint"])
        for config, made in zip((old, new), found, strict=True)
    )
    assert first["counters"] == second["counters"]
    for part in ("model", "average"):
        assert all(torch.equal(first[part][name], second[part][name]) for name in first[part])
    assert not (new.paths().run_dir() / "init_from.json").exists()


def test_a_checkpoint_that_has_seen_large_held_out_events_is_named_in_log_and_record(tmp_path):
    _, _, state = trained(tmp_path / "old")
    assert state["keys"].pop("split.parts_first")
    older = Store(tmp_path / "older", "k").save_checkpoint(state).path
    config, told = toy_config(tmp_path / "new", train={"init_from": str(older)}), Told()
    train_range(config, FIRST, told)
    warning = next(line for line in told.lines if "it has seen" in line)
    assert warning.startswith(f"warning: train.init_from: {older} is of an earlier crpipe")
    record = json.loads((config.paths().run_dir() / "init_from.json").read_text())
    assert f"warning: {record['warning']}" == warning


def test_a_checkpoint_that_has_seen_none_is_not(tmp_path):
    old, _, _ = trained(tmp_path / "old")
    told = Told()
    config = toy_config(tmp_path / "new", train={"init_from": str(old.paths().receipt(FIRST))})
    train_range(config, FIRST, told)
    assert not [line for line in told.lines if "it has seen" in line]
    assert "warning" not in json.loads((config.paths().run_dir() / "init_from.json").read_text())
