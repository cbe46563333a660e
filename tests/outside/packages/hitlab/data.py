"""Small files in the format of hitlab: batch_N.parquet, truth.parquet, geometry.csv."""

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

SIDE = 12  # detectors along each side of a square


def geometry():
    """Positions of the detectors, 8 m apart: [144, 2]."""
    line = 8.0 * (np.arange(SIDE) - (SIDE - 1) / 2)
    return np.stack(np.meshgrid(line, line), axis=-1).reshape(-1, 2)


def write_files(folder, batches, events=150, seed=1):
    """Write ``batches`` files of ``events`` events each, and the tables of all of them."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    places = geometry()
    rows = [f"{number},{x},{y}" for number, (x, y) in enumerate(places)]
    (folder / "geometry.csv").write_text("\n".join(["detector,x_m,y_m", *rows]) + "\n")
    truth = []
    for batch in range(batches):
        rng = np.random.default_rng([seed, batch])
        table, hits = _events(rng, places, batch, events)
        pq.write_table(hits, folder / f"batch_{batch}.parquet")
        truth.append(table)
    pq.write_table(pa.concat_tables(truth), folder / "truth.parquet")


def _events(rng, places, batch, count):
    energy = 20 * (1 - rng.random(count)) ** -0.7  # many small events and few large ones
    energy = np.minimum(energy, 5000)
    where = rng.uniform(-40, 40, (count, 2))
    away = np.linalg.norm(places - where[:, None], axis=2)
    hit = rng.random(away.shape) < 1 - np.exp(-energy[:, None] / 90 * np.exp(-away / 12))
    event, detector = np.nonzero(hit)
    far = away[event, detector]
    counts = hit.sum(axis=1)
    truth = {
        "batch": np.full(count, batch, np.int32),
        "event_id": np.arange(count, dtype=np.uint64) + np.uint64(10_000 * batch + 2**63),
        "station": rng.integers(-30, 30, count).astype(np.int16),
        "energy_mev": energy,
        "x_m": where[:, 0],
        "y_m": where[:, 1],
        "multiplicity": counts.astype(np.int64),
    }
    hits = {
        "detector": detector.astype(np.int16),
        "time_ns": (far / 0.3 + rng.normal(0, 3, len(far))).round().astype(np.int64),
        "charge": rng.exponential(energy[event] / 20 * np.exp(-far / 12) + 0.1),
    }
    return pa.table(truth), pa.table(hits)


if __name__ == "__main__":
    write_files(sys.argv[1], int(sys.argv[2]))
