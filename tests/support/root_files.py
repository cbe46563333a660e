"""ROOT files as the xenon detector's: one tree, one entry for each event."""

import numpy as np
import uproot

SENSORS = 4760
SENTINEL = 1e10  # of both branches, where a sensor has no value
TRUTH = {
    "energyTruth": (0.0528, ()),  # GeV
    "timeTruth": (1e-8, ()),  # s
    "uvwTruth": ((1.0, -2.0, 3.0), (3,)),  # cm
    "emiAng": ((90.0, 180.0), (2,)),  # degrees
}


def make_sensors(events, seed=0):
    """Make npho and relative_time, [events, 4760] each: about 1 % of the sensors dead, 4 % timed."""
    rng = np.random.default_rng(seed)
    npho = rng.exponential(30, (events, SENSORS)).astype(np.float32)
    time = (1e-8 * rng.normal(size=npho.shape)).astype(np.float32)
    time[npho < 100] = SENTINEL
    dead = rng.random(npho.shape) < 0.01
    npho[dead] = time[dead] = SENTINEL
    return npho, time


def make_truth(events, seed=0):
    """Make the branches of the truth, different in each event and inside the fiducial volume."""
    rng = np.random.default_rng(seed)
    return {
        name: (np.asarray(value) * rng.uniform(0.5, 1, (events, *shape))).astype(np.float32)
        for name, (value, shape) in TRUTH.items()
    }


def write_root(path, npho, relative_time, *, tree="tree", block=1000, compression=1, **branches):
    """Write one tree; one basket per branch for each ``block`` events.

    npho, relative_time: [N, 4760], or lists of awkward; branches: further ones by name, such as the truth.
    None leaves one out.
    run is 1 and event the number of the row unless they are given. compression: level of zlib, 0 for none.
    """
    events = next(len(each) for each in (npho, relative_time) if each is not None)
    rows = np.arange(events, dtype=np.int32)
    columns = {"npho": npho, "relative_time": relative_time, "run": np.full_like(rows, 1), "event": rows}
    columns = {name: each for name, each in (columns | branches).items() if each is not None}
    with uproot.recreate(path, compression=uproot.ZLIB(compression) if compression else None) as file:
        kinds = {
            name: (each.dtype, each.shape[1:]) if isinstance(each, np.ndarray) else "var * float32"
            for name, each in columns.items()
        }
        target = file.mktree(tree, kinds)
        for first in range(0, len(rows), block):
            target.extend({name: each[first : first + block] for name, each in columns.items()})
    return path
