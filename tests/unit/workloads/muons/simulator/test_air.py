"""Lines through the US standard atmosphere."""

import numpy as np
import pytest

from crpipe.workloads.muons.simulator.air import EARTH_RADIUS_M, SURFACE_M, TOP_M, Air, standard_air

ALTITUDES = np.array([5e3, 1.1e4, 2e4, 5e4])
# US standard atmosphere 1976, pressure over 9.81 m/s2: 540, 226.3, 55.3, 0.8 hPa.
VERTICAL_G_CM2 = np.array([551, 231, 56.4, 0.81])


def test_vertical_depths_are_the_pressures():
    air, up = standard_air(), np.ones(4)
    depth = air.depth(air.length(ALTITUDES, up), up)
    assert depth[:3] == pytest.approx(VERTICAL_G_CM2[:3], rel=0.01)
    assert depth[3] == pytest.approx(VERTICAL_G_CM2[3], rel=0.15)


def test_the_sea_lies_below_all_of_the_air():
    assert Air(0.0).depth(np.zeros(1), np.ones(1))[0] == pytest.approx(1036, rel=0.005)


@pytest.mark.parametrize(("degrees", "tolerance"), [(0, 1e-6), (60, 0.01), (75, 0.05)])
def test_inclined_lines_are_longer_by_the_cosine(degrees, tolerance):
    """And a little less, by the Earth's curvature."""
    air, cosine = standard_air(), np.cos(np.deg2rad([degrees]))
    flat = (ALTITUDES - SURFACE_M) / cosine
    length = air.length(ALTITUDES, cosine)
    assert length[:2] == pytest.approx(flat[:2], rel=tolerance)
    assert np.all(length <= flat * (1 + 1e-12))
    ratio = air.depth(np.zeros(1), cosine) / air.depth(np.zeros(1), np.ones(1))
    assert ratio == pytest.approx(1 / cosine, rel=tolerance)


def test_a_horizontal_line_ends_on_the_sphere():
    """Pythagoras, and the 36 to 40 times of the vertical air that horizontal lines pass."""
    air, level = standard_air(), np.zeros(1)
    length = air.length(np.array([1e4]), level)[0]
    assert length == pytest.approx(np.sqrt(2 * EARTH_RADIUS_M * (1e4 - SURFACE_M)), rel=1e-3)
    ratio = air.depth(np.zeros(1), level) / air.depth(np.zeros(1), np.ones(1))
    assert 33 < ratio[0] < 42


@pytest.mark.parametrize("surface_m", [0.0, SURFACE_M])
def test_length_at_is_the_inverse_of_depth(surface_m):
    rng, air = np.random.default_rng(1), Air(surface_m)
    cosine = rng.uniform(0.1, 1, 1000)
    length = air.length(rng.uniform(surface_m + 100, 6e4, 1000), cosine)
    assert air.length_at(air.depth(length, cosine), cosine) == pytest.approx(length, rel=2e-3)


def test_no_length_is_left_below_the_surface_and_all_of_it_above_the_air():
    air, cosine = standard_air(), np.array([1.0, 0.3])
    assert air.length_at(np.array([1e4, 1e5]), cosine) == pytest.approx([0, 0], abs=1e-6)
    assert air.length_at(np.zeros(2), cosine) == pytest.approx(
        air.length(np.full(2, TOP_M), cosine), rel=1e-6
    )
