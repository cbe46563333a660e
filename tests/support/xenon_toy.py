"""Gammas in the xenon detector, each one point of light that the sensors see by solid angle; for tests."""

import numpy as np

from crpipe.events.batch import Events
from crpipe.workloads.xec.layout import SENSORS
from crpipe.workloads.xec.sensors import INNER_RADIUS, MPPCS, sensor_map

CM_PER_NS = 29.979 / 1.65  # of light in xenon
LIGHT_PER_GEV = 4e6  # photons that a sensor all around would see


def places_of(u, v, w) -> np.ndarray:
    """Turn u, v, w into x, y, z in cm: [N, 3]."""
    radius, angle = INNER_RADIUS + np.asarray(w, float), np.asarray(v, float) / INNER_RADIUS
    return np.stack(np.broadcast_arrays(-radius * np.cos(angle), radius * np.sin(angle), u), axis=-1)


def light_of(place, places) -> np.ndarray:
    """Give the share of the light that each sensor sees of a point: [4760]."""
    offset = place - places[:, :3]
    distance = np.linalg.norm(offset, axis=1)
    cosine = np.maximum((offset * places[:, 3:]).sum(1) / distance, 0.0)
    area = np.where(np.arange(SENSORS) < MPPCS, 1.44, 16.6)
    return area * cosine / (4 * np.pi * (distance**2 + area / 4)) * np.exp(-distance / 100)


def make_gammas(events: int, seed: int = 0, dead: float = 0.01) -> Events:
    """Make gammas of 15 to 60 MeV somewhere behind the inner face, with their truth and all sensors."""
    rng, places = np.random.default_rng(seed), sensor_map()
    u, v = rng.uniform(-20, 20, events), rng.uniform(-55, 55, events)
    w = np.minimum(0.5 + rng.exponential(4, events), 30)
    energy, start = rng.uniform(0.015, 0.06, events), rng.normal(0, 1, events)
    items = np.zeros((events, SENSORS, 4), np.float32)
    for number, place in enumerate(places_of(u, v, w)):
        seen = rng.poisson(LIGHT_PER_GEV * energy[number] * light_of(place, places)) + rng.normal(
            0, 2, SENSORS
        )
        valid = rng.random(SENSORS) >= dead
        timed = valid & (seen >= 100)
        time = start[number] + np.linalg.norm(places[:, :3] - place, axis=1) / CM_PER_NS
        late = rng.exponential(30 / np.maximum(seen, 1))
        items[number] = np.stack([seen * valid, (time + late) * timed, valid, timed], axis=1)
    columns = {
        "run": np.ones(events, np.int64),
        "event": np.arange(events),
        "energy_gev": energy,
        "u_cm": u,
        "v_cm": v,
        "w_cm": w,
        "gamma_time_ns": start,
        "theta_rad": rng.normal(np.pi / 2, 0.3, events),
        "phi_rad": rng.uniform(-np.pi, np.pi, events),
    }
    columns = {
        name: values.astype(np.float32) if values.dtype == float else values
        for name, values in columns.items()
    }
    return Events(columns, np.full(events, SENSORS, np.uint32), items.reshape(-1, 4))
