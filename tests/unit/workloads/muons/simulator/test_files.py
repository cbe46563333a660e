"""The synthetic files: schema, order, identity, memory; and bundles underground against published ones."""

import tracemalloc

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from crpipe.core.errors import SourceError
from crpipe.core.ranges import Range
from crpipe.workloads.muons.simulator import files as module
from crpipe.workloads.muons.simulator import physics
from crpipe.workloads.muons.simulator import physics as shower
from crpipe.workloads.muons.simulator.files import AirShowers
from crpipe.workloads.muons.simulator.options import AirShowersOptions
from crpipe.workloads.muons.simulator.physics import MASS_NUMBERS, flux, power_law

RANGE = Range(42_000, 42_999)
SMALL = AirShowersOptions(files_per_range=3, showers_per_file=12, depths=20, energy_max_gev=1e7)


def resimulate(config, seed, columns):
    """Give multiplicities and muons of ``AirShowers.again``."""
    events = AirShowers(config).again(columns, seed)
    return events.multiplicity, events.items


def written(tmp_path, config=SMALL, seed=1, index=0):
    file = AirShowers(config).files(RANGE)[index]
    AirShowers(config).write(RANGE, file, seed, tmp_path / file)
    return tmp_path / file


def multiplicities(table):
    return table["muons"].combine_chunks().value_lengths().to_numpy()


def conditions(energy_gev, zenith_rad=0.0, mass_number=1.0, depth_m=1500.0, count=1):
    names = ("energy_gev", "zenith_rad", "mass_number", "depth_m")
    values = (energy_gev, zenith_rad, mass_number, depth_m)
    return {name: np.full(count, value, np.float64) for name, value in zip(names, values, strict=True)}


def test_schema_is_the_converters(tmp_path):
    schema = pq.read_schema(written(tmp_path))
    assert schema.field("primary_major_id").type == pa.uint64()
    assert schema.field("primary_minor_id").type == pa.uint64()
    assert schema.field("primary").type == pa.list_(pa.float32())
    assert schema.field("muons").type == pa.list_(pa.list_(pa.float32()))


def test_rows_are_primaries_times_depths_in_order(tmp_path):
    table = pq.read_table(written(tmp_path))
    primary = np.array(table["primary"].to_pylist()).reshape(12, 20, 4)
    assert np.all(primary[:, :, :3] == primary[:, :1, :3])
    assert primary[:, :, 3] == pytest.approx(np.tile(np.linspace(1000, 2800, 20), (12, 1)), rel=1e-6)
    minor = table["primary_minor_id"].to_numpy().reshape(12, 20)
    assert np.all(minor == np.arange(12)[:, None])
    assert len(set(primary[:, 0, 0])) == 12


def test_ids_are_unique_over_files_and_seeds(tmp_path):
    seen = set()
    for seed, index in ((1, 0), (1, 1), (2, 0)):
        table = pq.read_table(written(tmp_path, seed=seed, index=index), columns=["primary_major_id"])
        seen |= set(table["primary_major_id"].to_pylist())
    assert len(seen) == 3


def test_blocks_do_not_change_what_a_row_is(tmp_path, monkeypatch):
    """One shower at a time, streamed depth by depth: the same rows in the same order as many at once."""
    together = sum(multiplicities(pq.read_table(written(tmp_path, seed=seed))).sum() for seed in range(1, 21))
    monkeypatch.setattr(module, "BLOCK_MUONS", 1)
    monkeypatch.setattr(module, "GROUP_MUONS", 50)
    path = written(tmp_path)
    table = pq.read_table(path)
    assert pq.ParquetFile(path).num_row_groups > 5
    assert np.all(table["primary_minor_id"].to_numpy().reshape(12, 20) == np.arange(12)[:, None])
    apart = sum(multiplicities(pq.read_table(written(tmp_path, seed=seed))).sum() for seed in range(1, 21))
    assert apart == pytest.approx(together, rel=0.1)


def test_memory_does_not_grow_with_a_giant_primary(tmp_path, monkeypatch):
    """A primary with some 10^4 muons at each of 150 depths: far less memory than its rows take together."""
    for place, bound in (
        (module, "BLOCK_MUONS"),
        (module, "GROUP_MUONS"),
        (physics, "CHUNK"),
        (shower, "CHUNK"),
    ):
        monkeypatch.setattr(place, bound, 1 << 12)
    config = AirShowersOptions(
        showers_per_file=1,
        depths=150,
        depth_max_m=1200,
        energy_min_gev=1e9,
        energy_max_gev=1.1e9,
        composition=(0, 0, 0, 0, 1),
        zenith_max_deg=5,
    )
    tracemalloc.start()
    path = written(tmp_path, config)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    total = 12 * multiplicities(pq.read_table(path, columns=["muons"])).sum()
    assert total > 10e6
    assert peak < total / 3


def test_heaviest_default_events_exceed_a_hundred_thousand_muons():
    config = AirShowersOptions()
    heaviest = conditions(config.energy_max_gev, mass_number=56.0, depth_m=config.depth_min_m)
    assert resimulate(config, 1, heaviest)[0][0] > 100_000


def test_empty_events_grow_with_depth():
    empty = [
        np.mean(resimulate(AirShowersOptions(), 1, conditions(5e4, depth_m=depth, count=2000))[0] == 0)
        for depth in (1000.0, 1500.0, 2000.0, 2800.0)
    ]
    assert empty == sorted(empty)
    assert empty[0] < 0.3
    assert empty[-1] > 0.7


def test_radius_against_energy_inclination_and_depth():
    """Spread falls with the muon's energy and grows with inclination: less than the way in the air, because
    the muons of an inclined bundle have to be harder.

    With depth a bundle narrows, because only its hardest muons are left (Becherini et al. 2006: depth^-1.06).
    """

    def median(lowest=0.0, highest=np.inf, **given):
        muons = resimulate(AirShowersOptions(), 2, conditions(1e7, count=400, **given))[1]
        chosen = (muons[:, 0] > lowest) & (muons[:, 0] < highest)
        return np.median(np.hypot(muons[chosen, 1], muons[chosen, 2]))

    assert median(lowest=1000) < 0.5 * median(highest=100)
    assert 1.1 * median(zenith_rad=0.0) < median(zenith_rad=1.0) < 1.6 * median(zenith_rad=0.0)
    assert median(depth_m=2800.0) < median(depth_m=1500.0) < median(depth_m=1000.0)


def test_azimuth_is_uniform_at_depth():
    muons = resimulate(AirShowersOptions(), 3, conditions(1e7, zenith_rad=1.0, count=300))[1]
    azimuth = np.arctan2(muons[:, 2], muons[:, 1])
    sigma = 1 / np.sqrt(2 * len(muons))
    for order in (1, 2):
        assert abs(np.cos(order * azimuth).mean()) < 4 * sigma
        assert abs(np.sin(order * azimuth).mean()) < 4 * sigma


@pytest.fixture(scope="module")
def underground():
    """Vertical-ish bundles at 1.5 km of ice below the H4a flux: multiplicities, muons, weights; cos = 0.8."""
    rng = np.random.default_rng(5)
    count, cosine, depth, index = 200_000, 0.8, 1500.0, 1.7
    nucleus = rng.integers(0, 5, count)
    energy = power_law(rng.random(count), 1e3, 1e8, index)
    given = conditions(energy, np.arccos(cosine), MASS_NUMBERS[nucleus], depth, count)
    norm = (1e3 ** (1 - index) - 1e8 ** (1 - index)) / (index - 1)
    weight = 5 * norm * flux("gaisser_h4a", energy)[nucleus, np.arange(count)] * energy**index / count
    water = 0.2 * 0.832 + 1.3 * 0.917
    return (*resimulate(AirShowersOptions(), 6, given), weight, cosine, water)


def test_bundle_rate_underground(underground):
    """Becherini et al. 2006 (Astropart. Phys. 25, 1), eq. for K(h, theta): single muons within 40 %."""
    multiplicity, _, weight, cosine, water = underground
    published = 7.2e-3 * water**-1.927 * cosine * np.exp((-0.581 * water + 0.034) / cosine)
    assert weight[multiplicity == 1].sum() == pytest.approx(published, rel=0.4)


@pytest.mark.parametrize(("muons", "tolerance"), [(2, 0.25), (3, 0.35)])
def test_bundle_multiplicities_underground(underground, muons, tolerance):
    """Becherini et al. 2006: the rate of m muons over that of single ones is m^-nu(h, theta)."""
    multiplicity, _, weight, cosine, water = underground
    nu = (0.01041 * water**2 + 0.09912 * water + 2.712) * np.exp(0.01615 * np.exp(0.6010 * water) / cosine)
    ratio = weight[multiplicity == muons].sum() / weight[multiplicity == 1].sum()
    assert ratio == pytest.approx(muons**-nu, rel=tolerance)


def test_bundle_radius_underground(underground):
    """Becherini et al. 2006: mean distance to the axis in bundles of two (35 %)."""
    multiplicity, muons, weight, cosine, water = underground
    event = np.repeat(np.arange(len(multiplicity)), multiplicity)
    pair = multiplicity[event] == 2
    radius = np.average(np.hypot(muons[pair, 1], muons[pair, 2]), weights=weight[event][pair])
    published = (28.26 - 2 * 1.786) * water**-1.06 / (np.exp((np.arccos(cosine) - 1.3) * 10.4) + 1)
    assert radius == pytest.approx(published, rel=0.35)


def test_resimulation_has_the_distribution_of_the_files(tmp_path):
    """Primaries recorded at many depths, drawn again at each alone: same mean numbers, energies and radii."""
    config = AirShowersOptions(showers_per_file=400, depths=10, energy_min_gev=1e6, energy_max_gev=2e6)
    table = pq.read_table(written(tmp_path, config))
    primary = np.array(table["primary"].to_pylist()).T
    names = ("energy_gev", "zenith_rad", "mass_number", "depth_m")
    multiplicity, again = resimulate(config, 7, dict(zip(names, primary, strict=True)))
    recorded = table["muons"].combine_chunks().flatten().flatten().to_numpy().reshape(-1, 3)
    level = np.arange(len(table)) % 10
    for depth in (0, 5):
        expected = multiplicities(table)[level == depth].mean()
        assert multiplicity[level == depth].mean() == pytest.approx(expected, rel=0.05)
    assert np.median(again[:, 0]) == pytest.approx(np.median(recorded[:, 0]), rel=0.05)
    radius, expected = (np.median(np.hypot(muons[:, 1], muons[:, 2])) for muons in (again, recorded))
    assert radius == pytest.approx(expected, rel=0.1)


def test_resimulation_keeps_rows_apart():
    """Light and heavy rows alternate: each gets its own muons, in order, and the same ones each time."""
    given = conditions(np.tile([2e3, 1e7], 500), depth_m=1000.0, count=1000)
    multiplicity, muons = resimulate(AirShowersOptions(), 8, given)
    assert multiplicity.dtype == np.uint32
    assert muons.dtype == np.float32
    assert multiplicity.sum() == len(muons)
    owner = np.repeat(np.arange(1000), multiplicity)
    assert muons[owner % 2 == 0, 0].max() < 2e3
    assert multiplicity[1::2].min() > multiplicity[::2].max()
    assert np.array_equal(muons, resimulate(AirShowersOptions(), 8, given)[1])


def test_resimulation_of_nothing_is_empty():
    multiplicity, muons = resimulate(AirShowersOptions(), 9, conditions(1e6, count=0))
    assert multiplicity.shape == (0,)
    assert muons.shape == (0, 3)


def test_resimulation_refuses_depths_that_are_not_its_own():
    with pytest.raises(SourceError, match="depth_m: 500"):
        resimulate(AirShowersOptions(), 10, conditions(1e6, depth_m=500.0))
