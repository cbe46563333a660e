"""Toy jets to try the example on: ``python -m jets.data FOLDER parquet|npz``."""

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

MEAN, WIDTH = (
    (17, 30, 45),
    (0.08, 0.13, 0.25),
)  # of quark, gluon and top: particles, and spread in eta and phi


def jets(seed, number=800):
    rng = np.random.default_rng(seed)
    label = rng.integers(0, 3, number).astype(np.uint8)
    count = rng.poisson(np.take(MEAN, label)) + 1
    of = np.repeat(label, count)
    angle = rng.normal(0, np.take(WIDTH, of), (2, len(of)))
    prongs = rng.integers(0, 3, len(of)) * (of == 2)
    angle[0] += np.take((0, 0.4, -0.4), prongs)
    jet_pt = rng.uniform(300, 700, number)
    share = rng.exponential(1, len(of)) ** np.take((2.0, 1.5, 1.5), of)
    sums = np.bincount(np.repeat(np.arange(number), count), share)
    pt = share / np.repeat(sums, count) * np.repeat(jet_pt, count)
    events = {"jet_id": np.arange(number) + seed * number, "label": label, "jet_pt_gev": jet_pt}
    return events, count, {"pt_gev": pt, "eta": angle[0].clip(-9, 9), "phi": angle[1].clip(-3, 3)}


def main(folder, kind):
    for number in range(4):
        first = number // 2 * 2
        path = Path(folder) / f"{first:07}-{first + 1:07}" / f"jets_{number}.{kind}"
        path.parent.mkdir(parents=True, exist_ok=True)
        events, count, items = jets(number)
        if kind == "npz":
            np.savez(path, count=count, **events, **items)
            continue
        ends = np.concatenate([[0], np.cumsum(count)]).astype(np.int32)
        lists = {name: pa.ListArray.from_arrays(ends, pa.array(each)) for name, each in items.items()}
        pq.write_table(pa.table({**events, **lists}), path)


if __name__ == "__main__":
    main(*sys.argv[1:])
