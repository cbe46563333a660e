"""The readers on public files, which are not ours to ship. CRPIPE_SAMPLES names a folder with copies of them:

kaggle/: batch_661.parquet, test_meta.parquet, sensor_geometry.csv
    from ueanperfect/IceCube at 742196d, data/icecube-neutrinos-in-deep-ice (batch_661 from its folder test)
prometheus/total/total_0 … 9.parquet, prometheus/mc_truth/mc_truth_0 … 9.parquet
    from graphnet-team/graphnet at 368927d, data/examples/parquet/prometheus/merged
prometheus/example_photons.parquet
    from Harvard-Neutrino/prometheus at 3563f0f, examples/output
prometheus/22980001_photons.parquet
    from graphnet-team/graphnet at 368927d, data/tests/prometheus
"""

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from crpipe.campaign.readers import ReaderChoice
from crpipe.events.batch import concatenate
from crpipe.events.validity import find_invalid_events
from crpipe.workloads.direction.layout import read_geometry
from crpipe.workloads.direction.reading.prometheus import geometry_of

SAMPLES = Path(os.environ.get("CRPIPE_SAMPLES", ""))
READING = "crpipe.workloads.direction.reading"

pytestmark = pytest.mark.skipif(
    "CRPIPE_SAMPLES" not in os.environ, reason="CRPIPE_SAMPLES names no folder of public sample files"
)


def read(name, tables, path):
    reader = ReaderChoice(f"{READING}.{name}", {}, tables).open()
    events = concatenate(list(reader.rows(path)))
    assert reader.totals(path) == (len(events), len(events.items))
    return events, reader.layout


def test_kaggle():
    folder = SAMPLES / "kaggle"
    tables = {"meta": folder / "test_meta.parquet", "geometry": folder / "sensor_geometry.csv"}
    events, layout = read("kaggle:KaggleFiles", tables, folder / "batch_661.parquet")
    counts = dict(zip(events.columns["event_id"].tolist(), events.multiplicity.tolist(), strict=True))
    assert counts == {2092: 299, 7344: 36, 9482: 43}
    assert np.isnan(events.columns["zenith"]).all()
    pulses = pq.read_table(folder / "batch_661.parquet")
    for position, name in enumerate(("sensor_id", "time", "charge", "auxiliary")):
        whole = pulses[name].to_numpy().astype(np.float32)
        assert np.array_equal(events.items[:, position], whole)
    assert all("azimuth is nan" in reason for reason in find_invalid_events(events, layout).values())
    places = read_geometry(tables["geometry"])
    assert places.shape == (5160, 3)
    assert (
        places[[0, -1]].tolist() == np.float32([[-256.14, -521.08, 496.03], [-10.97, 6.72, -500.73]]).tolist()
    )


def test_prometheus_flat(tmp_path):
    folder = SAMPLES / "prometheus"
    hits = [folder / "total" / f"total_{number}.parquet" for number in range(10)]
    truth = [pq.read_table(folder / "mc_truth" / f"mc_truth_{number}.parquet") for number in range(10)]
    pq.write_table(pa.concat_tables(truth), tmp_path / "truth.parquet")
    geometry_of(hits, tmp_path / "geometry.csv")
    assert len(read_geometry(tmp_path / "geometry.csv")) == 503
    tables = {"truth": tmp_path / "truth.parquet", "geometry": tmp_path / "geometry.csv"}
    found = [read("prometheus:PrometheusHits", tables, path) for path in hits]
    assert not any(find_invalid_events(events, layout) for events, layout in found)
    events = concatenate([each for each, _ in found])
    assert (len(events), len(events.items)) == (50, 1872)
    assert (events.multiplicity.min(), events.multiplicity.max()) == (3, 99)
    assert 10 < events.columns["energy_gev"].min() < events.columns["energy_gev"].max() < 140


@pytest.mark.parametrize(
    ("name", "counts", "sensors"),
    [
        ("example_photons", [54_550, 1, 193, 1157, 151_579, 472, 6783, 21, 2163, 295], 1377),
        ("22980001_photons", [13, 1, 5, 3, 51, 0, 4, 7, 113, 3], 49),
    ],
)
def test_prometheus_nested(tmp_path, name, counts, sensors):
    path = SAMPLES / "prometheus" / f"{name}.parquet"
    geometry_of([path], tmp_path / "geometry.csv")
    assert len(read_geometry(tmp_path / "geometry.csv")) == sensors
    events, layout = read("prometheus:PrometheusPhotons", {"geometry": tmp_path / "geometry.csv"}, path)
    assert events.multiplicity.tolist() == counts
    assert not find_invalid_events(events, layout)
