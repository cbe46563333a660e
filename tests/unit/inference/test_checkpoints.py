"""A checkpoint alone gives back its model, or an error that says what does not fit."""

import re
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from counting import NAMED, checkpoint_of, state_of
from crpipe.campaign.campaign import Campaign
from crpipe.campaign.declarations import declared
from crpipe.cli.app import main
from crpipe.config.loading import validate
from crpipe.core.errors import CheckpointError, ConfigError, CrpipeError
from crpipe.core.paths import Paths
from crpipe.core.text import NullProgress
from crpipe.inference.card import provenance
from crpipe.inference.checkpoints import find_checkpoint, nested, open_checkpoint, open_its_reader
from crpipe.train.checkpoints import CheckpointStore
from crpipe.workloads.muons import MuonGan, MuonGanOptions
from crpipe.workloads.muons.layout import BUNDLES, nested_table
from installed import declare
from toy import make_events


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
        state = state_of(keys, weights, average={"generator.out.bias": torch.ones(2)})
        return CheckpointStore(tmp_path, "k").save_checkpoint(state).path

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


@pytest.mark.parametrize("key", ["train.workload", "source.reader"])
def test_a_checkpoint_does_not_decide_what_is_imported(tmp_path, monkeypatch, key):
    (tmp_path / "outsider.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.syspath_prepend(tmp_path)
    path = checkpoint_of(tmp_path / "store", **{key: "outsider:Anything"})
    with pytest.raises(CheckpointError, match=f"names outsider:Anything as {key}.* --set {key}=outsider:Any"):
        open_its_reader(open_checkpoint(path, allowed_plugins=NAMED))
    assert not (tmp_path / "ran").exists()


def test_a_package_that_declares_a_workload_is_imported(tmp_path, monkeypatch):
    (tmp_path / "outsider.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()")
    monkeypatch.syspath_prepend(tmp_path)
    declare(tmp_path, "outer", "outsider:Anything")
    declared.cache_clear()
    try:
        with pytest.raises(ConfigError, match="outsider has no class Anything"):
            open_checkpoint(checkpoint_of(tmp_path / "store", **{"train.workload": "outsider:Anything"}))
        with pytest.raises(CheckpointError, match="names outsiders:Anything"):
            open_checkpoint(checkpoint_of(tmp_path / "two", **{"train.workload": "outsiders:Anything"}))
    finally:
        declared.cache_clear()
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", [7, None, "os", "os:system;x", "a:b:c", "$(ls):x", ".:a", "x:\x1b[0m"])
def test_a_workload_that_is_no_name_is_refused(tmp_path, name):
    path = checkpoint_of(tmp_path, **{"train.workload": name})
    with pytest.raises(CheckpointError, match=r"\.pt: train.workload is .*not module:Name"):
        open_checkpoint(path, allowed_plugins=[name])


def test_the_command_that_the_refusal_names_works(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    path = checkpoint_of(tmp_path / "runs" / "r" / "store" / "x", **{"source.uri": "file:///data"})
    events = make_events(3, 1)
    events.columns["zenith_rad"][:] = 1
    raw = tmp_path / "raw.parquet"
    pq.write_table(nested_table(events.columns, events.multiplicity, np.abs(events.items)), raw)
    for words in (
        ["predict", "--checkpoint", str(path), "--in", str(raw), "--out", str(tmp_path / "p.parquet")],
        ["export", "--checkpoint", str(path), "--out", str(tmp_path / "export")],
    ):
        assert crpipe(monkeypatch, *words) == 65
        named = re.search(r"crpipe (--set \S+) …$", capsys.readouterr().err.strip())[1].split()
        assert crpipe(monkeypatch, *named, *words) == 0, capsys.readouterr().err
    assert len(pq.read_table(tmp_path / "p.parquet")) == 3


def test_a_checkpoint_without_its_source_is_not_exported(tmp_path):
    trained = open_checkpoint(checkpoint_of(tmp_path), allowed_plugins=NAMED)
    with pytest.raises(CheckpointError, match="does not say which range of which source"):
        provenance(trained, BUNDLES, Campaign.open(validate({}), layout="recorded"), NullProgress())


def crpipe(monkeypatch, *words):
    """Run the command line in this process; return its exit code."""
    monkeypatch.setattr(sys, "argv", ["crpipe", *words])
    with pytest.raises(SystemExit) as end:
        main()
    return end.value.code or 0


@pytest.mark.parametrize("width", [20_000, 10**7])
def test_options_of_a_much_larger_model_are_refused_before_it_is_built(save, width):
    with pytest.raises(CrpipeError, match=r"build a larger model than its|no model can be built with its"):
        open_checkpoint(save(hidden=width))


def test_weights_that_are_not_finite_are_refused(save):
    weights = {**save.weights, "generator.lift.bias": torch.full((8,), torch.nan)}
    with pytest.raises(CheckpointError, match="the weight generator.lift.bias is not finite; use another"):
        open_checkpoint(save(weights))


def test_weights_of_another_type_are_refused(save):
    weights = {**save.weights, "generator.lift.bias": torch.zeros(8, dtype=torch.complex64)}
    with pytest.raises(CheckpointError, match="generator.lift.bias is torch.complex64, the model has"):
        open_checkpoint(save(weights))


def test_dotted_names_become_a_tree():
    keys = {"model.a": 1, "model.b.c": 2, "train.x": 3}
    assert nested(keys, "model.") == {"a": 1, "b": {"c": 2}}
    assert nested(keys)["train"] == {"x": 3}


@pytest.fixture
def run(tmp_path):
    """The paths of a run with two links, the second without a checkpoint; LINKS gives their names."""
    paths = Paths(tmp_path / "results", tmp_path / "runs", "mine")
    for path in (paths.receipt(LINKS[0]), paths.best_receipt(LINKS[0])):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return paths


LINKS = ("0000000-0000999", "0001000-0001999", "outliers")


@pytest.mark.parametrize("asked", ["latest", "0", "0000", LINKS[0]])
def test_a_checkpoint_is_named_by_its_link(run, asked):
    assert find_checkpoint(asked, run, lambda: LINKS) == run.receipt(LINKS[0])


@pytest.mark.parametrize("asked", ["best", "0.best", "0000.best", f"{LINKS[0]}.best"])
def test_the_best_checkpoint_is_named_by_its_link(run, asked):
    assert find_checkpoint(asked, run, lambda: LINKS) == run.best_receipt(LINKS[0])


def test_the_latest_checkpoint_is_that_of_the_last_finished_link(run):
    run.receipt(LINKS[1]).touch()
    assert find_checkpoint("latest", run, lambda: LINKS) == run.receipt(LINKS[1])


@pytest.mark.parametrize("asked", ["some.pt", "a/b.json"])
def test_a_checkpoint_is_named_by_its_path(run, asked):
    assert find_checkpoint(asked, run, lambda: LINKS) == Path(asked)


@pytest.mark.parametrize("asked", ["1", "out", "7", "elsewhere", "a/b", "1.best"])
def test_a_checkpoint_that_is_none_is_refused(run, asked):
    with pytest.raises(CheckpointError, match="neither a trained link of the run mine nor a file"):
        find_checkpoint(asked, run, lambda: LINKS)
