"""A training starts from the weights that its user named, or not at all."""

import json

import pytest
import torch

from crpipe.core.errors import CheckpointError, ConfigError
from crpipe.train.checkpoints import CheckpointStore
from crpipe.train.link_start import find_source
from crpipe.train.pretrained import match_weights
from crpipe.train.state import TrainState
from models import trained
from toy import RANGES, Toy, ToyOptions, toy_config

FIRST, SECOND, _ = RANGES


def weights(**shapes):
    return {name.replace("_", "."): torch.zeros(shape) for name, shape in shapes.items()}


OWN = weights(encoder_a=(2, 3), encoder_b=(2,), head_a=(4,))


def test_without_a_map_all_that_fits_is_loaded():
    found = match_weights(OWN, weights(encoder_a=(2, 3), encoder_b=(5,), old=(1,)), {})
    assert found.names == {"encoder.a": "encoder.a"}
    assert (found.missing, found.unexpected) == (("encoder.b", "head.a"), ("encoder.b", "old"))
    assert "loaded 1 of 3 weights; missing: encoder.b, head.a" in found.describe()


def test_a_map_loads_what_it_names_and_nothing_else():
    there = weights(model_a=(2, 3), model_b=(2,), head_a=(4,), model_more=(9,))
    found = match_weights(OWN, there, {"model.": "encoder."})
    assert found.names == {"encoder.a": "model.a", "encoder.b": "model.b"}
    assert (found.missing, found.unexpected) == (("head.a",), ("head.a", "model.more"))


def test_the_longest_prefix_counts():
    found = match_weights(OWN, weights(m_head_a=(4,), m_a=(2, 3)), {"m.": "encoder.", "m.head.": "head."})
    assert found.names == {"head.a": "m.head.a", "encoder.a": "m.a"}


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


@pytest.fixture(scope="module")
def old(tmp_path_factory):
    """Return a finished training: its configuration, its receipt and its checkpoint."""
    config = toy_config(tmp_path_factory.mktemp("old"))
    receipt, checkpoint, _ = trained(config, FIRST)
    return config, receipt, checkpoint


def start_from(old, root, init_from="", **options):
    """Train from the weights of the old training; return the configuration, and what ``trained`` gives."""
    train = {"pretrained": init_from or str(old[0].paths().receipt(FIRST)), **options.pop("train", {})}
    config = toy_config(root, train=train, **options)
    return config, *trained(config, FIRST)


def record_of(config):
    return json.loads((config.paths().run_dir() / "init_from.json").read_text())


def test_the_options_of_the_optimizer_are_those_of_this_run(old, tmp_path):
    _, _, checkpoint, told = start_from(old, tmp_path, model={"beta": 0.5})
    assert "loaded 8 of 8 weights; missing: none; unexpected: none" in told
    assert checkpoint["optimizers"]["critic"]["param_groups"][0]["betas"] == [0.5, 0.999]


def test_another_optimizer_is_an_explicit_choice(old, tmp_path):
    with pytest.raises(CheckpointError, match="train.on_optimizer_change: reset"):
        start_from(old, tmp_path / "refused", model={"optimizer": "sgd"})
    train = {"on_optimizer_change": "reset"}
    *_, told = start_from(old, tmp_path / "reset", model={"optimizer": "sgd"}, train=train)
    assert "optimizers with a fresh state: critic, generator" in told


def test_a_mapped_part_is_loaded_the_rest_is_fresh_and_all_of_it_is_recorded(old, tmp_path):
    _, receipt, before = old
    # A rate of zero: what was loaded is still there at the end.
    train = {"init_map": {"critic.": "critic."}}
    new, child, after, _ = start_from(old, tmp_path, train=train, model={"rate": 0.0}, seed=9)
    assert child["parent"] == receipt["sha256"]
    for name, value in after["model"].items():
        assert torch.equal(value, before["model"][name]) == name.startswith("critic")
    record = record_of(new)
    assert record["sha256"] == receipt["sha256"]
    assert record["loaded"] == {name: name for name in before["model"] if name.startswith("critic")}
    assert record["missing"] == record["unexpected"] == sorted(n for n in before["model"] if n[0] == "g")
    assert after["counters"]["events"] == 300


def test_the_averaged_weights_start_from_the_averaged_ones(old):
    _, _, before = old
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
        find_source(str(tmp_path / name))


@pytest.mark.parametrize("key", [{"init_map": {"a.": "b."}}, {"start_after": FIRST}])
def test_a_map_or_a_link_without_a_checkpoint_is_refused(tmp_path, key):
    with pytest.raises(ConfigError, match="no checkpoint is named"):
        toy_config(tmp_path, train=key)


def test_a_run_goes_on_after_a_link_of_another_run(tmp_path):
    """With the settings of the old run it ends in the very weights that the old run ends in."""
    config = toy_config(tmp_path)
    receipt, _, _ = trained(config, FIRST)
    _, first, _ = trained(config, SECOND)
    start = {"pretrained": str(config.paths().receipt(FIRST)), "start_after": FIRST}
    new = toy_config(tmp_path, run="fork", train=start)
    child, second, _ = trained(new, SECOND)
    assert child["parent"] == receipt["sha256"]
    assert first["counters"] == second["counters"]
    for part in ("model", "average"):
        assert all(torch.equal(first[part][name], second[part][name]) for name in first[part])
    assert not (new.paths().run_dir() / "init_from.json").exists()


@pytest.mark.parametrize("earlier", [True, False])
def test_a_checkpoint_that_may_have_seen_held_out_events_is_named_in_log_and_record(old, tmp_path, earlier):
    source, (_, _, state) = "", old
    if earlier:
        keys = {name: value for name, value in state["keys"].items() if name != "split.parts_first"}
        source = str(CheckpointStore(tmp_path / "older", "k").save_checkpoint({**state, "keys": keys}).path)
    config, _, _, told = start_from(old, tmp_path / "new", source)
    warnings = [line for line in told.splitlines() if "it has seen" in line]
    record = record_of(config)
    assert warnings == ([f"warning: {record['warning']}"] if earlier else [])
    assert record.get("warning", "").startswith(
        f"train.pretrained: {source} is of an earlier crpipe" if earlier else ""
    )
    assert ("warning" in record) == earlier
