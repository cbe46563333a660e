"""The light of muons and flashes: when it comes, where from, and how much."""

import numpy as np
import pytest

from crpipe.workloads.direction.simulator.physics import (
    C_M_PER_NS,
    DELAY_NS,
    GROUP_NS_PER_M,
    PER_STRING,
    SCATTERING_M,
    STRINGS,
    Particles,
    Points,
    delays,
    muon_light,
    muon_pairs,
    point_light,
    point_pairs,
    sensors,
    strings,
)

DOWN, UP, ALONG_X = (0.0, 0.0, 1.0), (0.0, 0.0, -1.0), (-1.0, 0.0, 0.0)  # where from


def particle(source, energy=1e4, place=(30.0, 20.0, 0.0), start=-3000.0, stop=3000.0, cascade=False):
    ends = np.array([[start], [stop]])
    return Particles(
        np.array([source]), np.array([energy]), np.array([cascade]), np.array([place]), ends[0], ends[1]
    )


def muon(*given, **options):
    """Light of one muon on all sensors: photons and first times, [STRINGS, PER_STRING]."""
    particles = particle(*given, **options)
    return dense(muon_light(particles, *muon_pairs(particles)))


def dense(light):
    photons, time = np.zeros(STRINGS * PER_STRING), np.full(STRINGS * PER_STRING, np.nan)
    photons[light.sensor], time[light.sensor] = light.mean, light.direct_ns
    return photons.reshape(STRINGS, PER_STRING), time.reshape(STRINGS, PER_STRING)


def nearest(place=(30.0, 20.0)):
    return int(np.argmin(np.hypot(*(strings()[:, :2] - place).T)))


def test_light_of_a_vertical_muon_from_above_runs_down():
    """Its zenith is 0, it travels along minus the unit vector, and sensors follow 17 m / c apart."""
    _, time = muon(DOWN)
    steps = np.diff(time[nearest()])
    assert np.all(steps > 0)
    assert steps == pytest.approx(17 / C_M_PER_NS, abs=0.02)
    assert np.diff(muon(UP)[1][nearest()]) == pytest.approx(-17 / C_M_PER_NS, abs=0.02)


def test_light_of_a_muon_travels_along_minus_the_unit_vector():
    rng = np.random.default_rng(5)
    for vector in rng.normal(size=(20, 3)):
        source = vector / np.linalg.norm(vector)
        photons, time = muon(source, energy=1e6)
        seen = photons.ravel() > 1
        place = sensors()[seen] - sensors()[seen].mean(axis=0)
        drift = (time.ravel()[seen] - time.ravel()[seen].mean()) @ place
        assert drift @ source < -0.7 * np.linalg.norm(drift)


def test_first_light_leaves_the_muon_at_the_cherenkov_angle():
    """Written out: the muon flies to the point of emission, and the light from there, at 41 degrees."""
    _, time = muon(ALONG_X, place=(0.0, 0.0, 0.0))
    string, level = nearest((0.0, 0.0)), 30
    x, y, z = sensors()[string * PER_STRING + level]
    across, angle = np.hypot(y, z), np.arccos(1 / 1.33)
    emitted = x - across / np.tan(angle)
    expected = emitted / C_M_PER_NS + across / np.sin(angle) * 1.36 / C_M_PER_NS
    assert time[string, level] == pytest.approx(expected, abs=0.01)


def test_light_grows_with_energy_and_falls_with_distance():
    photons, _ = muon(DOWN, energy=1e4)
    assert np.all(muon(DOWN, energy=1e6)[0][photons > 0] > 5 * photons[photons > 0])
    distance = np.hypot(*(strings()[:, :2] - (30.0, 20.0)).T)
    order = np.argsort(distance)
    assert np.all(np.diff(photons[order, 30]) <= 0)
    assert photons[order[0], 30] > 20 * photons[order[10], 30]


def test_a_tube_sees_more_light_from_below():
    assert muon(UP)[0].sum() > 2 * muon(DOWN)[0].sum()


def test_no_light_before_the_start_nor_after_the_end_of_a_muon():
    photons, _ = muon(DOWN, start=-100.0, stop=100.0)
    z = sensors()[:, 2].reshape(STRINGS, PER_STRING)
    lit = z[nearest()][photons[nearest()] > 0]
    assert lit.max() < 100
    assert lit.min() > -100 - 300
    assert len(lit) >= 10


def test_left_out_strings_and_sensors_are_faint():
    """Pairs of all strings add nothing that the chosen strings lack."""
    particles = particle((0.6, 0.0, 0.8), energy=200.0)
    chosen = muon_pairs(particles)
    everything = np.zeros(STRINGS, np.intp), np.arange(STRINGS)
    assert 0 < len(chosen[1]) < STRINGS
    assert (
        muon_light(particles, *everything).sensor.tolist() == muon_light(particles, *chosen).sensor.tolist()
    )
    points = Points(np.zeros(1, np.intp), particles.place, np.zeros(1), np.array([20.0]))
    chosen = point_pairs(points)
    assert 0 < len(chosen[1]) < STRINGS
    all_of_them, found = (point_light(particles, points, *pairs) for pairs in (everything, chosen))
    assert all_of_them.sensor.tolist() == found.sensor.tolist()


def test_flash_shines_as_a_sphere_that_is_brighter_in_front():
    particles = particle(ALONG_X, place=(0.0, 0.0, 0.0), cascade=True)
    points = Points(np.zeros(1, np.intp), particles.place, np.array([500.0]), np.array([1e4]))
    light = point_light(particles, points, *point_pairs(points))
    distance = np.maximum(np.linalg.norm(sensors()[light.sensor], axis=1), 2)
    assert light.direct_ns == pytest.approx(500 + distance * GROUP_NS_PER_M, rel=1e-5)
    photons, _ = dense(light)
    ahead = sensors()[:, 0].reshape(STRINGS, PER_STRING)
    assert photons[ahead > 100].sum() > 2 * photons[ahead < -100].sum()
    assert photons[ahead < -100].sum() > 0


def test_delays_follow_pandels_law():
    """A gamma law of shape d/33.3 m and scale 1 / (1/557 ns + c / (1.36 * 98 m)), about 247 ns."""
    assert pytest.approx(247, abs=1) == DELAY_NS
    for distance in (10.0, 60.0):
        drawn = delays(np.random.default_rng(6), np.full(50_000, distance, np.float32))
        assert drawn.min() >= 0
        assert drawn.mean() == pytest.approx(distance / SCATTERING_M * DELAY_NS, rel=0.03)
        assert drawn.var() == pytest.approx(distance / SCATTERING_M * DELAY_NS**2, rel=0.06)
