"""The reader of LiquidO on its public file, which is not ours to ship. CRPIPE_SAMPLES names a folder:

liquido/liquido_electrons.h5
    from graphnet-team/graphnet at 368927d, data/tests/liquid-o
"""

import os
from pathlib import Path

import h5py
import numpy as np
import pytest

from crpipe.campaign.readers import ReaderChoice
from crpipe.events.batch import concatenate
from crpipe.events.validity import find_invalid_events
from crpipe.workloads.xec.reading.hdf5 import frame_check

SAMPLES = Path(os.environ.get("CRPIPE_SAMPLES", ""))

pytestmark = pytest.mark.skipif(
    "CRPIPE_SAMPLES" not in os.environ, reason="CRPIPE_SAMPLES names no folder of public sample files"
)


def test_liquido():
    path = SAMPLES / "liquido" / "liquido_electrons.h5"
    reader = ReaderChoice("crpipe.workloads.xec.reading.hdf5:LiquidOFiles", {}, {}).open()
    events = concatenate(list(reader.rows(path)))
    assert reader.totals(path) == (len(events), len(events.items)) == (100, 121_096)
    assert not find_invalid_events(events, reader.layout)
    assert (events.multiplicity.min(), events.multiplicity.max()) == (78, 2480)
    with h5py.File(path) as file:
        truth, hits, places = (file[name][:] for name in ("TruthData", "HitData", "SiPMIDxyz"))
    assert np.array_equal(events.items, hits[:, 1:])
    assert np.array_equal(events.columns["energy_mev"], truth[:, 7])
    own = places[np.argsort(places["SiPMID"])][hits[:, 1].astype(int)]
    assert np.array_equal(np.stack([own[axis] for axis in "xyz"], axis=1).astype(np.float32), hits[:, 2:5])
    report = frame_check(path)
    assert "hits' x = vertex z (r = 1.000), hits' y = vertex y (r = 1.000), hits' z = vertex -x" in report
    means = np.add.reduceat(events.items[:, 1:3].astype(float), events.offsets()[:-1])
    means /= events.multiplicity[:, None]
    for axis, mean in zip("xy", means.T, strict=True):
        assert np.corrcoef(mean, events.columns[f"vertex_{axis}_mm"])[0, 1] > 0.999
