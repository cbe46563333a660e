"""One to thirty held-out events: finite numbers and all figures, and no warning (an error here)."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crpipe.workloads.xec.layout import TRUTHS
from crpipe.workloads.xec.scoring import curve, hidden, metrics
from crpipe.workloads.xec.scoring.score import score
from xenon_toy import make_hidden, make_predictions, make_truth


@settings(max_examples=40, deadline=None)
@given(events=st.integers(1, 30), seed=st.integers(0, 50))
def test_numbers_of_few_events_are_finite(events, seed):
    truth = make_truth(events, seed)
    prediction = make_predictions(truth, seed)
    found = metrics.measure(truth.columns, prediction, TRUTHS) | curve.measure(truth.columns, prediction)
    assert np.isfinite(list(found.values())).all()
    assert {metric.name for metric in metrics.metrics(TRUTHS)} <= found.keys()
    assert ("energy_bias_error" in found) == (events > 1)


@pytest.mark.slow
@pytest.mark.parametrize("events", [1, 2, 30])
def test_figures_of_few_events(events, tmp_path):
    truth = make_truth(events)
    score(truth, make_predictions(truth), tmp_path, TRUTHS)
    # A curve over the energies needs more of them.
    assert len(list(tmp_path.glob("*.svg"))) == 9


@pytest.mark.parametrize("events", [1, 2])
@pytest.mark.parametrize("share", [0.0, 0.001])
def test_hidden_sensors_of_few_events(events, share, tmp_path):
    found = hidden.score(make_truth(events), make_hidden(events, share=share), tmp_path)
    assert np.isfinite(list(found.values())).all()
    assert bool(found) == bool(share)
