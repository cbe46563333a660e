"""Few groups, few events, no muons: numbers or none, and never a warning (an error here)."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crpipe.events.batch import Events
from crpipe.workloads.muons.layout import BUNDLES
from crpipe.workloads.muons.scoring import classify, metrics
from crpipe.workloads.muons.scoring.score import sample_of, score
from unrendered import unrendered

DECLARED = {metric.name: metric for metric in classify.METRICS}


def make_events(groups, depths, mean, seed, energy=None):
    """Groups of events at several depths; their muons depend on the seed, their conditions do not."""
    fixed, rng = np.random.default_rng(groups), np.random.default_rng([seed, groups, depths])
    count = groups * depths
    columns = {field.name: np.zeros(count, field.dtype) for field in BUNDLES.events}
    columns["primary_minor_id"] = np.repeat(np.arange(groups), depths).astype(np.uint64)
    columns["energy_gev"] = np.repeat(10 ** fixed.uniform(4, 7, groups), depths).astype(np.float32)
    columns["zenith_rad"] = np.repeat(fixed.uniform(0, 1, groups), depths).astype(np.float32)
    columns["mass_number"] = np.ones(count, np.float32)
    columns["depth_m"] = np.tile(np.linspace(1000, 2800, depths), groups).astype(np.float32)
    if energy is not None:
        columns["energy_gev"][:] = energy
    multiplicity = rng.poisson(mean, count).astype(np.uint32)
    muons = np.abs(rng.normal(10, 5, (int(multiplicity.sum()), 3))).astype(np.float32)
    return Events(columns, multiplicity, muons)


@settings(max_examples=60, deadline=None)
@given(
    groups=st.integers(1, 30),
    depths=st.sampled_from((1, 2, 20)),
    means=st.tuples(st.sampled_from((0.0, 0.3, 5.0, 40.0)), st.sampled_from((0.0, 5.0, 40.0))),
    seed=st.integers(0, 5),
)
def test_numbers_of_any_few_events_are_finite_and_have_errors_or_are_missing(groups, depths, means, seed):
    real, generated = (
        sample_of(make_events(groups, depths, mean, 2 * seed + side)) for side, mean in enumerate(means)
    )
    found = metrics.compare(real, generated, metrics.classifier_scores(real, generated))
    assert np.isfinite(list(found.values())).all()
    for name in DECLARED.keys() & found.keys():
        assert groups >= DECLARED[name].groups
        # Only where all events are the same, or no generated one is like a real one, nothing can scatter.
        assert found[f"{name}_error"] > 0 or found[name] in (0.0, 0.5, 1.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("groups", "depths", "means"),
    [(1, 1, (0.0, 0.0)), (1, 1, (5.0, 40.0)), (2, 1, (0.0, 5.0)), (5, 4, (5.0, 0.0)), (30, 20, (40.0, 40.0))],
)
def test_every_figure_is_plotted_of_few_events(groups, depths, means, tmp_path):
    truth, made = (make_events(groups, depths, mean, side) for side, mean in enumerate(means))
    score(truth, made, tmp_path)
    assert len(list(tmp_path.glob("*.svg"))) == 8


def test_enough_groups_have_every_declared_number(tmp_path):
    groups = max(metric.groups for metric in classify.METRICS)
    truth, made = (make_events(groups, 60, 40.0, side, energy=5e5) for side in (1, 2))
    with unrendered():
        found = score(truth, made, tmp_path)
    assert DECLARED.keys() <= found.keys()
    assert all(found[f"{name}_error"] > 0 for name in DECLARED)


def test_one_group_less_has_no_auc():
    groups = 2 * classify.FEWEST_GROUPS - 1
    real, generated = (sample_of(make_events(groups, 60, 40.0, side, energy=5e5)) for side in (1, 2))
    found = metrics.compare(real, generated, metrics.classifier_scores(real, generated))
    assert not [name for name in found if name.startswith("auc_")]
    assert "w1_log_energy" in found
