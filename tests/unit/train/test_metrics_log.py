"""No step ever stands twice, in metrics.jsonl or in TensorBoard."""

import json

import numpy as np
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from crpipe.train.metrics_log import EventFile, MetricsFile, _records, read_metrics


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


def test_an_event_file_cut_by_a_crash_keeps_its_whole_records(tmp_path):
    write_events(tmp_path, 0, [10, 20])
    path = next(tmp_path.iterdir())
    path.write_bytes(path.read_bytes()[:-3])
    write_events(tmp_path, 20, [30])
    assert steps_of(tmp_path) == [10, 30]


def test_zeros_that_a_power_failure_left_are_no_events(tmp_path):
    write_events(tmp_path, 0, [10, 20])
    path = next(tmp_path.iterdir())
    path.write_bytes(path.read_bytes() + bytes(160))
    write_events(tmp_path, 20, [30])
    assert steps_of(tmp_path) == [10, 20, 30]
    assert b"" not in list(_records(path))


def test_histograms_can_be_read(tmp_path):
    file = EventFile(tmp_path, "000000.r", 0)
    file.histogram(5, 1.0, "energy", np.arange(100.0))
    file.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert events.Histograms("energy")[0].histogram_value.num == 100


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
    file.hyper_parameters(7, {"train.epochs": 2, "split.reference_ranges": []}, {"critic/loss": 0.5})
    file.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    found = events.SummaryMetadata("_hparams_/session_start_info").plugin_data
    assert found.plugin_name == "hparams"
    assert b"train.epochs" in found.content
