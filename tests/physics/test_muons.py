"""Muons at the surface and in the ice, beside published fluxes and showers simulated with CORSIKA.

Takes four minutes of CPU, two of them for the tables of the cascade; `make test-physics`. Numbers: pytest -s.
"""

import io
import subprocess

import numpy as np
import pytest
from scipy import stats

from crpipe.workloads.common.simulators import taken
from crpipe.workloads.muons.simulator import physics
from crpipe.workloads.muons.simulator.air import Air
from crpipe.workloads.muons.simulator.cascade import follow
from crpipe.workloads.muons.simulator.interactions import final_states
from crpipe.workloads.muons.simulator.physics import (
    MASS_NUMBERS,
    Muons,
    Primaries,
    advance,
    flux,
    mean_multiplicity,
    power_law,
    sample_muons,
    sample_showers,
    track,
)
from muon_fluxes import DAEMONFLUX, ENERGIES_GEV, MCEQ, simulated_flux
from services import SHOWERS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
# Protons of 1.1 to 5.1 PeV above the sea, with SIBYLL 2.3d; muons above 300 GeV: energy, and m from the axis.
ASK = """
import sys
import corsikaio, km3net_testdata
import numpy as np
showers, muons = [], []
with corsikaio.CorsikaParticleFile(km3net_testdata.data_path("corsika/DAT000001")) as file:
    for event in file:
        axis = np.array([event.header[f"momentum_{name}"] for name in ("x", "y", "minus_z")], float)
        axis /= np.linalg.norm(axis)
        kind = event.particles["particle_description"] // 1000
        each = event.particles[(kind == 5) | (kind == 6)]
        x, y = each["x"] / 100, each["y"] / 100
        energy = np.sqrt(each["px"] ** 2 + each["py"] ** 2 + each["pz"] ** 2)
        muons.append(np.stack([energy, np.sqrt(x**2 + y**2 - (x * axis[0] + y * axis[1]) ** 2)]))
        showers.append((event.header["total_energy"], event.header["zenith"], len(each)))
np.savez(sys.stdout.buffer, showers=np.array(showers), muons=np.concatenate(muons, axis=1))
"""


@pytest.fixture(scope="module")
def states():
    """The tables of the default model."""
    pytest.importorskip("chromo", reason="pip install 'crpipe[cascade]'")
    return final_states("Sibyll23d")


@pytest.fixture(scope="module")
def corsika():
    """Ten showers [10, 3] (energy, zenith, muons) and their muons [2, M] (energy, distance to the axis)."""
    told = subprocess.run([SHOWERS, "-c", ASK], capture_output=True, check=True).stdout
    with np.load(io.BytesIO(told)) as file:
        return file["showers"], file["muons"]


def shown(*lines):
    print("", *lines, sep="\n")  # noqa: T201 - docs/physics.md has them


def numbers(values, digits=2):
    return " ".join(f"{value:.{digits}f}" for value in values)


def below_sea_level(monkeypatch):
    """Move the simulators to where the showers of CORSIKA are: sea level, field of the Mediterranean."""
    monkeypatch.setattr(physics, "FIELD_T", 46e-6)
    monkeypatch.setattr(physics, "DIP_RAD", np.deg2rad(56.8))
    return Air(0.0)


def test_flux_at_the_surface_and_intensity_in_ice():
    """The parametrisation beside MCEq and daemonflux; in the ice, all on the simulator's own way down."""
    ours = {zenith: simulated_flux(zenith) for zenith in MCEQ}
    lines = [f"over MCEq, {zenith:.0f} deg: {numbers(ours[zenith] / MCEQ[zenith])}" for zenith in MCEQ]
    shown("energies [GeV]: " + numbers(ENERGIES_GEV, 0), *lines)
    shown("over daemonflux, vertical: " + numbers(ours[0.0] / DAEMONFLUX))
    rng, count = np.random.default_rng(1), 200_000
    energy = np.sort(rng.uniform(*np.log(ENERGIES_GEV[[0, -1]]), count))
    flat = np.zeros((4, count), np.float32)
    muons = Muons(np.arange(count, dtype=np.int32), np.exp(energy).astype(np.float32), *flat)
    spectra = [
        np.exp(np.interp(energy, np.log(ENERGIES_GEV), np.log(each)) - 2 * energy)
        for each in (ours[0.0], MCEQ[0.0], DAEMONFLUX)
    ]
    depth, rows = 0.0, []
    for deeper in (1000.0, 1500.0, 2000.0, 2500.0, 2800.0):
        leg = track(np.ones(count), deeper) - (track(np.ones(count), depth) if depth else 0)
        muons, depth = advance(rng, muons, leg), deeper
        intensity = [each[muons.shower].sum() for each in spectra]
        mean = [np.average(muons.energy, weights=each[muons.shower]) for each in spectra]
        rows.append((intensity[0] / intensity[1], intensity[0] / intensity[2], *mean))
        shown(
            f"{deeper:.0f} m: over MCEq, daemonflux {numbers(rows[-1][:2])}, mean energies {numbers(mean, 0)}"
        )
    over = np.array(rows)
    assert over[:, 0] == pytest.approx(0.98, abs=0.04)
    assert over[:, 1] == pytest.approx(0.83, abs=0.04)
    assert over[:, 2] == pytest.approx(over[:, 3], rel=0.03)


def test_flux_of_the_cascade(states):
    """Muons of 0.3 to 4.5 TeV from the nucleons of H3a beside MCEq (10 %, and errors)."""
    edges = 10 ** np.arange(2.45, 3.66, 0.2)
    for zenith, published in MCEQ.items():
        cosine, counts = np.cos(np.deg2rad(zenith)), []
        for seed in range(10):
            rng, index, size = np.random.default_rng(seed), 1.7, 40_000
            energy = power_law(rng.random(size), 280.0, 1e7, index)
            norm = (280.0 ** (1 - index) - 1e7 ** (1 - index)) / (index - 1)
            nucleons = sum(
                mass**2 * flux("gaisser_h3a", mass * energy)[i] for i, mass in enumerate(MASS_NUMBERS)
            )
            primaries = Primaries(energy, np.ones(size), np.full(size, cosine))
            muons = follow(rng, states, primaries, np.zeros(size))
            weight = nucleons * norm * energy**index / size
            counts.append(np.histogram(muons.energy, edges, weights=weight[muons.shower])[0])
        fine = np.geomspace(*edges[[0, -1]], 6001)
        density = 1e4 * np.exp(np.interp(np.log(fine), np.log(ENERGIES_GEV), np.log(published))) / fine**3
        cumulative = np.append(0, np.cumsum((density[1:] + density[:-1]) / 2 * np.diff(fine)))
        ratio = np.array(counts) / np.diff(np.interp(edges, fine, cumulative))
        mean, error = ratio.mean(axis=0), ratio.std(axis=0, ddof=1) / np.sqrt(len(ratio))
        shown(f"cascade over MCEq, {zenith:.0f} deg: {numbers(mean)}, errors {numbers(error)}")
        assert np.all(np.abs(mean - 0.98) < 0.1 + 2 * error)


@pytest.mark.corsika
@pytest.mark.parametrize("name", ["AirShowers", "Cascade"])
def test_showers_of_corsika(corsika, states, name, monkeypatch):
    """Ranks among simulated showers of equal energy and zenith: multiplicities, energies and distances.

    Distances apart for the showers below and above 60 degrees, too: their errors could cancel in the sum.
    """
    air = below_sea_level(monkeypatch)
    showers, muons = corsika
    ranks = {"multiplicity": [], "energy": [], "distance": [], "distance to 60": [], "distance above 60": []}
    start = 0
    for seed, (energy, zenith, multiplicity) in enumerate(showers):
        same = Primaries(*(np.full(150, value) for value in (energy, 1.0, np.cos(zenith))))
        rng, threshold = np.random.default_rng(seed), np.full(150, 300.0)
        if name == "Cascade":
            ours = follow(rng, states, same, threshold, air)
        else:
            ours = sample_muons(rng, sample_showers(rng, same, threshold), air)
        count = np.bincount(ours.shower, minlength=150)
        ranks["multiplicity"].append(np.mean(count < multiplicity) + np.mean(count == multiplicity) / 2)
        theirs = muons[:, start : start + int(multiplicity)]
        start += int(multiplicity)
        for key, one, other in zip(
            ("energy", "distance"), (ours.energy, np.hypot(ours.x, ours.y)), theirs, strict=True
        ):
            ranks[key].extend(np.searchsorted(np.sort(one), other) / len(one))
        inclined = "distance above 60" if zenith > np.pi / 3 else "distance to 60"
        ranks[inclined].extend(ranks["distance"][-int(multiplicity) :])
    for key, values in ranks.items():
        deciles = np.histogram(values, 10, (0, 1))[0]
        chance = stats.kstest(values, "uniform").pvalue
        shown(f"{name}, {key}: deciles {deciles}, p = {chance:.2g}")
        assert chance > 0.01


def test_the_cascade_beside_elberts_law_and_air_showers(states):
    """Gaisser 1990, a vertical proton of 100 TeV: 3.87, 1.56, 0.45 muons above 300, 500, 1000 GeV."""
    protons = Primaries(np.full(20_000, 1e5), np.ones(20_000), np.ones(20_000))
    muons = follow(np.random.default_rng(1), states, protons, np.full(20_000, 300.0))
    rows = []
    for threshold, published in ((300.0, 3.87), (500.0, 1.56), (1000.0, 0.45)):
        ours = np.mean(muons.energy > threshold) * len(muons) / 20_000
        formula = mean_multiplicity(taken(protons, slice(1)), threshold)[0]
        rows.append((ours / published, ours / formula))
        shown(f"> {threshold:.0f} GeV: cascade {ours:.3f}, AirShowers {formula:.3f}, Elbert {published}")
    assert np.array(rows)[:, 0] == pytest.approx([1.05, 1.15, 1.2], abs=0.12)
    assert np.array(rows)[:, 1] == pytest.approx(1, abs=0.06)


@pytest.mark.parametrize(("mass", "energy"), [(1, 1e5), (1, 1e6), (1, 1e7), (1, 1e8), (14, 1e6), (56, 1e7)])
@pytest.mark.parametrize("cosine", [1.0, 0.7, 0.4, 0.25, 0.174])
def test_bundles_of_both_simulators(states, mass, energy, cosine):
    """Numbers within 10 % (and their error), medians of the distance to the axis 12 %, their 90 % 35 %."""
    count = max(int(2e8 / energy), 60)
    same = Primaries(*(np.full(count, value) for value in (energy, float(mass), cosine)))
    rng, threshold = np.random.default_rng(1), np.full(count, 300.0)
    cascade = follow(rng, states, same, threshold)
    formula = sample_muons(rng, sample_showers(rng, same, threshold))
    radii = [np.quantile(np.hypot(one.x, one.y), (0.5, 0.9)) for one in (formula, cascade)]
    number = mean_multiplicity(taken(same, slice(1)), 300.0)[0] * count / len(cascade)
    error = np.std(np.bincount(cascade.shower, minlength=count)) * np.sqrt(count) / len(cascade)
    ratio = np.array([number, *(radii[0] / radii[1])])
    shown(
        f"A {mass}, {energy:.0e} GeV, cosine {cosine}: AirShowers over cascade {numbers(ratio)}, "
        f"error of the first {error:.3f}"
    )
    assert np.all(np.abs(ratio - 1) < (0.1 + error, 0.12, 0.35))
