"""The four words: what each needs, and how often they are wrong on small samples."""

import math

import numpy as np
import pytest

from crpipe.statistics.groups import bootstrapped, effective_groups, error_of, mean
from crpipe.statistics.verdict import (
    AGREES,
    CANNOT_TELL,
    DIFFERS,
    LEVEL,
    SMALL,
    Difference,
    errors_needed,
    levels,
    worst,
)

MANY = 10_000  # groups: Student's distribution is Gauss's


@pytest.mark.parametrize(
    ("value", "error", "word"),
    [
        (0.001, 0.002, AGREES),
        (-0.5, 0.01, AGREES),
        (0.008, 0.002, SMALL),
        (0.05, 0.002, DIFFERS),
        (0.001, 0.02, CANNOT_TELL),
        (0.03, 0.02, CANNOT_TELL),
        (math.nan, 0.01, CANNOT_TELL),
        (0.05, math.nan, CANNOT_TELL),
    ],
)
def test_words(value, error, word):
    one = Difference(value, error, MANY, tolerance=0.01)
    assert one.word() == word


def test_a_number_that_should_be_near_is_bad_on_both_sides():
    assert Difference(-0.05, 0.001, MANY, tolerance=0.01, two_sided=True).word() == DIFFERS
    assert Difference(-0.05, 0.001, MANY, tolerance=0.01).word() == AGREES


def test_what_it_is_at_most_forbids_to_agree():
    """A distance is as large as the floor's by chance: it agrees only if it is near 0, too."""
    assert Difference(0.0, 0.001, MANY, tolerance=0.01, most=0.02).word() == CANNOT_TELL
    assert Difference(0.0, 0.001, MANY, tolerance=0.01, most=0.005).word() == AGREES


def test_a_calibrated_chance_replaces_that_of_the_error():
    assert Difference(0.05, 0.02, MANY, tolerance=0.01, p=0.5).word() == CANNOT_TELL
    assert Difference(math.inf, math.inf, MANY, tolerance=0.01, p=0.001).word() == DIFFERS


def test_the_groups_that_are_needed():
    one = Difference(0.0, 0.02, 400, tolerance=0.01)
    assert one.needed == pytest.approx(400 * (errors_needed(400) * 2) ** 2, abs=1)
    assert Difference(0.0, 0.02, 400).needed is None
    assert Difference(0.0, math.nan, 400, tolerance=0.01).needed is None
    assert Difference(0.0075, 0.004, 400, tolerance=0.01).word() == CANNOT_TELL
    assert Difference(0.0075, 0.004, 400, tolerance=0.01).needed > 400  # though 400 resolve 0.008
    assert math.isinf(errors_needed(1))
    assert errors_needed(10) > errors_needed(100) > 2


def test_without_errors_only_equal_numbers_are_equal():
    assert Difference(0.0, 0.0, 5, tolerance=0.01).word() == AGREES
    assert Difference(0.5, 0.0, 5, tolerance=0.01).word() == DIFFERS


def test_holm():
    assert levels([0.01, 0.04, 0.03], 0.05) == pytest.approx([0.05 / 3, -1, -1])
    assert levels([0.01, 0.02, 0.2], 0.05) == pytest.approx([0.05 / 3, 0.025, -1])
    assert levels([]) == []


def test_the_worst_word():
    assert worst([AGREES, CANNOT_TELL, SMALL]) == CANNOT_TELL
    assert worst([AGREES, DIFFERS, CANNOT_TELL]) == DIFFERS
    assert worst([]) == ""


def judged(seed, groups, shift, numbers=1, *, two_sided=False):
    """Words of paired means of groups of one to four events each, after Holm's correction."""
    rng = np.random.default_rng([seed, groups])
    group = np.repeat(np.arange(groups), rng.integers(1, 5, groups))
    parts = []
    for _ in range(numbers):
        values = shift + 0.2 * rng.normal(size=groups)[group] + 0.1 * rng.normal(size=len(group))
        replicas = bootstrapped({"it": mean(values)}, group)["it"]
        parts.append(Difference(replicas[0], error_of(replicas, groups), groups, 0.05, two_sided=two_sided))
    limits = levels([part.chance for part in parts])
    return [part.word(limit) for part, limit in zip(parts, limits, strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize("groups", [15, 60])
@pytest.mark.parametrize("two_sided", [False, True])
def test_a_difference_of_the_size_of_the_tolerance_seldom_agrees(groups, two_sided):
    words = [judged(seed, groups, 0.05, two_sided=two_sided)[0] for seed in range(1000)]
    assert words.count(AGREES) <= 50


@pytest.mark.slow
@pytest.mark.parametrize(("groups", "numbers"), [(15, 1), (60, 1), (30, 5)])
@pytest.mark.parametrize("two_sided", [False, True])
def test_equal_samples_seldom_differ(groups, numbers, two_sided):
    words = [worst(judged(seed, groups, 0.0, numbers, two_sided=two_sided)) for seed in range(1000)]
    assert words.count(DIFFERS) <= 50


def test_many_groups_find_both():
    assert judged(1, 5000, 0.0, two_sided=True) == [AGREES]
    assert judged(1, 5000, 0.1, two_sided=True) == [DIFFERS]
    assert judged(1, 5000, 0.02, two_sided=True) == [AGREES]
    assert judged(1, 500, 0.045, two_sided=True) == [SMALL]
    assert pytest.approx(0.0455, abs=1e-4) == LEVEL


@pytest.mark.parametrize("count", [15, 60])
def test_weights_over_six_decades_are_few_groups(count):
    """Student's distribution of as many groups as were seen would call 1 in 9 equal samples different."""
    rng, seen = np.random.default_rng(count), []
    for _ in range(400):
        weight, values = 10 ** rng.uniform(-3, 3, count), rng.normal(size=count)
        group = np.arange(count)
        known = effective_groups(group, weight)
        replicas = bootstrapped({"x": mean(values, weight)}, group)["x"]
        one = Difference(replicas[0], error_of(replicas, known), count, two_sided=True, effective=known)
        seen.append(one.word() == DIFFERS)
    assert np.mean(seen) < 0.07
