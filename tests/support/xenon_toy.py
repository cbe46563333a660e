"""Gammas in the xenon detector, each one point of light that the sensors see by solid angle; for tests."""

import numpy as np

from crpipe.events.batch import Events
from crpipe.workloads.xec.layout import SENSORS
from crpipe.workloads.xec.scoring.baseline import neighbour_average, solid_angle_average
from crpipe.workloads.xec.sensors import INNER_RADIUS, MPPCS, sensor_map

CM_PER_NS = 29.979 / 1.65  # of light in xenon
LIGHT_PER_GEV = 4e6  # photons that a sensor all around would see


def places_of(u, v, w) -> np.ndarray:
    """Turn u, v, w into x, y, z in cm: [N, 3]."""
    radius, angle = INNER_RADIUS + np.asarray(w, float), np.asarray(v, float) / INNER_RADIUS
    return np.stack(np.broadcast_arrays(-radius * np.cos(angle), radius * np.sin(angle), u), axis=-1)


def light_of(place, places) -> np.ndarray:
    """Return the share of the light that each sensor sees of a point: [4760]."""
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


def make_predictions(truth: Events, seed: int = 0) -> dict[str, np.ndarray]:
    """Predict like a network whose uncertainties are right, with the baseline beside it."""
    rng = np.random.default_rng((1, seed))
    columns = {name: values.astype(float) for name, values in truth.columns.items()}
    energy, depth = columns["energy_gev"], columns["w_cm"]
    widths = {
        "energy_gev": energy * 0.01 * np.sqrt(0.2**2 / energy + 1.0**2 + 0.02**2 / energy**2),
        "u_cm": 0.2 + 0.02 * depth,
        "v_cm": 0.25 + 0.02 * depth,
        "w_cm": 0.4 + 0.05 * depth,
        "gamma_time_ns": 0.01 / np.sqrt(energy),
        "theta_rad": np.full(len(truth), 0.006),
        "phi_rad": np.full(len(truth), 0.006),
    }
    found = {}
    for name, width in widths.items():
        sigma = width * rng.uniform(0.5, 1.5, len(truth))
        found[name], found[f"{name}_sigma"] = columns[name] + sigma * rng.normal(size=len(truth)), sigma
    found["photons_sum"] = 8e5 * energy * np.exp(0.1 * rng.normal(size=len(truth)) - 0.01 * depth)
    found["baseline_energy_gev"] = energy * (1.02 + 0.03 * rng.normal(size=len(truth)))
    found["baseline_u_cm"] = columns["u_cm"] + (0.3 + 0.1 * depth) * rng.normal(size=len(truth))
    found["baseline_v_cm"] = columns["v_cm"] + (0.3 + 0.1 * depth) * rng.normal(size=len(truth))
    found["baseline_w_cm"] = 0.7 * columns["w_cm"] + 0.5 * rng.normal(size=len(truth))
    found["baseline_gamma_time_ns"] = columns["gamma_time_ns"] + 0.1 + 0.2 * rng.normal(size=len(truth))
    return {name: values.astype(np.float32) for name, values in found.items()}


def make_truth(events: int, seed: int = 0) -> Events:
    """Make what is known of gammas, without their sensors: for scores."""
    rng = np.random.default_rng(seed)
    columns = {
        "energy_gev": rng.uniform(0.015, 0.06, events),
        "u_cm": rng.uniform(-20, 20, events),
        "v_cm": rng.uniform(-55, 55, events),
        "w_cm": np.minimum(rng.exponential(4, events), 30),
        "gamma_time_ns": rng.normal(0, 1, events),
        "theta_rad": rng.normal(np.pi / 2, 0.3, events),
        "phi_rad": rng.uniform(-np.pi, np.pi, events),
    }
    columns = {name: values.astype(np.float32) for name, values in columns.items()}
    numbers = {"run": np.ones(events, np.int64), "event": np.arange(events)}
    return Events(numbers | columns, np.full(events, SENSORS, np.uint32), np.empty((0, 0), np.float32))


def make_hidden(events: int, seed: int = 0, share: float = 0.05) -> dict[str, np.ndarray]:
    """Hide valid sensors of gammas, find them as a network might, and by both averages; dead ones besides."""
    gammas, rng, places = make_gammas(events, seed), np.random.default_rng((2, seed)), sensor_map()
    photons, valid = (gammas.items.reshape(events, SENSORS, 4)[..., column] for column in (0, 2))
    hidden = (rng.random(valid.shape) < share) | (valid == 0)
    by_neighbours = neighbour_average(photons, valid, hidden, places)
    by_angle = solid_angle_average(photons, valid, hidden, places)
    event, sensor = np.nonzero(hidden)
    kind = (valid[hidden] == 0).astype(np.int8)
    true = np.where(kind == 0, photons[hidden], np.nan).astype(np.float32)
    found = (photons[hidden] + np.sqrt(np.abs(photons[hidden]) + 4) * rng.normal(size=len(true))).astype(
        np.float32
    )
    flat = {
        "sensor_id": sensor.astype(np.int16),
        "kind": kind,
        "photons": found,
        "true_photons": true,
        "neighbours_photons": by_neighbours,
        "solid_angle_photons": by_angle,
    }
    return {name: lists_of(values, event, events) for name, values in flat.items()}


def lists_of(values, event, events) -> np.ndarray:
    """Cut values by event: an object array [N] of arrays, as a list column is predicted."""
    found = np.empty(events, object)
    found[:] = np.split(values, np.cumsum(np.bincount(event, minlength=events))[:-1])
    return found
