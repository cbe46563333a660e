"""The numbers of validation inside training: per event, proper, repeatable."""

import numpy as np
import pytest
import torch

from crpipe.events.batch import Events
from crpipe.train.workload import Validates
from crpipe.workloads.muons import MuonFlow, MuonFlowOptions, MuonGan, MuonGanOptions
from crpipe.workloads.muons.scoring.sample import energy_scores


@pytest.mark.parametrize(
    "workload",
    [MuonGan(MuonGanOptions(hidden=8)), MuonFlow(MuonFlowOptions(hidden=8, sampling_steps=3))],
    ids=["gan", "flow"],
)
def test_both_workloads_give_one_finite_number_for_each_event_and_metric(bundles, workload):
    assert isinstance(workload, Validates)
    torch.manual_seed(0)
    model = workload.model()
    events = bundles([0, 1, 3, 500, 0])
    with torch.no_grad():
        one, same = (workload.validate(model, events, torch.Generator().manual_seed(1)) for _ in range(2))
    assert list(one) == [metric.name for metric in workload.validation_metrics]
    for name, values in one.items():
        assert values.shape == (5,)
        assert np.isfinite(values).all()
        np.testing.assert_array_equal(values, same[name])
    assert one["score_log_energy"][0] == 0.0


def test_the_energy_score_is_without_bias_and_least_for_the_true_distribution():
    """Normal log energies: E|x - y| = 2 s / sqrt(pi) for the truth itself, half of it the score."""
    rng = np.random.default_rng(1)
    multiplicity = np.resize([1, 2, 40], 6000).astype(np.uint32)

    def events(shift, width):
        items = np.ones((int(multiplicity.sum()), 3), np.float32)
        items[:, 0] = 10 ** (2.0 + shift + width * rng.normal(size=len(items)))
        return Events({}, multiplicity, items)

    def score(shift, width):
        found = energy_scores(events(0.0, 0.3), events(shift, width), events(shift, width), 3)
        return found["score_log_energy"].mean()

    assert score(0.0, 0.3) == pytest.approx(0.3 / np.sqrt(np.pi), abs=0.01)
    assert all(score(*wrong) > score(0.0, 0.3) + 0.01 for wrong in ((0.2, 0.3), (0.0, 0.1), (0.0, 0.7)))
