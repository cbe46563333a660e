"""The curve of the learning rates before a campaign runs."""

import xml.etree.ElementTree as ET

import pytest

from crpipe.report.figures import RateCurve, RatePlan, plot_rates


def level(step, _):
    return min(1.0, (step + 1) / 100)


def falling(_, progress):
    return 1.0 - min(1.0, progress)


CURVES = (RateCurve("head", "constant", level, 1e-3, True), RateCurve("body", "cosine", falling, 1e-4, False))


@pytest.mark.parametrize("range_steps", [None, 250.0])
def test_each_phase_has_a_panel(tmp_path, range_steps):
    plan = RatePlan(CURVES, 0, 20, 20, (10,), range_steps)
    text = plot_rates(plan, tmp_path / "rates.svg").read_text()
    ET.fromstring(text)
    assert "head: constant, 0.001 at most" in text
    assert "body: cosine, 0.0001 at most" in text
    assert ("steps, about 250 in a range" in text) == (range_steps is not None)
    assert "round 2" in text
    assert ("without the warm-up" in text) == (range_steps is None)


def test_without_a_warm_up_nothing_is_said_about_it(tmp_path):
    plan = RatePlan(CURVES[1:], 5, 20, 15, (), None)
    text = plot_rates(plan, tmp_path / "rates.svg").read_text()
    assert "warm-up" not in text
    assert "train.horizon_ranges" in text
