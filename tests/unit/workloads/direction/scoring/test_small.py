"""One to thirty held-out events: finite numbers and all figures, and no warning (an error here)."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crpipe.workloads.direction.scoring import metrics
from crpipe.workloads.direction.scoring.line_fit import line_fit
from crpipe.workloads.direction.scoring.score import score


@settings(max_examples=40, deadline=None)
@given(events=st.integers(1, 30), seed=st.integers(0, 50))
def test_numbers_of_few_events_are_finite(judged, events, seed):
    truth, prediction = judged(events, seed)
    found = metrics.measure(truth.columns, prediction)
    names = [metric.name for metric in (*metrics.METRICS, *metrics.KAPPA_METRICS)]
    assert np.isfinite(list(found.values())).all()
    assert {*names} <= found.keys()
    assert ("angle_mean_deg_error" in found) == (events > 1)


@pytest.mark.slow
@pytest.mark.parametrize("events", [1, 2, 30])
def test_figures_of_few_events(judged, events, tmp_path):
    truth, prediction = judged(events)
    score(truth, prediction, tmp_path)
    assert len(list(tmp_path.glob("*.svg"))) == 4


def test_the_line_fit_of_one_event_of_one_pulse_or_none(detector, tracks):
    whole = tracks([1.0], [0.5], detector)
    for pulses in (0, 1, 2):
        few = whole.part(0, 1)
        few = type(few)(few.columns, np.array([pulses], np.uint32), few.items[:pulses])
        assert np.isfinite(np.concatenate(line_fit(few, detector))).all()
