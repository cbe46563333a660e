"""Cascades of hadrons: tables of chromo's interactions, and showers drawn from them."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from crpipe.core.errors import MissingExtra, SetupError
from crpipe.core.ranges import Range
from crpipe.workloads.muons.simulator import cascade, interactions
from crpipe.workloads.muons.simulator.air import SURFACE_M, Air
from crpipe.workloads.muons.simulator.cascade import Cascade, follow
from crpipe.workloads.muons.simulator.files import AirShowers
from crpipe.workloads.muons.simulator.interactions import (
    DECAYING,
    INTERACTING,
    KINDS,
    decay_cell,
    final_states,
)
from crpipe.workloads.muons.simulator.options import AirShowersOptions, CascadeOptions
from crpipe.workloads.muons.simulator.physics import Primaries

RANGE = Range(42_000, 42_999)
SMALL = CascadeOptions(files_per_range=3, showers_per_file=30, depths=5, energy_max_gev=1e6)
MASSES = {211: 0.13957, 321: 0.49368, 130: 0.49761}


@pytest.mark.parametrize("pdg", [211, -211, 321, -321, 130])
def test_decays_in_flight_share_out_the_energy(pdg):
    """A muon of two bodies takes a share between (m / M)^2 and 1, and pT is at most p* (RPP, kinematics)."""
    events = interactions._decayed(np.random.default_rng(1), pdg)
    share = np.array([event[1].sum() for event in events])
    assert np.all(share <= 1 + 1e-6)
    mass = MASSES[abs(pdg)]
    momentum = (mass**2 - 0.10566**2) / (2 * mass)
    largest = max(np.hypot(*event[2:]).max(initial=0) for event in events)
    assert largest <= momentum * 1.0001
    if pdg != 130:
        muon = np.array(
            [event[1][0] for event in events if [KINDS[k] for k in event[0]] == [-13 if pdg > 0 else 13]]
        )
        two = muon[muon >= (0.10566 / mass) ** 2 - 1e-6]
        assert np.quantile(two, (0, 1)) == pytest.approx([(0.10566 / mass) ** 2, 1], abs=0.01)
        assert len(two) / len(events) == pytest.approx(1 if abs(pdg) == 211 else 0.65, abs=0.03)


def test_three_bodies_keep_energy_and_momentum():
    four = interactions._phase_space(np.random.default_rng(2), 0.494, [0.14, 0.14, 0.135], 1000)
    assert four.sum(axis=1) == pytest.approx(np.tile([0.494, 0, 0, 0], (1000, 1)), abs=1e-9)
    masses = np.sqrt(four[..., 0] ** 2 - (four[..., 1:] ** 2).sum(axis=2))
    assert masses == pytest.approx(np.tile([0.14, 0.14, 0.135], (1000, 1)), abs=1e-6)


def test_without_chromo_the_error_has_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "chromo", None)
    with pytest.raises(MissingExtra, match=r"pip install 'crpipe\[cascade\]'"):
        final_states("Sibyll23e")


def test_tables_that_cannot_be_filled_are_a_sentence(monkeypatch, tmp_path):
    """What is wrong, where, and what to type; no part of a table is left."""
    pytest.importorskip("chromo", reason="pip install 'crpipe[cascade]'")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(SetupError) as caught:
        final_states("Sibyll99", 2)
    text = str(caught.value)
    assert text.startswith(
        f"{tmp_path / 'crpipe'}: the tables of Sibyll99 could not be filled: AttributeError"
    )
    assert text.endswith(f"{sys.executable} -m {interactions.__name__} Sibyll99 2 /dev/null")
    assert list((tmp_path / "crpipe").iterdir()) == []


@pytest.mark.slow
def test_two_jobs_fill_the_tables_at_once(tmp_path):
    """Both read the same whole table, which is the only file that is left."""
    pytest.importorskip("chromo", reason="pip install 'crpipe[cascade]'")
    ask = (
        "import hashlib\n"
        "from crpipe.workloads.muons.simulator.interactions import final_states\n"
        "states = final_states('Sibyll21', 2)\n"
        "print(len(states.event), states.event[-1] + 1 == len(states.particle),"
        " states.particle[-1] == len(states.share), hashlib.sha256(states.share).hexdigest())"
    )
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    jobs = [
        subprocess.Popen([sys.executable, "-c", ask], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    one, other = (job.communicate()[0].split() for job in jobs)
    cells = decay_cell(INTERACTING - 1)
    assert one[:3] == [str(cells + 2), "True", "True"]
    assert one == other
    assert len(list((tmp_path / "crpipe").iterdir())) == 1


@pytest.fixture(scope="module")
def states(tmp_path_factory):
    """Small tables of the default model, which the simulator gets instead of the large ones."""
    pytest.importorskip("chromo", reason="pip install 'crpipe[cascade]'")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        small = final_states("Sibyll23d", 40)
        patch.setattr(cascade, "final_states", lambda model: final_states(model, 40))
        yield small


def protons(energy_gev, count, cosine=1.0, mass=1.0):
    return Primaries(np.full(count, energy_gev), np.full(count, mass), np.full(count, cosine))


def energies(states, energy_gev, count, threshold_gev=300.0, seed=1, **given):
    rng, threshold = np.random.default_rng(seed), np.full(count, threshold_gev)
    return follow(rng, states, protons(energy_gev, count, **given), threshold)


@pytest.mark.slow
def test_tables_are_kept(states, monkeypatch, tmp_path):
    """Filled once, then read; another number of events is another file."""
    final_states.cache_clear()

    def refuse(*_words, **_options):
        pytest.fail("filled again")

    monkeypatch.setattr(interactions.subprocess, "run", refuse)
    assert np.array_equal(final_states("Sibyll23d", 40).share, states.share)
    with pytest.raises(pytest.fail.Exception):
        final_states("Sibyll23d", 41)


@pytest.mark.slow
def test_tables_have_a_cell_for_each_particle_and_energy(states):
    kinds = np.arange(DECAYING, INTERACTING)
    assert len(states.event) == decay_cell(kinds)[-1] + 2
    assert len(states.particle) == states.event[-1] + 1
    assert states.particle[-1] == len(states.kind)
    assert np.all((states.share > 0) & (states.share < 1.001))
    assert np.all(np.diff(states.free_path, axis=1) < 0)
    # Protons of 300 TeV: 30 % of the energy leaves the cascade as photons, 300 mb on air are 80 g/cm2.
    cell = interactions.interaction_cell(0, np.argmin(abs(interactions.GRID_GEV - 3e5)))
    first, last = states.particle[states.event[[cell, cell + 1]]]
    total = states.share[first:last].sum() / (states.event[cell + 1] - states.event[cell])
    assert 0.7 < total < 0.9
    assert states.free_path[0, 6] == pytest.approx(75, rel=0.1)


@pytest.mark.slow
def test_multiplicity_is_near_elberts(states):
    """Gaisser 1990, a vertical proton of 100 TeV; the small table is good to some per cent (25, 35, 50 %)."""
    muons = energies(states, 1e5, 3000)
    for threshold, published, tolerance in ((300, 3.87, 0.25), (500, 1.56, 0.35), (1000, 0.45, 0.5)):
        assert (muons.energy > threshold).sum() / 3000 == pytest.approx(published, rel=tolerance)


@pytest.mark.slow
def test_showers_keep_to_their_thresholds_and_nucleons(states):
    muons = energies(states, 1e6, 50, threshold_gev=700.0, mass=14.0)
    assert np.all(np.diff(muons.shower) >= 0)
    assert muons.shower.max() < 50
    assert muons.energy.min() > 700
    assert muons.energy.max() < 1e6 / 14
    assert len(energies(states, 200.0, 50)) == 0
    assert len(energies(states, 1e6, 0)) == 0


@pytest.mark.slow
def test_inclined_showers_have_more_muons_farther_apart(states):
    """Twice as many at 66 degrees, four times as far (AirShowers: 1.9 and 4.5)."""
    steep, inclined = energies(states, 1e5, 2000), energies(states, 1e5, 2000, cosine=0.4)
    assert 1.5 < len(inclined) / len(steep) < 2.4
    radii = [np.median(np.hypot(muons.x, muons.y)) for muons in (steep, inclined)]
    assert 3.5 < radii[1] / radii[0] < 6


@pytest.mark.slow
def test_azimuths_are_those_of_all_directions_and_muons_of_a_shower_lie_together(states):
    muons = energies(states, 1e5, 3000)
    azimuth = np.arctan2(muons.y, muons.x)
    assert abs(np.exp(1j * azimuth).mean()) < 4 / np.sqrt(len(azimuth) / 4)
    pairs = np.flatnonzero(np.diff(muons.shower) == 0)
    together = np.cos(azimuth[pairs + 1] - azimuth[pairs])
    assert together.mean() > -0.2  # not back to back either: momentum is shared with what is lost


@pytest.mark.slow
def test_pieces_do_not_change_what_a_shower_is(states, monkeypatch):
    together = len(energies(states, 1e5, 2000))
    monkeypatch.setattr(cascade, "CHUNK", 1000)
    monkeypatch.setattr(cascade, "CHUNK_SECONDARIES", 500)
    assert len(energies(states, 1e5, 2000)) == pytest.approx(together, rel=0.08)


@pytest.mark.slow
def test_files_are_those_of_air_showers(states, tmp_path):
    """Same names, schema and rows; equal arguments give equal bytes, other seeds and numbers other ones."""
    simulator = Cascade(SMALL)
    files = simulator.files(RANGE)
    assert files == AirShowers(AirShowersOptions(files_per_range=3)).files(RANGE)
    for path, file, seed in (("a", 0, 1), ("b", 0, 1), ("c", 1, 1), ("d", 0, 2)):
        simulator.write(RANGE, files[file], seed, tmp_path / path)
    one, *others = ((tmp_path / name).read_bytes() for name in "abcd")
    assert one == others[0]
    assert one not in others[1:]
    formula = AirShowers(AirShowersOptions(**SMALL.model_dump(exclude={"model"})))
    formula.write(RANGE, files[0], 1, tmp_path / "formula")
    assert pq.read_schema(tmp_path / "a") == pq.read_schema(tmp_path / "formula")
    assert pq.read_metadata(tmp_path / "a").num_rows == 150


@pytest.mark.slow
def test_simulated_again_rows_keep_apart(states):
    columns = {
        "energy_gev": np.tile([2e3, 1e6], 20),
        "zenith_rad": np.zeros(40),
        "mass_number": np.ones(40),
        "depth_m": np.full(40, 1000.0),
    }
    again = Cascade(SMALL).again(columns, 3)
    assert again.multiplicity[1::2].min() > again.multiplicity[::2].max()
    assert again.items[:, 0].max() < 1e6
    assert np.array_equal(again.items, Cascade(SMALL).again(columns, 3).items)
    formula = AirShowers(AirShowersOptions()).again(columns, 3)
    assert again.multiplicity[1::2].mean() == pytest.approx(formula.multiplicity[1::2].mean(), rel=0.4)


@pytest.mark.slow
def test_the_surface_is_where_it_is_said_to_be(states):
    """Above a higher surface there is less room to spread."""
    radii = []
    for surface in (0.0, SURFACE_M):
        muons = follow(
            np.random.default_rng(4), states, protons(1e5, 2000), np.full(2000, 300.0), Air(surface)
        )
        radii.append(np.median(np.hypot(muons.x, muons.y)))
    assert 1.15 < radii[0] / radii[1] < 1.6


def numbers_of_the_docs():
    path = Path(__file__).parents[5] / "docs" / "muon_numbers.py"
    spec = importlib.util.spec_from_file_location("muon_numbers", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_fluxes_of_the_docs_are_what_their_script_prints():
    """Every ratio that the page shows, to the last digit."""
    page = (Path(__file__).parents[5] / "docs" / "physics.md").read_text()
    assert [line for line in numbers_of_the_docs().fluxes() if line not in page] == []


@pytest.mark.slow
def test_the_multiplicities_of_the_docs_have_a_script(states):
    """The heads are those of the page, and a small run prints as many rows."""
    page = (Path(__file__).parents[5] / "docs" / "physics.md").read_text().splitlines()
    lines = list(numbers_of_the_docs().multiplicities(states, 30))
    heads = [line for line in lines if line.startswith(("| a proton", "| AirShowers"))]
    assert [line.split("|")[1] for line in lines if line.startswith("|")][-5:] == [
        page[page.index(heads[1]) + 2 + row].split("|")[1] for row in range(5)
    ]
    assert heads[0] in page
