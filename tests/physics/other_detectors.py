"""Two detectors that crpipe's simulators do not know: other places and light, dead and saturated sensors.

Written for the tests alone, as short as they can be, with formulas of their own; the physics of no detector.
"""

import csv

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from crpipe.workloads.xec.layout import SENSORS
from crpipe.workloads.xec.sensors import FACE_IDS, INNER_RADIUS, sensor_map

C_CM_NS = 29.979
C_M_NS = 0.29979


# Gammas: the outer face 8 cm farther away, the two sides 3 cm; clear xenon with diffuse reflections, uneven
# gains, two dead boards and 60 other dead sensors, small sensors that saturate, less light.


def xenon_places():
    """Places and normals of the sensors, [4760, 6]."""
    places = sensor_map()
    outer, radius = FACE_IDS["outer"], np.hypot(places[:, 0], places[:, 1])
    places[outer, :2] *= 1 + 8 / radius[outer, None]
    for face, side in (("us", -1), ("ds", 1)):
        places[FACE_IDS[face], 2] += 3 * side
    return places


def dead_sensors():
    """Two boards of the inner face, and 60 sensors anywhere."""
    board = (44 * np.arange(4)[:, None] + np.arange(11)).ravel()
    boards = np.append(900 + board, 2710 + board)
    return np.union1d(boards, np.random.default_rng(11).permutation(SENSORS)[:60])


def gammas(seed, count):
    """Branches of events, as in a file."""
    rng, places = np.random.default_rng([seed, 4760]), xenon_places()
    small = np.arange(SENSORS) < 4092
    area, gain = np.where(small, 1.44, 15.9), 1 + 0.08 * np.random.default_rng(12).standard_normal(SENSORS)
    energy = rng.uniform(0.015, 0.06, count)
    u, v = rng.uniform(-25, 25, count), rng.uniform(-70, 70, count)
    depth = rng.exponential(4.5, count).clip(0.1, 35)
    start = rng.uniform(-20, 20, count)
    npho, time = np.zeros((count, SENSORS), np.float32), np.full((count, SENSORS), np.inf)
    shares = rng.dirichlet(np.full(5, 3.0), count)
    for share in shares.T:  # the energy becomes light at five points around and behind the conversion
        w = depth + rng.normal(0, 1.2, count) + rng.exponential(2.0, count)
        lit = share * (w > 0.05)  # what leaves the xenon through the inner face is lost
        angle = (v + rng.normal(0, 1.8, count)) / INNER_RADIUS
        where = np.stack([-(INNER_RADIUS + w) * np.cos(angle), (INNER_RADIUS + w) * np.sin(angle)], axis=1)
        where = np.column_stack([where, u + rng.normal(0, 1.8, count)])
        for first in range(0, count, 50):
            part = slice(first, first + 50)
            away = where[part, None] - places[None, :, :3]
            square = (away**2).sum(axis=2) + 0.3 * area
            distance = np.sqrt(square)
            seen = ((away * places[:, 3:]).sum(axis=2) / distance).clip(0)
            light = area * (seen / (4 * np.pi * square) * np.exp(-distance / 150) + 0.04 / area.sum())
            npho[part] += (4.2e6 * energy * lit)[part, None] * light
            time[part] = np.minimum(time[part], start[part, None] + distance * 1.65 / C_CM_NS)
    npho = rng.poisson(npho).astype(np.float64)
    first_light = rng.exponential(25.0, npho.shape) / np.maximum(npho, 1)
    time += first_light + rng.normal(0, 0.15, npho.shape)
    npho = np.where(small, 5000 * (1 - np.exp(-npho / 5000)), npho)  # pixels that are hit twice count once
    npho = npho * gain + np.sqrt(0.4 * npho + 3) * rng.standard_normal(npho.shape)
    time[npho < 100] = np.nan
    npho[:, dead_sensors()] = np.nan
    time[:, dead_sensors()] = np.nan
    return {
        "npho": npho.astype(np.float32),
        "relative_time": (1e-9 * time).astype(np.float32),
        "energyTruth": energy.astype(np.float32),
        "timeTruth": (1e-9 * start).astype(np.float32),
        "uvwTruth": np.stack([u, v, depth], axis=1).astype(np.float32),
    }


def write_gammas(folder, files, events):
    """Write gammas_N.root, N from 1, and sensors.csv."""
    import uproot

    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "sensors.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["sensor_id", "x", "y", "z", "nx", "ny", "nz"])
        rows.writerows([number, *place.round(4)] for number, place in enumerate(xenon_places()))
    for number in range(1, files + 1):
        branches = gammas(number, events)
        branches["run"] = np.full(events, number, np.int32)
        branches["event"] = np.arange(events, dtype=np.int32)
        with uproot.recreate(folder / f"gammas_{number:06}.root") as file:
            types = {name: (each.dtype, each.shape[1:]) for name, each in branches.items()}
            tree = file.mktree("tree", types)
            tree.extend(branches)


# Neutrinos: 61 strings on a spiral with 24 sensors each, in water: little scattering, much noise, weak light;
# four of ten are cascades, one sensor in twenty is dead, and pulses saturate.

STRINGS, PER_STRING = 61, 24


def telescope_places():
    """Places of the sensors, [1464, 3] in m, string by string."""
    number = np.arange(STRINGS)
    radius, angle = 48 * np.sqrt(number + 0.5), number * np.pi * (3 - np.sqrt(5))
    strings = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    height = 30.0 * (np.arange(PER_STRING) - (PER_STRING - 1) / 2)
    return np.column_stack([np.repeat(strings, PER_STRING, axis=0), np.tile(height, STRINGS)]).round(2)


def neutrinos(seed, count):
    """Truth by name, pulses of each event, and the pulses: sensor, time, charge, auxiliary."""
    rng, places = np.random.default_rng([seed, 61]), telescope_places()
    dead = np.random.default_rng(13).random(len(places)) < 0.05
    truth, many, pulses = [], [], []
    while len(many) < count:
        z, turn = rng.uniform(-1, 1), rng.uniform(0, 2 * np.pi)
        source = np.array([np.sqrt(1 - z * z) * np.cos(turn), np.sqrt(1 - z * z) * np.sin(turn), z])
        energy, cascade = 200.0 / (1 - rng.random() * (1 - 1e-4)), rng.random() < 0.4
        radius, around = 380 * np.sqrt(rng.random()), rng.uniform(0, 2 * np.pi)
        vertex = np.array([radius * np.cos(around), radius * np.sin(around), rng.uniform(-380, 380)])
        away = places - vertex
        along = -away @ source
        if cascade:
            distance = np.linalg.norm(away, axis=1).clip(2)
            mean = 120 * energy * np.exp(-distance / 60) / distance**2 * (1 + 0.8 * along / distance)
            direct = distance * 1.37 / C_M_NS
        else:
            across = np.sqrt(((away**2).sum(axis=1) - along**2).clip(4))
            distance = across / np.sin(0.74)
            mean = 60 * (1 + energy / 1500) * np.exp(-distance / 60) / across
            direct = (along - across / np.tan(0.74)) / C_M_NS + distance * 1.37 / C_M_NS
        photons = rng.poisson(np.where(dead, 0, mean * 0.2))
        sensor = np.repeat(np.arange(len(places)), np.minimum(photons, 5))
        if len(np.unique(sensor)) < 6:
            continue
        late = rng.random(len(sensor)) < 0.4
        time = direct[sensor] + late * rng.exponential(1.5 * distance[sensor])
        time += rng.normal(0, 2.5, len(sensor))
        charge = np.minimum(photons[sensor] / 5, 8).clip(1) * rng.gamma(8, 1 / 8, len(sensor))
        window = time.min() - 1500, time.max() + 1500
        dark = rng.poisson(3000e-9 * (window[1] - window[0]) * np.count_nonzero(~dead))
        sensor = np.append(sensor, rng.choice(np.flatnonzero(~dead), dark))
        time = np.append(time, rng.uniform(*window, dark)) - window[0] + 3000
        charge = np.append(charge, rng.gamma(8, 1 / 8, dark))
        order = np.argsort(time)
        sensor, time, charge = sensor[order], np.floor(time[order]), charge[order]
        near = np.abs(sensor[:, None] - sensor) <= 2
        near &= (np.abs(time[:, None] - time) < 250) & (sensor[:, None] != sensor)
        near &= sensor[:, None] // PER_STRING == sensor // PER_STRING
        pulses.append(np.column_stack([sensor, time, charge, ~near.any(axis=1)]))
        truth.append([turn, np.arccos(z), energy, cascade])
        many.append(len(sensor))
    names = ("azimuth", "zenith", "energy_gev", "cascade")
    return dict(zip(names, np.array(truth).T, strict=True)), np.array(many), np.concatenate(pulses)


def write_neutrinos(folder, files, events):
    """Write train/batch_N.parquet, N from 1, train_meta.parquet and sensor_geometry.csv."""
    (folder / "train").mkdir(parents=True, exist_ok=True)
    with (folder / "sensor_geometry.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["sensor_id", "x", "y", "z"])
        rows.writerows([number, *place] for number, place in enumerate(telescope_places()))
    tables = []
    for number in range(1, files + 1):
        truth, many, pulses = neutrinos(number, events)
        ids, ends = number * 1_000_000 + np.arange(events), np.cumsum(many)
        tables.append(
            pa.table(
                {
                    "batch_id": np.full(events, number),
                    "event_id": ids,
                    "first_pulse_index": ends - many,
                    "last_pulse_index": ends - 1,
                    **truth,
                }
            )
        )
        columns = {
            "sensor_id": pulses[:, 0].astype(np.int16),
            "time": pulses[:, 1].astype(np.int64),
            "charge": pulses[:, 2],
            "auxiliary": pulses[:, 3] > 0,
            "event_id": np.repeat(ids, many),
        }
        pq.write_table(pa.table(columns), folder / "train" / f"batch_{number}.parquet")
    pq.write_table(pa.concat_tables(tables), folder / "train_meta.parquet")
