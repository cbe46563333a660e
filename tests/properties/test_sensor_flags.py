"""Whatever a file holds for a sensor, its items are 0 wherever their flag is 0, and else as in the file."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from crpipe.workloads.xec.layout import SENSORS
from crpipe.workloads.xec.reading.options import RootFilesOptions
from crpipe.workloads.xec.reading.root import flag_sensors

SENTINELS = st.sampled_from([np.nan, np.inf, -np.inf, 1e10, -1e10, 9e9, -9e9, 100.0, 0.0, -1.0])
VALUES = st.one_of(SENTINELS, st.floats(width=32))


@given(
    sensors=st.lists(st.tuples(VALUES, VALUES, st.booleans()), min_size=1, max_size=20),
    threshold=st.floats(0, 1000, width=32),
    dtype=st.sampled_from([np.float32, np.float64]),
    sentinel=st.lists(SENTINELS, max_size=2),
    saturated=st.none() | st.sampled_from([0.5, 100.0, 9e9]),
)
def test_flags_and_values_agree(sensors, threshold, dtype, sentinel, saturated):
    raw = np.zeros((2, 1, SENSORS), dtype)
    dead = np.zeros((1, SENSORS), bool)
    count = len(sensors)
    raw[:, 0, :count] = np.array([each[:2] for each in sensors]).T
    dead[0, :count] = [each[2] for each in sensors]
    options = RootFilesOptions(npho_threshold=threshold, sentinel=tuple(sentinel), saturated=saturated)
    items = flag_sensors(raw[0], raw[1], dead, options)
    assert (items.dtype, items.shape) == (np.float32, (SENSORS, 4 if saturated is None else 5))
    npho, time = raw[:, 0]
    photons, found_time, valid, timed = items[:, :4].T
    seen = [
        (abs(n) <= 9e9 or n == np.inf) and n not in sentinel and not d
        for n, d in zip(npho, dead[0], strict=True)
    ]
    assert np.array_equal(valid == 1, seen)
    assert set(np.unique([valid, timed])) <= {0, 1}
    good = [
        s and n >= threshold and np.isfinite(t) and abs(t) <= 9e9 and t not in sentinel
        for s, n, t in zip(seen, npho, time, strict=True)
    ]
    assert np.array_equal(timed == 1, good)
    most = np.inf if saturated is None else saturated
    assert np.array_equal(photons, np.where(seen, np.minimum(npho, most), 0).astype(np.float32))
    if saturated is not None:
        assert np.array_equal(items[:, 4] == 1, seen & (npho >= most))
    assert np.allclose(found_time, np.where(good, time, 0).astype(np.float64) * 1e9)
    infinite = np.array(seen) & (npho == np.inf) & (saturated is None)  # for the split to refuse
    assert np.array_equal(np.isfinite(items).all(axis=1), ~infinite)
