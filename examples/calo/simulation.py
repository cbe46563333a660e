"""Toy showers in NPZ files, their reader, and the simulator that makes them: 5 layers of 3 x 3 voxels."""

import numpy as np

from crpipe.author import Events, Field, Layout, Reader, Simulator

LAYERS, CELLS = 5, 9
VOXELS = LAYERS * CELLS
SHOWERS = Layout(
    item="voxels",
    events=(
        Field("shower", "uint64", "", 0, 2**63, "number of the shower"),
        Field("energy_gev", "float32", "GeV", 1, 100, "energy of the particle"),
    ),
    items=(Field("deposit_gev", "float32", "GeV", 0, 100, "deposited energy"),),
    group=("shower",),
    key=("shower",),
    fixed=VOXELS,
)


def deposits(energy_gev, rng):
    """Deposits [N, 45] in GeV: a profile in depth with a random maximum, sampled, and a random position."""
    depth = np.arange(LAYERS) + 0.5
    maximum = 1.2 + 0.3 * np.log(energy_gev) + rng.normal(0, 0.3, len(energy_gev))
    profile = np.exp(-((depth - maximum[:, None]) ** 2) / 3)
    place = rng.normal(0, 0.3, (2, len(energy_gev), 1))
    x, y = np.divmod(np.arange(CELLS), 3)
    lateral = np.exp(-((x - 1 - place[0]) ** 2) - (y - 1 - place[1]) ** 2)
    mean = 0.9 * energy_gev[:, None, None] * profile[:, :, None] * lateral[:, None]
    mean /= (profile.sum(axis=1) * lateral.sum(axis=1))[:, None, None]
    shape = 50 * mean + 0.5
    return (rng.gamma(shape) / shape * mean).reshape(len(energy_gev), VOXELS)


class ShowerFiles(Reader):
    layout = SHOWERS

    def rows(self, path, tables):
        with np.load(path) as file:
            events = {name: file[name] for name in ("shower", "energy_gev")}
            yield self.block(None, events, {"deposit_gev": file["deposit_gev"]})

    def totals(self, path, tables):
        with np.load(path) as file:
            return len(file["shower"]), VOXELS * len(file["shower"])


class Showers(Simulator):
    layout = SHOWERS
    offers = ()

    def files(self, name):
        return [f"showers_{number}.npz" for number in range(name.first, name.last + 1)]

    def write(self, name, file, seed, path):
        number = int(file.partition("_")[2].partition(".")[0])
        events = self.fresh(1000, [seed, number])
        columns = {**events.columns, "shower": events.columns["shower"] + np.uint64(1000 * number)}
        with path.open("wb") as out:
            np.savez(out, deposit_gev=events.items.reshape(-1, VOXELS), **columns)

    def tables(self, folder):
        return {}

    def fresh(self, groups, seed):
        energy = np.random.default_rng([1, *np.atleast_1d(seed)]).uniform(1, 100, groups).astype(np.float32)
        return self.again({"shower": np.arange(groups, dtype=np.uint64), "energy_gev": energy}, seed)

    def again(self, columns, seed):
        rng = np.random.default_rng([2, *np.atleast_1d(seed)])
        items = deposits(columns["energy_gev"].astype(float), rng).reshape(-1, 1).astype(np.float32)
        return Events(dict(columns), np.full(len(items) // VOXELS, VOXELS, np.uint32), items)
