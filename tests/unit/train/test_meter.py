"""Metrics are means over events, whatever batches they came in; steps are counted, a profile is written."""

import json
import sys
import threading
from types import SimpleNamespace

import pytest
import torch

from crpipe.events.batch import Cursor
from crpipe.train.checkpoints import Counters
from crpipe.train.meter import WARM_UP_STEPS, Clock, GpuSampler, Meter, Profiler, UncountedSteps
from crpipe.train.ranks import World
from toy import make_events

WORLD = World(0, 1, torch.device("cpu"))


def test_a_mean_weighs_by_events_and_is_reset_by_reading():
    meter = Meter(WORLD.device)
    meter.add("loss", torch.tensor(1.0), 30)
    meter.add("loss", torch.tensor(5.0), 10)
    meter.add("loss", torch.tensor(float("nan")), 30)  # counts for nothing
    assert meter.read(WORLD) == {"loss": 2.0}
    assert meter.read(WORLD) == {}


def test_a_series_gives_quantiles():
    meter = Meter(WORLD.device)
    for value in range(101):
        meter.record("norm", torch.tensor(float(value)))
    assert meter.read(WORLD) == pytest.approx({"norm_p50": 50.0, "norm_p95": 95.0, "norm_max": 100.0})


def test_a_restored_meter_goes_on_exactly():
    whole, cut, resumed = (Meter(WORLD.device) for _ in range(3))
    for value in (0.1, 0.2):
        for meter in (whole, cut):
            meter.add("loss", torch.tensor(value), 3)
            meter.record("norm", torch.tensor(value))
    resumed.restore(cut.state(WORLD), WORLD)
    for meter in (whole, resumed):
        meter.add("loss", torch.tensor(0.7), 5)
        meter.record("norm", torch.tensor(0.7))
    assert whole.read(WORLD) == resumed.read(WORLD)


def test_steps_are_counted_and_skipped_ones_named_by_file_row_and_key():
    uncounted = UncountedSteps(WORLD, ("primary_major_id",))
    counters, clock = Counters(), Clock()
    first, second = make_events(30, 1), make_events(2, 2)
    for number, bad, events in ((1, 1.0, first), (2, 0.0, first), (3, 1.0, second)):
        uncounted.add(number, torch.tensor(bad), [(events, Cursor(0, number))])
    assert len(uncounted) == 3
    _, skipped = uncounted.count(counters, clock)
    names = [int(value) for value in second.columns["primary_major_id"]]
    named = [f"file 2 row {row} (primary_major_id {name})" for row, name in enumerate(names)]
    assert skipped == (3, [[0, 3]], named, False)
    assert (counters.events, counters.skipped, counters.skipped_in_row) == (62, 2, 1)
    assert counters.items == 2 * len(first.items) + len(second.items) == clock.items
    for number, flag in ((4, 2.0), (5, 0.0), (6, 2.0)):  # of loss scales: no failures
        uncounted.add(number, torch.tensor(flag), [(second, Cursor(0, number))])
        assert [each.overflowed for each in uncounted.count(counters, clock)] == [True] * (flag == 2)
        assert counters.skipped_in_row == (number == 4)
    assert counters.skipped == 4
    assert uncounted.count(counters, clock) == []
    assert len(uncounted) == 0


def test_a_profile_is_reported_once_with_operators_and_a_trace(tmp_path):
    told = []
    profiler = Profiler(2, tmp_path / "trace.json", told.append)
    for _ in range(WARM_UP_STEPS + 6):
        torch.ones(8, 8) @ torch.ones(8, 8)
        profiler.step()
    assert len(told) == 2
    assert "aten::mm" in told[0]
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]


def test_a_gpus_figures_cost_nothing_where_none_is():
    before = threading.active_count()
    with GpuSampler(torch.device("cpu")) as sampler:
        assert threading.active_count() == before
        assert sampler.read() == {}


def test_a_gpu_is_asked_for_by_torchs_number(monkeypatch):
    """NVML counts the devices that CUDA_VISIBLE_DEVICES hides, too; torch knows both numbers."""
    asked = threading.Event()

    def used(device):
        asked.set()
        return {1: 3 << 20}[device.index]

    monkeypatch.setitem(sys.modules, "pynvml", SimpleNamespace(NVMLError=OSError))
    monkeypatch.setattr(torch.cuda, "utilization", lambda device: {1: 40}[device.index])
    monkeypatch.setattr(torch.cuda, "device_memory_used", used)
    monkeypatch.setattr("crpipe.train.meter.GPU_PERIOD_S", 0.001)
    with GpuSampler(torch.device("cuda", 1)) as sampler:
        assert asked.wait(60)
    assert sampler.read() == {"gpu/utilisation_percent": 40.0, "gpu/used_mib": 3.0}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU and pip install crpipe[gpu]")
def test_samples_a_gpu():
    pytest.importorskip("pynvml")
    with GpuSampler(torch.device("cuda", 0)) as sampler:
        x = torch.randn(4096, 4096, device="cuda")
        for _ in range(200):
            x = torch.nn.functional.normalize(x @ x)
        torch.cuda.synchronize()
        threading.Event().wait(1.5)
        assert sampler.read()["gpu/used_mib"] > 0
