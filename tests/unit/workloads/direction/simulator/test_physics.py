"""The sensors, tracks and cascades, and their light."""

import numpy as np
import pytest

from crpipe.workloads.direction.layout import read_geometry, unit_vectors
from crpipe.workloads.direction.simulator.options import NeutrinoTelescopeOptions
from crpipe.workloads.direction.simulator.physics import (
    A_GEV_PER_M,
    B_PER_M,
    C_M_PER_NS,
    DELAY_NS,
    GROUP_NS_PER_M,
    HALF_HEIGHT_M,
    PER_STRING,
    RADIUS_M,
    SCATTERING_M,
    SENSORS,
    STRINGS,
    Particles,
    Points,
    delays,
    energy_at,
    flashes,
    muon_light,
    muon_pairs,
    point_light,
    point_pairs,
    power_law,
    sample_particles,
    sensors,
    strings,
    write_geometry,
)


def test_strings_are_a_triangular_grid_of_125_m():
    flat = strings()[:, :2]
    apart = np.linalg.norm(flat[:, None] - flat[None], axis=2) + 1e9 * np.eye(STRINGS)
    assert np.abs(apart.min(axis=1) - 125).max() < 6
    near = np.sum(apart < 150, axis=1)
    assert near.min() >= 3
    assert (near == 6).sum() > STRINGS / 2
    assert np.hypot(*flat.T).max() < 650


def test_strings_are_numbered_row_by_row():
    y = strings()[:, 1]
    rows = np.split(y, np.flatnonzero(np.diff(y) > 50) + 1)
    assert len(rows) == 11
    assert max(np.ptp(row) for row in rows) < 10


def test_sensors_go_down_each_string_in_steps_of_17_m():
    z = sensors()[:, 2].reshape(STRINGS, PER_STRING)
    assert np.allclose(np.diff(z, axis=1), -17)
    assert np.abs(z[:, 0] - 501.5).max() < 5
    assert np.abs(z[:, -1] + 501.5).max() < 5
    assert np.all(np.ptp(sensors()[:, 0].reshape(STRINGS, PER_STRING), axis=1) == 0)


def test_table_has_the_public_columns_and_gives_the_sensors_back(tmp_path):
    path = tmp_path / "sensor_geometry.csv"
    write_geometry(path)
    lines = path.read_text().splitlines()
    assert lines[0] == "sensor_id,x,y,z"
    assert len(lines) == 1 + SENSORS == 5161
    assert np.array_equal(read_geometry(path), sensors().astype(np.float32))


COUNT = 20_000


def drawn(**options):
    return sample_particles(np.random.default_rng(3), NeutrinoTelescopeOptions(**options), COUNT)


def test_directions_are_isotropic():
    """Means of the components are 0, of their squares a third, in both kinds; the angles give them back."""
    particles = drawn()
    for kind in (particles.cascade, ~particles.cascade):
        source = particles.source[kind]
        assert np.abs(source.mean(axis=0)).max() < 5 / np.sqrt(3 * kind.sum())
        assert np.allclose((source[:, :, None] * source[:, None]).mean(axis=0), np.eye(3) / 3, atol=0.02)
    assert np.allclose(unit_vectors(*particles.angles()), particles.source)


def test_share_of_cascades_is_the_option():
    assert drawn(cascade_fraction=0.3).cascade.mean() == pytest.approx(0.3, abs=0.02)
    assert not drawn(cascade_fraction=0).cascade.any()


@pytest.mark.parametrize("index", [0.0, 1.0, 2.0, 3.0])
def test_energies_follow_the_power_law(index):
    """The share below E is the integral of the law, here by sums over a fine grid."""
    options = NeutrinoTelescopeOptions(energy_min_gev=10, energy_max_gev=1000, spectral_index=index)
    energy = power_law((np.arange(1000) + 0.5) / 1000, options)
    grid = np.geomspace(10, 1000, 100_001)
    weight = np.cumsum(grid ** (1 - index))
    assert np.interp(energy, grid, weight / weight[-1]) == pytest.approx(
        (np.arange(1000) + 0.5) / 1000, abs=1e-3
    )


def test_places_are_in_the_cylinder_and_muons_pass_them():
    particles = drawn()
    assert np.hypot(*particles.place[:, :2].T).max() < RADIUS_M
    assert np.abs(particles.place[:, 2]).max() < HALF_HEIGHT_M
    assert np.all(particles.start_m <= 0)
    assert np.all(particles.stop_m >= 0)


def test_energy_along_the_way_solves_the_mean_loss():
    start, way = np.float64(0), np.linspace(0, 400, 4001)
    energy = energy_at(np.full(4001, 300.0), start, way)
    assert np.gradient(energy, way)[1:-1] == pytest.approx(-(A_GEV_PER_M + B_PER_M * energy[1:-1]), rel=1e-4)
    assert energy_at(np.float64(300), start, np.float64(1e4)) == 0


def test_losses_lie_on_the_muon_between_its_ends():
    particles = drawn(cascade_fraction=0, energy_min_gev=1e4)
    points = flashes(np.random.default_rng(4), particles)
    muon = points.particle
    way = points.time_ns * C_M_PER_NS
    assert len(way) > COUNT / 2
    assert np.all((way >= particles.start_m[muon]) & (way <= particles.stop_m[muon]))
    assert np.allclose(points.place, particles.place[muon] - way[:, None] * particles.source[muon])
    left = energy_at(particles.energy_gev[muon], particles.start_m[muon], way)
    assert np.all((points.energy_gev <= left) & (points.energy_gev >= 0.0099 * left))


def test_a_cascade_is_one_flash_of_its_energy():
    particles = drawn(cascade_fraction=1)
    points = flashes(np.random.default_rng(4), particles)
    assert np.array_equal(points.particle, np.arange(COUNT))
    assert np.array_equal(points.energy_gev, particles.energy_gev)
    assert np.array_equal(points.place, particles.place)


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
