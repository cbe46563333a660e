"""Every figure is drawn, also for a generator that makes nothing."""

from dataclasses import replace

import numpy as np

from crpipe.events.batch import Events
from crpipe.workloads.muons.scoring import score
from crpipe.workloads.muons.scoring.score import sample_of
from unrendered import unrendered

FIGURES = {
    "lateral",
    "energy",
    "energy_radius",
    "multiplicity_energy",
    "multiplicity",
    "empty",
    "classifiers",
    "displays",
}


def bundles():
    """Four hundred events over all energies and depths, every fourth without muons."""
    rng = np.random.default_rng(1)
    multiplicity = np.tile([0, 3, 40, 7], 100).astype(np.uint32)
    columns = {
        "primary_major_id": np.full(400, 7, np.uint64),
        "primary_minor_id": np.arange(400, dtype=np.uint64),
        "energy_gev": (10 ** rng.uniform(3, 8, 400)).astype(np.float32),
        "zenith_rad": rng.uniform(0, 1.3, 400).astype(np.float32),
        "mass_number": rng.choice([1, 4, 14, 27, 56], 400).astype(np.float32),
        "depth_m": rng.uniform(1000, 2800, 400).astype(np.float32),
    }
    total = int(multiplicity.sum())
    radius, azimuth = 10 ** rng.normal(0.8, 0.5, total), rng.uniform(0, 2 * np.pi, total)
    energy = 10 ** rng.normal(2.2, 0.7, total)
    items = np.stack([energy, radius * np.cos(azimuth), radius * np.sin(azimuth)], axis=1)
    return Events(columns, multiplicity, items.astype(np.float32))


def test_figures_of_a_generator_that_makes_nothing(tmp_path):
    real = sample_of(bundles())
    none = replace(real, multiplicity=np.zeros(400, np.uint32), muons=np.zeros((0, 3), np.float32))
    with unrendered():
        assert {path.stem for path in score.draw_all(real, none, {}, tmp_path)} == FIGURES
