"""What follows from the few members that an author writes."""

import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import crpipe.author
from crpipe.author import Events, Metric, OptimizerSpec, Workload
from crpipe.core.errors import PluginError
from crpipe.inference.export import Graphs
from crpipe.statistics.groups import value_and_error
from crpipe.train.answers import loss_of
from crpipe.train.workload import WORKLOAD_MEMBERS, Baseline, Generates, Validates


class Line(Workload):
    metrics = (Metric("distance", "distance"), Metric("bias", "bias", better="near", ideal=0.0))
    monitored = ("distance",)
    event_columns = ("y",)
    item_columns = ("x",)
    optimizer = OptimizerSpec("adam", 1e-3)

    def model(self):
        return nn.Linear(1, 2)

    def batch(self, events, rng):
        return {"x": events.items[::1], "y": events.columns["y"], "drawn": rng.random(3)}

    def loss(self, model, batch, generator):
        return model(batch["x"]).square().mean()

    def outputs(self, model, batch):
        return {"p": model(batch["x"]), "y": batch["y"]}

    def each(self, truth, predicted):
        assert predicted["p"].shape == (len(truth), 2)
        return {"distance": np.abs(predicted["y"] - truth.columns["y"])}

    def measures(self, truth, predicted):
        return {"bias": lambda weight: float(weight @ predicted["p"][:, 1])}

    def figures(self, truth, predicted, new):
        new("cloud", 2.0).plot(*predicted["p"].T, "o")


class Noise(Workload):
    fixed = 1
    event_columns = ("y",)
    item_columns = ("x",)

    def model(self):
        return nn.Linear(1, 1)

    def batch(self, events, rng):
        return {}

    def phases(self):
        return []

    def generate(self, model, events, counts, generator):
        return self.events(events, counts, torch.rand(int(counts.sum()), 1, generator=generator))


def events(number=6, **columns):
    rng = np.random.default_rng(1)
    every = {"y": rng.random(number).astype(np.float32), **columns}
    return Events(every, np.ones(number, np.uint32), rng.random((number, 1)).astype(np.float32))


def test_a_workload_has_what_the_engine_asks_for_and_no_more():
    line, noise = Line(None), Noise(None)
    for workload in (line, noise):
        assert all(hasattr(workload, name) for name in WORKLOAD_MEMBERS)
        assert not isinstance(workload, Baseline)
    assert isinstance(line, Validates)
    assert not isinstance(line, Generates)
    assert isinstance(noise, Generates)
    assert not isinstance(noise, Validates)
    assert [metric.name for metric in line.validation_metrics] == ["distance"]


def test_batches_follow_from_events_and_seed_and_change_nothing():
    block = events()
    one, again, other = (
        Line(None).collate(block, np.array([2, 0]), seed) for seed in ((1, 2), (1, 2), (1, 3))
    )
    assert one["y"].tolist() == block.columns["y"][[2, 0]].tolist()
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert not torch.equal(one["drawn"], other["drawn"])
    whole = Line(None).collate(block, np.arange(6), ())
    whole["x"].zero_()
    assert block.items.all()


class Changing(Line):
    def batch(self, events, rng):
        events.items[:] = 0
        return {}


class Pairs(Line):
    def each(self, truth, predicted):
        return {"distance": predicted["p"] - truth.columns["y"][:, None]}


def test_values_of_each_that_are_not_one_for_each_event_are_named(tmp_path):
    block, model = events(), nn.Linear(1, 2)
    predicted = Pairs(None).predict(model, block, torch.Generator())
    for judge in (
        lambda: Pairs(None).score(block, predicted, tmp_path),
        lambda: Pairs(None).validate(model, block, torch.Generator()),
    ):
        with pytest.raises(
            PluginError, match=r"Pairs.each: distance has the shape \[6, 2\], expected \[6\]: one"
        ):
            judge()


def test_events_cannot_be_changed():
    with pytest.raises(ValueError, match="read-only"):
        Changing(None).collate(events(), np.arange(6), ())


def test_a_scalar_is_a_loss():
    line = Line(None)
    (phase,) = line.phases()
    batch = line.collate(events(), np.arange(6), ())
    value, numbers = loss_of(line, phase, line.model(), batch, torch.Generator())
    assert value.ndim == 0
    assert numbers == {}


def test_values_of_events_become_weighted_means_with_errors_and_figures_are_saved(tmp_path):
    weight = np.array([1, 0, 2, 1, 1, 1], np.float32)
    line, block = Line(None), events(weight=weight)
    with torch.no_grad():
        prediction = line.predict(line.model(), block, torch.Generator())
    assert prediction["p"].shape == (6, 2)
    prediction["y"] = prediction["y"] + np.arange(6)
    scores = line.score(block, prediction, tmp_path)
    value, error = value_and_error(scores["distance"], np.arange(6))
    assert value == pytest.approx(np.average(np.arange(6), weights=weight))
    assert error > 0
    assert scores["bias"](np.ones(6)) == pytest.approx(prediction["p"][:, 1].sum(), rel=1e-5)
    assert (tmp_path / "cloud.svg").exists()
    assert line.validate(line.model(), block, torch.Generator())["distance"].tolist() == [0] * 6


def test_a_generator_draws_for_the_given_events():
    noise, block = Noise(None), events()
    generated = noise.predict(noise.model(), block, torch.Generator().manual_seed(1))
    assert len(generated) == 6
    assert generated.items.shape == (6, 1)


def test_a_generator_says_how_many_items_there_are():
    with pytest.raises(
        PluginError, match=r"Ragged: generate needs multiplicities\(model, events, generator\)"
    ):
        type("Ragged", (Noise,), {"fixed": 0})(None).predict(nn.Linear(1, 1), events(), torch.Generator())


def test_a_validated_name_is_a_metric():
    with pytest.raises(PluginError, match=r"Wrong.monitored: nothing is none of its metrics"):
        type("Wrong", (Line,), {"monitored": ("nothing",)})


def test_every_public_name_is_there():
    for name in crpipe.author.__all__:
        assert getattr(crpipe.author, name) is not None
    assert {*crpipe.author.__all__} == {name for names in crpipe.author._PLACES.values() for name in names}
    with pytest.raises(AttributeError, match=r"crpipe.author has no Redaer; it has .*Reader"):
        _ = crpipe.author.Redaer


def test_a_reader_needs_no_torch():
    code = "import sys; from crpipe.author import Layout, Metric, Reader; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("outputs", [["p"], ["p", "q"]])
def test_the_card_takes_each_output_of_the_graph_out_of_the_list_that_a_session_returns(outputs):
    class Exported(Line):
        def graph(self, model, layout):
            raise NotImplementedError

    described = {"inputs": ["x"], "outputs": outputs, "difference": 1e-7}
    lines = Exported(None).card(None, Graphs(("model.onnx",), {"model.onnx": described}))["Use"]
    (call,) = (line for line in lines if "session.run" in line)
    session = SimpleNamespace(run=lambda *_: [number + 1 for number, _ in enumerate(outputs)])
    found = {"session": session}
    exec(call.replace("…", "0"), found)
    assert [found[name] for name in outputs] == [1, 2][: len(outputs)]
