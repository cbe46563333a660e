"""Simulated files of a test beam: every event a bump of light on the tiles."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tilelab.layout import COUNT, TILES

GAINS = 0.5 + 0.01 * np.arange(COUNT)  # mV for one count


class BeamTest:
    layout = TILES

    def __init__(self, options):
        self.options = options

    def files(self, name):
        return [f"tiles_{number}.parquet" for number in range(name.first, name.last + 1)]

    def write(self, name, file, seed, path):
        number = int(file.removeprefix("tiles_").removesuffix(".parquet"))
        rng = np.random.default_rng([seed, number])
        count = self.options.events_per_file
        energy = rng.uniform(10, 60, count)
        x, y = rng.uniform(1, 6, (2, count, 1))
        rows, columns = np.divmod(np.arange(COUNT), 8)
        light = 40 * energy[:, None] * np.exp(-((columns - x) ** 2 + (rows - y) ** 2) / 4)
        signal = light + rng.normal(0, self.options.noise_mv, light.shape)
        table = {
            "run": np.full(count, number, np.int32),
            "event": np.arange(count, dtype=np.int32),
            "energy_mev": energy.astype(np.float32),
            "rate_hz": (1e3 * (energy / 10) ** -2.7).astype(np.float32),
            "counts": _lists((signal / GAINS).astype(np.float32)),
            "delay_ns": _lists(rng.normal(20, 3, light.shape).astype(np.float32)),
        }
        pq.write_table(pa.table(table), path)

    offers = ("gains",)

    def tables(self, folder):
        path = folder / "gains.csv"
        rows = [f"{tile},{gain}" for tile, gain in enumerate(GAINS)]
        path.write_text("\n".join(["tile,gain_mv", *rows]) + "\n")
        return {"gains": path}


def _lists(values):
    return pa.FixedSizeListArray.from_arrays(values.reshape(-1), COUNT)
