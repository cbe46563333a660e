"""The log-posterior of several generators: the one whose events are most like true ones gets most of it."""

import math

import numpy as np
import pytest
from scipy.stats import norm

from crpipe.statistics.classifier import FEWEST_GROUPS, LabelledRows
from crpipe.statistics.posterior import PARTS, log_posteriors


def generator(shift, seed, groups=1500, copies=1):
    """True events, the same for all, beside generated ones that are shifted."""
    truth = np.random.default_rng(0).normal(size=(groups, 1))
    events = np.random.default_rng(np.append(1, seed)).normal(shift, size=(groups * copies, 1))
    event = np.concatenate([np.arange(groups), np.tile(np.arange(groups), copies)])
    real = np.arange(len(event)) < groups
    features = np.concatenate([truth, events])
    return LabelledRows(features, real, event, np.arange(groups), np.ones(len(event)))


def numbers(*models):
    values = log_posteriors(models)
    return zip(values.mean(axis=0), values.std(axis=0, ddof=1) / math.sqrt(PARTS), strict=True)


def test_equal_generators_share_the_posterior():
    for value, error in numbers(generator(0.5, 1), generator(0.5, 2), generator(0.5, 3)):
        assert value == pytest.approx(-math.log(3), abs=0.05)
        assert error < 0.03


def test_the_better_generator_gets_what_the_densities_say():
    (near, error), (far, _) = numbers(generator(0.0, 1), generator(1.0, 2))
    x = np.random.default_rng(0).normal(size=1500)
    density = norm.pdf(x), norm.pdf(x - 1)
    assert near == pytest.approx(np.log(density[0] / (density[0] + density[1])).mean(), abs=0.06)
    assert near - far > 10 * error


def test_a_generator_of_more_rows_has_no_advantage():
    (one, _), (other, _) = numbers(generator(0.0, 1), generator(0.0, 2, copies=3))
    assert one == pytest.approx(other, abs=0.1)


def test_equal_generators_differ_by_their_errors():
    """A second error of Student's distribution with four degrees of freedom: 2.78."""
    far = 0
    for seed in range(40):
        values = log_posteriors([generator(0.5, [seed, side], 300) for side in (1, 2)])
        gap = values[:, 0] - values[:, 1]
        far += abs(gap.mean()) > 2.78 * gap.std(ddof=1) / math.sqrt(PARTS)
    assert far <= 6  # of 2; more once in 100 times


def test_few_groups_say_nothing():
    few = PARTS * FEWEST_GROUPS
    assert log_posteriors([generator(0.0, seed, few - 1) for seed in (1, 2)]) is None
    assert log_posteriors([generator(0.0, seed, few) for seed in (1, 2)]) is not None
