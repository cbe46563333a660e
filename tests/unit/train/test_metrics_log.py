"""No step is there twice, in metrics.jsonl or in TensorBoard; the loggers of a user disturb nothing."""

import contextlib
import json

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.proto.event_pb2 import Event

from crpipe.core.errors import ConfigError
from crpipe.setup.compatibility import check_fit
from crpipe.train import metrics_log
from crpipe.train.event_file import EventFile, _records
from crpipe.train.metrics_log import MetricsFile, read_metrics
from models import trained
from toy import RANGES, KeptRows, toy_config

FIRST = RANGES[0]
VALIDATED = {"validate_every": 2, "validate_events": 40}


def steps_of(folder):
    events = EventAccumulator(str(folder))
    events.Reload()
    return [item.step for item in events.Scalars("loss")]


def write_events(folder, resumed, steps):
    file = EventFile(folder, "000000.r", resumed)
    for step in steps:
        file.scalars(step, 1.0, {"loss": step / 10})
    file.close()


def test_events_are_cut_back_to_the_resumed_step(tmp_path):
    write_events(tmp_path, 0, [10, 20, 30])
    write_events(tmp_path, 20, [30, 40])
    assert steps_of(tmp_path) == [10, 20, 30, 40]


def test_a_scalar_is_described_with_its_first_value(tmp_path):
    with contextlib.closing(EventFile(tmp_path, "000000.r", 0)) as file:
        for step in (1, 2):
            file.scalars(step, 0.0, {"critic/loss": 1.0, "validation/critic/loss": 2.0, "mine/odd_one": 3.0})
    events = [Event.FromString(record[12:-4]) for record in _records(file.path)]
    texts = [value.metadata.summary_description for event in events for value in event.summary.value]
    assert texts[:3] == [
        "mean loss of the phase over the steps since the last row",
        "mean loss of the phase; on held-out events",
        "odd one, a number of the workload",
    ]
    assert set(texts[3:]) == {""}


def test_what_is_written_is_what_torch_writes(tmp_path):
    from torch.utils.tensorboard import summary

    numbers = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    lopsided = np.concatenate([[-9.0], numbers.ravel(), [7.0]])
    keys, metrics = {"a": 1, "b": 0.5, "c": "x", "d": True}, {"loss": 0.1, "auc": 0.6}
    with contextlib.closing(EventFile(tmp_path, "000000.r", 0)) as file:
        file.scalars(1, 0.0, {"loss": 0.25})
        file.scalars(2, 0.0, {"loss": 0.5})
        for values in (numbers, lopsided, np.ones(1)):
            file.histogram(3, 0.0, "weights", values)
        file.text(4, 0.0, "card", "*what*")
        file.hyper_parameters(5, keys, metrics)
    written = [Event.FromString(record[12:-4]) for record in _records(file.path)][2:]  # version, description
    assert [event.summary for event in written] == [
        summary.scalar("loss", 0.5),
        *(summary.histogram("weights", values, bins=64) for values in (numbers, lopsided, np.ones(1))),
        summary.text("card", "*what*"),
        *summary.hparams(keys, metrics),
    ]


@pytest.mark.parametrize(("cut", "zeros"), [(3, 0), (0, 160), (3, 3), (20, 20), (40, 200)])
def test_a_record_that_a_crash_cut_or_a_power_failure_left_as_zeros_is_no_event(tmp_path, cut, zeros):
    write_events(tmp_path, 0, [10, 20])
    path = next(tmp_path.iterdir())
    content = path.read_bytes()
    path.write_bytes(content[: len(content) - cut] + bytes(zeros))
    write_events(tmp_path, 20, [30])
    assert steps_of(tmp_path) == ([10, 30] if cut else [10, 20, 30])


def test_values_that_are_not_finite_are_left_out_of_a_histogram(tmp_path):
    file = EventFile(tmp_path, "000000.r", 0)
    file.histogram(5, 1.0, "energy", np.array([1.0, np.nan, 2.0, np.inf]))
    file.histogram(5, 1.0, "nothing", np.array([np.nan]))
    file.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert events.Histograms("energy")[0].histogram_value.num == 2
    assert events.Tags()["histograms"] == ["energy"]


def test_metrics_are_cut_back_to_the_resumed_step(tmp_path):
    path = tmp_path / "metrics.jsonl"
    first = MetricsFile(path, 0)
    for step in (10, 20, 30):
        first.add({"step": step})
    with path.open("a") as handle:
        handle.write('{"step": 4')
    MetricsFile(path, 20).add({"step": 30})
    assert [row["step"] for row in read_metrics(path)] == [10, 20, 30]
    assert all(json.loads(line) for line in path.read_text().splitlines())


def test_hyper_parameters_stand_beside_the_final_metrics(tmp_path):
    file = EventFile(tmp_path, "000000.r", 0)
    file.hyper_parameters(7, {"train.passes_per_link": 2, "split.reference_ranges": []}, {"critic/loss": 0.5})
    file.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    found = events.SummaryMetadata("_hparams_/session_start_info").plugin_data
    assert found.plugin_name == "hparams"
    assert b"train.passes_per_link" in found.content


def test_curves_of_links_that_have_another_place_now_are_gone(tmp_path):
    config = toy_config(tmp_path)
    folder = config.paths().tensorboard()
    folder.mkdir(parents=True)
    theirs, moved = "events.out.tfevents.1700000000.host.7.0", "events.out.tfevents.000000.outliers"
    for name in (theirs, moved, f"events.out.tfevents.000001.{RANGES[1]}"):
        (folder / name).touch()
    trained(config, FIRST)
    ends = [path.name.removeprefix("events.out.tfevents.") for path in sorted(folder.iterdir())]
    assert ends == [f"000000.{FIRST}", f"000001.{RANGES[1]}", "1700000000.host.7.0"]


def test_loggers_get_every_row_and_disturb_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(metrics_log, "CLOSE_S", 0.2)
    monkeypatch.setattr(metrics_log, "MOST_WAITING", 3)
    expected, _, _ = trained(toy_config(tmp_path / "plain", train=VALIDATED), FIRST)
    names = ["toy:KeptRows", "toy:RaisingLogger", "toy:SleepingLogger"]
    config = toy_config(tmp_path / "logged", train={**VALIDATED, "log_steps": 1, "loggers": names[1:]})
    _, _, told = trained(config, FIRST)
    assert told.count("toy:RaisingLogger failed: ConnectionError: no server") == 1
    assert "toy:SleepingLogger has not finished in 0.2 s" in told
    assert "toy:SleepingLogger was too slow" in told
    config = toy_config(tmp_path / "works", train={**VALIDATED, "loggers": names})
    receipt, _, _ = trained(config, FIRST)
    assert receipt["sha256"] == expected["sha256"]
    works = next(made for made in KeptRows.made if type(made) is KeptRows)
    assert (works.run.run, works.run.link, works.run.step) == ("toy", FIRST, 0)
    assert works.run.folder == config.paths().run_dir()
    assert works.closed
    steps = [step for step, metrics in works.rows if "critic/loss" in metrics]
    assert steps == [4, 7]
    assert any("validation/score" in metrics for _, metrics in works.rows)


def test_a_logger_that_cannot_be_imported_is_refused(tmp_path):
    config = toy_config(tmp_path, train={"loggers": ["toy:KeptRow"]})
    for call in (lambda config: trained(config, FIRST), check_fit):
        with pytest.raises(ConfigError, match="train.loggers: toy has no class KeptRow; .*mean KeptRows"):
            call(config)
