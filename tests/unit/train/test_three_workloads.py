"""The protocol carries other workloads than the generator: nothing in crpipe knows what it trains.

One is a supervised, dense regression on the conditions (no items at all, one phase, no metrics), the other a
regression from the ragged muons of each event. Neither touches the package.
"""

import json
import sys

import numpy as np
import pytest
import torch
from pydantic import BaseModel, ConfigDict
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

from crpipe.campaign.campaign import Campaign
from crpipe.config.loading import validate
from crpipe.core.text import NullProgress
from crpipe.events.layout import Metric
from crpipe.inference.predictor import Predictor
from crpipe.train.workload import OptimizerSpec, Phase
from models import evaluate_range, train_range
from named import READERS
from toy import RANGES, make_events, write_shards

HERE = "test_three_workloads"
FIRST = RANGES[0]


class DenseOptions(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    hidden: int = 16


class Dense:
    """Learns a smooth function of two conditions; events count, muons do not."""

    metrics = (Metric("mse", "mean squared error", ideal=0.0),)
    event_columns = ("energy_gev", "zenith_rad")
    item_columns = ()

    def __init__(self, options):
        self.options = options

    def size(self, events):
        return np.zeros(len(events), np.int64)

    def collate(self, events, index, seed):
        x = np.stack([events.columns[name][index] for name in ("energy_gev", "zenith_rad")], 1)
        x = torch.from_numpy(x.astype(np.float32))
        return {"x": x, "y": torch.cos(x[:, :1]) * x[:, 1:]}

    def model(self):
        hidden = self.options.hidden
        return nn.Sequential(nn.Linear(2, hidden), nn.Tanh(), nn.Linear(hidden, 1))

    def phases(self):
        return [Phase("fit", nn.Module.parameters, self.loss, OptimizerSpec("adam", 1e-2), average=True)]

    def loss(self, model, batch, generator):
        return nn.functional.mse_loss(model(batch["x"]), batch["y"]), {}

    def predict(self, model, events, generator):
        guess = model(self.collate(events, np.arange(len(events)), ())["x"])[:, 0].numpy()
        return {"guess": guess}

    def baseline(self, events):
        return {"guess": np.zeros(len(events), np.float32)}

    def score(self, truth, prediction, folder):
        assert truth.multiplicity.sum() > len(truth.items) == 0
        expected = self.collate(truth, np.arange(len(truth)), ())["y"][:, 0].numpy()
        return {"mse": float(np.square(prediction["guess"] - expected).mean())}


class RaggedOptions(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    hidden: int = 16


class Ragged:
    """Learns the mean position of each event's muons from the muons, pooled event by event."""

    metrics = ()
    event_columns = ()
    item_columns = ("energy_gev", "x_m", "y_m")

    def __init__(self, options):
        self.options = options

    def size(self, events):
        return events.multiplicity

    def collate(self, events, index, seed):
        part = events.take(index)
        owner = torch.from_numpy(np.repeat(np.arange(len(part)), part.multiplicity))
        count = torch.from_numpy(part.multiplicity.astype(np.float32))[:, None]
        muons = torch.from_numpy(part.items.copy())
        sums = torch.zeros(len(part), 2).index_add(0, owner, muons[:, 1:])
        return {"muons": muons, "owner": owner, "count": count, "y": sums / count.clamp_min(1)}

    def model(self):
        hidden = self.options.hidden
        return nn.ModuleDict(
            {"each": nn.Sequential(nn.Linear(3, hidden), nn.Tanh()), "all": nn.Linear(hidden, 2)}
        )

    def phases(self):
        return [
            Phase("fit", lambda model: model.parameters(), self.loss, OptimizerSpec("sgd", 0.1, momentum=0.9))
        ]

    def guess(self, model, batch):
        hidden = model["each"](batch["muons"])
        pooled = torch.zeros(len(batch["count"]), hidden.shape[1]).index_add(0, batch["owner"], hidden)
        return model["all"](pooled / batch["count"].clamp_min(1))

    def loss(self, model, batch, generator):
        wrong = (self.guess(model, batch) - batch["y"]).square().sum(1)
        return wrong.mean(), {"worst": wrong.detach().max()}

    def predict(self, model, events, generator):
        batch = self.collate(events, np.arange(len(events)), ())
        x, y = self.guess(model, batch).T.numpy()
        true_x, true_y = batch["y"].T.numpy()  # score does not get the items
        return {"x_m": x, "y_m": y, "true_x_m": true_x, "true_y_m": true_y}

    def score(self, truth, prediction, folder):
        wrong = [prediction[name] - prediction[f"true_{name}"] for name in ("x_m", "y_m")]
        return {"mse": float(np.square(wrong).mean())}


@pytest.fixture(params=["Dense", "Ragged"])
def config(request, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, HERE, sys.modules[__name__])  # as train.workload names it
    tree = {
        "results": str(tmp_path / "results"),
        "runs": str(tmp_path / "runs"),
        "source": {"uri": str(tmp_path / "{range}" / "*.parquet"), "reader": READERS["bundles"]},
        "ranges": {"first": 0, "last": 999},
        "load": {"batch_events": 25, "budget_items": 50},
        "train": {"workload": f"{HERE}:{request.param}", "device": "cpu", "threads": 1, "epochs": 15},
        "evaluate": {"events": 100},
    }
    config = validate(tree)
    shards = [("train-00000", "train", make_events(400, 1)), ("val-00000", "validation", make_events(100, 2))]
    write_shards(config.paths().shards(FIRST), shards, Campaign.open(config).data)
    return config


def test_trains_on_every_event_and_is_evaluated(config):
    train_range(config, FIRST, NullProgress())
    paths = config.paths()
    receipt = json.loads(paths.receipt(FIRST).read_text())
    assert (receipt["events"], receipt["step"]) == (15 * 400, 15 * 16)
    evaluate_range(config, FIRST, NullProgress())
    found = json.loads((paths.evaluation(FIRST) / "metrics.json").read_text())
    events = EventAccumulator(str(paths.tensorboard()))
    events.Reload()
    (table,) = events.Tensors("evaluation/text_summary")
    title = "mean squared error" if found["metrics"] else "mse"
    assert f"| {title} | {found['values']['mse']:.4g} |" in table.tensor_proto.string_val[0].decode()
    assert receipt["skipped"] == 0
    assert found["values"]["mse"] < 0.05
    assert ("baseline" in found) == ("Dense" in config.train.workload)
    assert receipt["metrics"]["fit/loss"] < 0.1


def test_evaluation_computes_with_the_threads_of_training(config, monkeypatch):
    train_range(config, FIRST, NullProgress())
    used, predict = [], Predictor.predict
    monkeypatch.setattr(
        Predictor, "predict", lambda *args: used.append(torch.get_num_threads()) or predict(*args)
    )
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        evaluate_range(config, FIRST, NullProgress())
    finally:
        torch.set_num_threads(before)
    assert set(used) == {config.train.threads}
