"""What the sensors report: photons with noise, and the time of the first light where it is enough."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from crpipe.workloads import elementary
from crpipe.workloads.xec.layout import SENSORS
from crpipe.workloads.xec.sensors import MPPCS
from crpipe.workloads.xec.simulator.detector import photosensors
from crpipe.workloads.xec.simulator.gammas import LIGHT_CM_NS
from crpipe.workloads.xec.simulator.light import PHOTONS_PER_GEV, mean_photons, shares

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from crpipe.workloads.xec.simulator.gammas import Deposits

INVALID = 1e10
THRESHOLD = 100.0  # photons that a time takes
EXCESS = np.where(np.arange(SENSORS) < MPPCS, 1.3, 1.4).astype(np.float32)  # variance in units of Poisson's
NOISE = 1.5  # photons, of the electronics
GROUP_INDEX = 1.65
DECAYS = ((4.0, 0.1), (22.0, 0.3), (45.0, 0.6))  # ns, share of the light
JITTER_NS, JITTER_ONE_NS = 0.1, 3.0  # of any time, and of one of a single photon
_STEP = 1 / 16  # photons, of the digitised values


def record(
    rng: np.random.Generator, deposits: Deposits, dead: NDArray[np.int64]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Give photons and times (s) of all sensors, [N, 4760] each; INVALID where there is none."""
    detected = rng.poisson(mean_photons(deposits)).astype(np.float32)
    photons = elementary.normal(rng, detected.shape)
    photons *= np.sqrt((EXCESS - 1) * detected + np.float32(NOISE**2))
    photons += detected
    photons *= photosensors().gain
    photons = np.round(photons * np.float32(1 / _STEP)) * np.float32(_STEP)
    photons[:, dead] = 0
    event, sensor = np.nonzero(photons >= THRESHOLD)
    time = np.full(photons.shape, INVALID, np.float32)
    time[event, sensor] = 1e-9 * _times(rng, deposits, event, sensor, photons[event, sensor])
    photons[:, dead] = INVALID
    return photons, time


def _times(
    rng: np.random.Generator,
    deposits: Deposits,
    event: NDArray[np.int64],
    sensor: NDArray[np.int64],
    photons: NDArray[np.float32],
) -> NDArray[np.float64]:
    """Give the times of M sensors in ns, [M]: of the first photon of any deposit, with jitter."""
    place = deposits.place[event].astype(np.float32)
    share = shares(place, sensor[:, None])
    mean = PHOTONS_PER_GEV * deposits.energy_gev[event] * share
    all_ = photosensors()
    centre = np.stack([all_.x, all_.y, all_.z], axis=1)[sensor]
    distance = np.linalg.norm(place - centre[:, None], axis=2)
    arrival = deposits.time_ns[event] + distance * (GROUP_INDEX / LIGHT_CM_NS) + first_decay(rng, mean)
    jitter = np.hypot(JITTER_NS, JITTER_ONE_NS / np.sqrt(photons))
    first: NDArray[np.float64] = arrival.min(axis=1)
    return first + jitter * rng.standard_normal(len(jitter))


def first_decay(rng: np.random.Generator, photons: NDArray[np.floating]) -> NDArray[np.float64]:
    """Sample the first of so many scintillation decays, in ns; for less than one photon it comes late.

    All n are later than t with probability S(t)^n, so -log S(t) of the first is exponential, with mean 1/n.
    """
    t = np.concatenate([[0], np.geomspace(1e-3, 1e3, 600)])
    law = -np.log(sum(share * np.exp(-t / tau) for tau, share in DECAYS))
    wanted = rng.standard_exponential(photons.shape) / np.maximum(photons, 1e-9)
    found: NDArray[np.float64] = np.interp(wanted, law, t)
    return found
