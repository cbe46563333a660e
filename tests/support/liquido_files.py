"""HDF5 files in the schema of LiquidO's public sample, their vertices in another frame than their hits."""

import h5py
import numpy as np

SENSORS = 12_860


def make_liquido(counts, seed=0):
    """Make TruthData [N, 9] and HitData [M, 7]; hits x, y, z are about the vertex z, y and -x."""
    rng = np.random.default_rng(seed)
    counts = np.asarray(counts, int)
    events = len(counts)
    truth = np.empty((events, 9), np.float32)
    truth[:, 0] = 1 + np.arange(events)
    truth[:, 1:4] = rng.uniform(-800, 800, (events, 3))
    truth[:, 4] = np.arccos(rng.uniform(-1, 1, events))
    truth[:, 5] = rng.uniform(0, 2 * np.pi, events)
    truth[:, 6] = 0
    truth[:, 7] = rng.uniform(0.3, 5, events)
    truth[:, 8] = 11
    owner = np.repeat(np.arange(events), counts)
    hits = np.empty((len(owner), 7), np.float32)
    hits[:, 0] = truth[owner, 0]
    hits[:, 1] = rng.integers(0, SENSORS, len(owner))
    centre = truth[owner][:, [3, 2, 1]] * [1, 1, -1]
    hits[:, 2:5] = centre + rng.normal(0, 30, (len(owner), 3))
    hits[:, 5] = rng.exponential(100, len(owner))
    hits[:, 6] = 1
    return truth, hits


def write_liquido(path, truth, hits):
    """Write both tables, and that of the sensors, which the reader does not need."""
    places = np.zeros(SENSORS, [("SiPMID", "<i4"), ("x", "<f8"), ("y", "<f8"), ("z", "<f8")])
    places["SiPMID"] = np.arange(SENSORS)
    with h5py.File(path, "w") as file:
        for name, table in {"HitData": hits, "SiPMIDxyz": places, "TruthData": truth}.items():
            if table is not None:
                file[name] = table
    return path
