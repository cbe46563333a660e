"""Small files of Prometheus, nested and as flat tables, with the columns and types of the public ones."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

PLACES = ("sensor_pos_x", "sensor_pos_y", "sensor_pos_z")
STRINGS, ON_STRING = 6, 20


def place_of(string, sensor):
    """Where a sensor is, in m: [M, 3]."""
    return np.stack([90.5 * string, -70.25 * (string % 3), -1500 - 17.0 * sensor], axis=1)


def make_hits(counts, seed=0):
    """Strings, numbers on them, and times of the hits of all events."""
    rng = np.random.default_rng(seed)
    total = int(np.sum(counts))
    string = rng.integers(0, STRINGS, total)
    return string, rng.integers(0, ON_STRING, total), rng.uniform(16, 8711, total)


def make_truth(events, seed=0):
    """Directions of travel and energies of neutrinos."""
    rng = np.random.default_rng(seed + 1000)
    azimuth, zenith = rng.uniform(0, 2 * np.pi, events), np.arccos(rng.uniform(-1, 1, events))
    return azimuth, zenith, 10 ** rng.uniform(1, 6, events)


def flat_tables(ids, counts, seed=0):
    """The tables ``total`` and ``mc_truth`` of some events."""
    string, sensor, time = make_hits(counts, seed)
    azimuth, zenith, energy = make_truth(len(ids), seed)
    hits = {
        "sensor_id": sensor,
        **dict(zip(PLACES, place_of(string, sensor).T, strict=True)),
        "sensor_string_id": string,
        "t": time,
        "event_no": np.repeat(ids, counts),
    }
    truth = {
        "injection_energy": energy,
        "injection_type": np.full(len(ids), 14),
        "injection_zenith": zenith,
        "injection_azimuth": azimuth,
        "event_no": np.asarray(ids),
    }
    return pa.table(hits), pa.table(truth)


def nested_table(counts, seed=0, spell=None, turned=False):
    """The nested table of some events; spell: how to write positions; turned: azimuths as before 2023."""
    string, sensor, time = make_hits(counts, seed)
    azimuth, zenith, energy = make_truth(len(counts), seed)
    starts = pa.array(np.concatenate([[0], np.cumsum(counts)]))
    spelled = [spell(axis) if spell else axis for axis in place_of(string, sensor).T]
    photons = dict(zip(PLACES, spelled, strict=True)) | {"string_id": string, "sensor_id": sensor, "t": time}
    photons["id_idx"] = np.ones(len(time), np.int64)
    states = {
        "initial_state_energy": energy,
        "initial_state_type": np.full(len(counts), 12),
        "initial_state_zenith": zenith,
        "initial_state_azimuth": (azimuth + np.pi * turned) % (2 * np.pi),
    }
    halves = pa.array(2 * np.arange(len(counts) + 1))
    final = {
        "final_state_energy": np.stack([0.7 * energy, 0.3 * energy], 1).ravel(),
        "final_state_type": np.tile([11.0, -2000001006.0], len(counts)),
        "final_state_zenith": np.repeat(zenith, 2),
        "final_state_azimuth": np.stack([azimuth, azimuth], 1).ravel(),
    }
    lists = {name: pa.LargeListArray.from_arrays(starts, pa.array(each)) for name, each in photons.items()}
    pairs = {name: pa.LargeListArray.from_arrays(halves, pa.array(each)) for name, each in final.items()}
    truth = {name: pa.array(each) for name, each in states.items()} | pairs
    columns = {"mc_truth": truth, "photons": lists}
    return pa.table(
        {name: pa.StructArray.from_arrays(list(of.values()), list(of)) for name, of in columns.items()}
    )


def write_nested(path, counts, row_group=1000, **how):
    pq.write_table(nested_table(counts, **how), path, row_group_size=row_group)
    return path


def write_flat(folder, files, seed=0):
    """Write total_N.parquet for each {ids: counts} of ``files`` and truth.parquet: (paths, truth)."""
    paths, truths = [], []
    for number, (ids, counts) in enumerate(files):
        hits, truth = flat_tables(ids, counts, seed + number)
        paths.append(folder / f"total_{number}.parquet")
        pq.write_table(hits, paths[-1])
        truths.append(truth)
    pq.write_table(pa.concat_tables(truths), folder / "truth.parquet")
    return paths, folder / "truth.parquet"
