from collections.abc import Callable

import numpy as np
import pytest

from crpipe.events.batch import Events
from crpipe.workloads.direction.layout import azimuth_zenith, unit_vectors

SPEED = 0.299792458  # m/ns


def make_detector(seed: int = 0) -> np.ndarray:
    """7 x 7 strings of 30 sensors, each a few metres from its place: no two distances are equal."""
    axes = np.meshgrid(np.arange(-3, 4) * 125.0, np.arange(-3, 4) * 125.0, np.linspace(-500, 500, 30))
    grid = np.stack([axis.ravel() for axis in axes], axis=1)
    return grid + np.random.default_rng(seed).uniform(-3, 3, grid.shape)


def make_tracks(azimuth, zenith, places, seed: int = 1, noise: int = 20) -> Events:
    """Muons near the centre: Cherenkov light on the sensors within 95 m, some of it late; and noise."""
    rng = np.random.default_rng(seed)
    events, counts = [], []
    for direction in -unit_vectors(azimuth, zenith):
        offset = places - rng.uniform(-100, 100, 3)
        along = offset @ direction
        aside = np.linalg.norm(offset - along[:, None] * direction, axis=1)
        near = np.flatnonzero(aside < 95)
        late = rng.exponential(5 + aside[near] * 2) * (rng.random(len(near)) < 0.5)
        times = 1e4 + (along[near] + aside[near] * 0.88) / SPEED + late
        random = rng.integers(len(places), size=noise)
        light = np.stack([near, times, np.ones(len(near)), np.zeros(len(near))], axis=1)
        dark = np.stack([random, rng.uniform(5e3, 2e4, noise), np.ones(noise), np.ones(noise)], axis=1)
        both = np.concatenate([light, dark])
        events.append(both[np.argsort(both[:, 1])])
        counts.append(len(both))
    columns = {"azimuth": np.asarray(azimuth), "zenith": np.asarray(zenith)}
    return Events(columns, np.array(counts, np.uint32), np.concatenate(events).astype(np.float32))


def make_judged(events: int, seed: int = 0, *, energy: bool = True):
    """Directions, and predictions of them whose kappa is right; the baseline is worse."""
    rng = np.random.default_rng(seed)
    azimuth, zenith = rng.uniform(0, 2 * np.pi, events), np.arccos(rng.uniform(-1, 1, events))
    columns = {"event_id": np.arange(events), "azimuth": azimuth, "zenith": zenith}
    if energy:
        columns["energy_gev"] = 10 ** rng.uniform(2, 6, events)
    pulses = rng.integers(30, 1000, events).astype(np.uint32)
    true = unit_vectors(azimuth, zenith)
    kappa = 10 ** rng.uniform(2, 5, events)
    prediction = {"kappa": kappa, "doms": np.minimum(pulses, 200).astype(np.int64)}
    for prefix, width in (("", kappa**-0.5), ("baseline_", np.full(events, 0.3))):
        moved = true + width[:, None] * rng.normal(size=true.shape)
        prediction[f"{prefix}azimuth"], prediction[f"{prefix}zenith"] = azimuth_zenith(moved)
    return Events(columns, pulses, np.empty((0, 0), np.float32)), prediction


@pytest.fixture(scope="session")
def detector() -> np.ndarray:
    return make_detector()


@pytest.fixture(scope="session")
def tracks() -> Callable[..., Events]:
    return make_tracks


@pytest.fixture(scope="session")
def judged():
    return make_judged
