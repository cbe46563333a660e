"""A workload is built with its side tables; errors name it and the events; its choices are known words."""

import json

import numpy as np
import pytest
import torch
from pydantic import BaseModel, ConfigDict
from torch import nn

from counting import Counting
from crpipe.campaign.campaign import Campaign
from crpipe.campaign.records import EvaluationRecord
from crpipe.config.loading import validate
from crpipe.core.errors import ConfigError, DataError, FormatError, PluginError
from crpipe.core.text import NullProgress
from crpipe.events.layout import Metric
from crpipe.inference.predictor import Predictor
from crpipe.report.evaluations import Evaluation
from crpipe.train.ranks import find_device
from crpipe.train.schedule import Schedule
from crpipe.train.workload import OptimizerSpec, Phase, WorkloadCall, build_workload, open_workload
from models import evaluate_range, train_range
from named import READERS
from toy import RANGES, make_events, write_shards

NAME = "counting:Counting"
FIRST = RANGES[0]


@pytest.fixture
def uses_tables(monkeypatch):
    read = {}
    monkeypatch.setattr(Counting, "needs", ("geometry",), raising=False)
    monkeypatch.setattr(Counting, "use", lambda _, tables: read.update(tables), raising=False)
    return read


def test_side_tables_are_handed_over_before_the_model_is_built(uses_tables, tmp_path):
    open_workload(NAME, {}, {"geometry": tmp_path, "other": tmp_path})
    assert uses_tables["geometry"] == tmp_path


@pytest.mark.usefixtures("uses_tables")
def test_a_missing_side_table_is_named_with_an_example(tmp_path):
    message = r"counting:Counting needs the side table geometry, .*\(other\).* source.tables: {geometry: /da"
    with pytest.raises(ConfigError, match=message):
        open_workload(NAME, {}, {"other": tmp_path})


def test_an_error_while_reading_a_table_names_the_workload(monkeypatch, tmp_path):
    monkeypatch.setattr(Counting, "needs", ("geometry",), raising=False)
    monkeypatch.setattr(Counting, "use", lambda *_: 1 // 0, raising=False)
    with pytest.raises(PluginError, match=r"counting:Counting.use failed: ZeroDivisionError"):
        open_workload(NAME, {}, {"geometry": tmp_path})


def test_what_is_no_workload_is_refused():
    with pytest.raises(ConfigError, match="counting:Again has no metrics, no event_columns"):
        build_workload("counting:Again", {})


def test_an_error_of_a_call_names_method_and_first_event():
    events, call = make_events(9, 4), Counting.__new__(Counting)
    message = r"counting:Counting.collate failed on 2 events, the first from file 4 row 7: KeyError: 'x'"
    with pytest.raises(PluginError, match=message), WorkloadCall(call, "collate", events, np.array([7, 2])):
        raise KeyError("x")
    with pytest.raises(FormatError), WorkloadCall(call, "collate", events):
        raise FormatError("passes unchanged")


@pytest.mark.parametrize(
    ("choose", "said"),
    [
        (lambda: Schedule(kind="cosin"), "Schedule: kind: 'cosin' is .*did you mean cosine"),
        (lambda: Metric("r", "r", better="higher"), "Metric r: better: 'higher' is .*did you mean high"),
        (lambda: find_device("gpu"), "'gpu' is not known; known: auto, cpu, cuda"),
    ],
)
def test_an_unknown_word_is_refused_and_never_a_default(choose, said):
    with pytest.raises(ConfigError, match=said):
        choose()


def test_a_metrics_file_with_an_unknown_direction_is_damaged(tmp_path):
    metrics = ({"name": "r", "title": "r", "better": "best"},)
    record = EvaluationRecord(checkpoint="0", metrics=metrics, values={"r": 1.0})
    with pytest.raises(DataError, match="damaged .*'best' is not known"):
        Evaluation.of(record, tmp_path / "metrics.json")


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


@pytest.fixture
def config(tmp_path):
    tree = {
        "results": str(tmp_path / "results"),
        "runs": str(tmp_path / "runs"),
        "source": {"uri": str(tmp_path / "{range}" / "*.parquet"), "reader": READERS["bundles"]},
        "ranges": {"first": 0, "last": 999},
        "load": {"batch_size": 25, "max_items": 50},
        "train": {"workload": f"{__name__}:Dense", "device": "cpu", "threads": 1, "passes_per_link": 15},
        "evaluate": {"events": 100},
    }
    config = validate(tree)
    shards = [("train-00000", "train", make_events(400, 1)), ("val-00000", "validation", make_events(100, 2))]
    write_shards(config.paths().shards(FIRST), shards, Campaign.open(config).data)
    return config


def test_a_workload_without_items_trains_on_every_event_and_is_evaluated(config):
    """A supervised regression of one phase, unlike the generator: nothing in crpipe knows what it trains."""
    train_range(config, FIRST, NullProgress())
    paths = config.paths()
    receipt = json.loads(paths.receipt(FIRST).read_text())
    assert (receipt["events"], receipt["step"]) == (15 * 400, 15 * 16)
    evaluate_range(config, FIRST, NullProgress())
    found = json.loads((paths.evaluation(FIRST) / "metrics.json").read_text())
    assert receipt["skipped"] == 0
    assert found["values"]["mse"] < 0.05
    assert "baseline" in found
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
