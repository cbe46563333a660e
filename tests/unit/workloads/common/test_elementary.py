"""Elementary functions by float64: of the type that came in, and as exact as that type can be."""

import numpy as np
import pytest

from crpipe.workloads.common import elementary

ONE = ("log10", "log1p", "expm1", "arcsin", "arccos")


@pytest.mark.parametrize("name", ONE)
def test_float32_is_the_rounded_float64_result(name):
    x = np.random.default_rng(1).random(3003, np.float32)
    for part in (x, x[::3], x[:1], x.reshape(3, -1)):
        found = getattr(elementary, name)(part)
        assert found.dtype == np.float32
        assert np.array_equal(found, getattr(np, name)(part.astype(np.float64)).astype(np.float32))


@pytest.mark.parametrize("name", ONE)
def test_numbers_and_whole_numbers_give_float64(name):
    for value in (1, 0.5, np.array([1, 1]), np.float64(0.25)):
        found = getattr(elementary, name)(value)
        assert found.dtype == np.float64
        assert np.array_equal(found, getattr(np, name)(np.float64(value)))


def test_an_angle_takes_arrays_that_broadcast():
    y = np.linspace(-3, 3, 7, dtype=np.float32)[:, None]
    x = np.linspace(-2, 2, 5, dtype=np.float32)
    found = elementary.arctan2(y, x)
    assert found.dtype == np.float32
    assert np.array_equal(found, np.arctan2(y.astype(float), x.astype(float)).astype(np.float32))
    assert elementary.arctan2(y, 1.0).dtype == np.float32


def test_random_numbers_are_those_of_float64():
    def rng():
        return np.random.default_rng(5)

    shape = np.linspace(0.01, 4, 999, dtype=np.float32)
    wide = shape.astype(np.float64)
    pairs = (
        (elementary.normal(rng(), (4, 999)), rng().standard_normal((4, 999))),
        (elementary.exponential(rng(), 999), rng().standard_exponential(999)),
        (elementary.gamma(rng(), shape), rng().standard_gamma(wide)),
    )
    for found, wanted in pairs:
        assert found.dtype == np.float32
        assert np.array_equal(found, wanted.astype(np.float32))
