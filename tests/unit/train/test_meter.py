"""Metrics are means over events, whatever batches they came in."""

import pytest
import torch

from crpipe.train.meter import Meter
from crpipe.train.ranks import World

WORLD = World(0, 1, torch.device("cpu"))


def test_a_mean_weighs_by_events_and_is_reset_by_reading():
    meter = Meter(WORLD.device)
    meter.add("loss", torch.tensor(1.0), 30)
    meter.add("loss", torch.tensor(5.0), 10)
    assert meter.read(WORLD) == {"loss": 2.0}
    assert meter.read(WORLD) == {}


def test_a_value_that_is_not_finite_counts_for_nothing():
    meter = Meter(WORLD.device)
    meter.add("loss", torch.tensor(float("nan")), 30)
    meter.add("loss", torch.tensor(5.0), 10)
    assert meter.read(WORLD) == {"loss": 5.0}


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
    resumed.restore(cut.state())
    for meter in (whole, resumed):
        meter.add("loss", torch.tensor(0.7), 5)
        meter.record("norm", torch.tensor(0.7))
    assert whole.read(WORLD) == resumed.read(WORLD)
