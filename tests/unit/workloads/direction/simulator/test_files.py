"""The files: format, identity, memory; and what their events look like, against the public numbers."""

import base64
import tracemalloc

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from crpipe.core.errors import ConfigError
from crpipe.workloads.direction.reading.kaggle import embedded
from crpipe.workloads.direction.simulator import files as module
from crpipe.workloads.direction.simulator.files import kaggle_folder, write_batch
from crpipe.workloads.direction.simulator.options import NeutrinoTelescopeOptions

SMALL = NeutrinoTelescopeOptions(files_per_range=3, events_per_file=40)
SCHEMA = [
    ("sensor_id", pa.int16()),
    ("time", pa.int64()),
    ("charge", pa.float64()),
    ("auxiliary", pa.bool_()),
    ("event_id", pa.int64()),
]
META = ["batch_id", "event_id", "first_pulse_index", "last_pulse_index"]
ANGLES = ["azimuth", "zenith"]


def written(tmp_path, options=SMALL, seed=1, number=42_000):
    path = tmp_path / f"batch_{number}.parquet"
    write_batch(options, seed, number, path)
    return path


@pytest.fixture(scope="module")
def campaign(tmp_path_factory):
    """One file of 5000 events: its columns, its metadata."""
    path = written(tmp_path_factory.mktemp("campaign"), NeutrinoTelescopeOptions(events_per_file=5000))
    table = pq.read_table(path)
    metadata = embedded(table.schema)
    arrays = ({name: of[name].to_numpy() for name in of.column_names} for of in (table, metadata))
    return tuple(arrays)


def per_event(metadata):
    return metadata["last_pulse_index"] - metadata["first_pulse_index"] + 1


def test_schema_is_that_of_the_public_sample(tmp_path):
    schema = pq.read_schema(written(tmp_path))
    assert [(field.name, field.type) for field in schema] == SCHEMA
    assert schema.pandas_metadata["index_columns"] == ["event_id"]
    assert [column["name"] for column in schema.pandas_metadata["columns"]] == [name for name, _ in SCHEMA]


def test_metadata_in_the_footer_is_an_arrow_stream_in_base64(tmp_path):
    path = written(tmp_path)
    with pa.ipc.open_stream(base64.b64decode(pq.read_metadata(path).metadata[b"event_metadata"])) as stream:
        table = stream.read_all()
    assert table.schema.names == [*META, *ANGLES, "energy_gev"]
    assert {str(table.schema.field(name).type) for name in META} == {"int64"}
    assert {str(table.schema.field(name).type) for name in (*ANGLES, "energy_gev")} == {"double"}
    assert table.equals(write_batch(SMALL, 1, 42_000, tmp_path / "again"))


def test_spans_are_inclusive_and_cover_the_file(campaign):
    pulses, metadata = campaign
    first, last = metadata["first_pulse_index"], metadata["last_pulse_index"]
    assert len(first) == 5000
    assert first[0] == 0
    assert np.array_equal(first[1:], last[:-1] + 1)
    assert last[-1] == len(pulses["time"]) - 1
    assert np.array_equal(pulses["event_id"], np.repeat(metadata["event_id"], per_event(metadata)))
    assert set(metadata["batch_id"]) == {42_000}


def test_row_groups_do_not_change_what_a_file_holds(tmp_path, monkeypatch):
    options = NeutrinoTelescopeOptions(events_per_file=400)
    together = pq.read_table(written(tmp_path, options))
    monkeypatch.setattr(module, "ROWS_AT_ONCE", 1000)
    path = written(tmp_path, options)
    assert pq.ParquetFile(path).num_row_groups > 1
    assert pq.read_table(path).equals(together)


def test_event_ids_are_unique_over_files(tmp_path):
    ids = [
        set(embedded(pq.read_schema(written(tmp_path, number=number)))["event_id"].to_pylist())
        for number in (0, 1, 42_001)
    ]
    assert [len(each) for each in ids] == [40, 40, 40]
    assert len(set.union(*ids)) == 120


def test_whole_folder_is_that_of_the_challenge(tmp_path):
    kaggle_folder(SMALL, 1, range(1, 4), tmp_path / "kaggle")
    files = {str(path.relative_to(tmp_path / "kaggle")) for path in (tmp_path / "kaggle").rglob("*.*")}
    batches = {f"train/batch_{number}.parquet" for number in (1, 2, 3)}
    assert files == {*batches, "train_meta.parquet", "sensor_geometry.csv"}
    meta = pq.read_table(tmp_path / "kaggle" / "train_meta.parquet")
    assert meta.schema.names == [*META, *ANGLES]
    assert meta["batch_id"].to_pylist() == 40 * [1] + 40 * [2] + 40 * [3]
    second = embedded(pq.read_schema(tmp_path / "kaggle" / "train" / "batch_2.parquet"))
    assert meta.slice(40, 40).to_pylist() == second.select(meta.schema.names).to_pylist()


def test_values_are_those_of_a_telescope(campaign):
    pulses, metadata = campaign
    assert 0 <= pulses["sensor_id"].min() < 50
    assert 5100 < pulses["sensor_id"].max() < 5160
    assert 5000 < pulses["time"].min() < 7000
    assert 20_000 < pulses["time"].max() < 100_000
    assert pulses["charge"].min() >= 0.025
    assert 500 < pulses["charge"].max() < 3500
    assert np.median(pulses["charge"]) == pytest.approx(0.975, abs=0.051)
    assert metadata["zenith"].max() <= np.pi
    assert metadata["azimuth"].min() >= 0
    assert metadata["azimuth"].max() < 2 * np.pi
    assert metadata["energy_gev"].min() >= 100


def test_pulses_of_an_event_are_in_order_of_time(campaign):
    pulses, metadata = campaign
    falls = np.flatnonzero(np.diff(pulses["time"]) < 0) + 1
    assert set(falls) <= set(metadata["first_pulse_index"])


def test_pulses_of_a_sensor_are_few(campaign):
    """Public: 78 % of the sensors that are hit have one pulse, 90 % at most 3."""
    pulses, _ = campaign
    _, count = np.unique(pulses["event_id"] * 5160 + pulses["sensor_id"], return_counts=True)
    assert np.percentile(count, [50, 90]).tolist() == [1, 3]
    assert np.mean(count == 1) == pytest.approx(0.78, abs=0.05)


def test_number_of_pulses_is_as_public_with_a_tail(campaign):
    """Public: 158 in the mean, from 5 to 178,000. One event in 2000 has more than 10,000 here."""
    count = per_event(campaign[1])
    assert count.mean() == pytest.approx(158, rel=0.3)
    assert count.max() > 10_000
    assert count.min() >= 8
    assert np.median(count) < 120


def test_share_of_auxiliary_pulses_is_as_public(campaign):
    assert campaign[0]["auxiliary"].mean() == pytest.approx(0.28, abs=0.1)


def test_events_hit_a_few_sensors_to_a_good_part_of_the_detector(campaign):
    """Public: 99 % of the events below 2000 sensors, at most 5160."""
    pulses, metadata = campaign
    hit = np.unique(pulses["event_id"] * 5160 + pulses["sensor_id"]) // 5160
    _, sensors = np.unique(hit, return_counts=True)
    assert len(sensors) == len(metadata["event_id"])
    assert 8 <= sensors.min() < 35
    assert np.percentile(sensors, 99) < 1000 < sensors.max()


def test_the_largest_event_is_bounded_in_pulses_and_memory(tmp_path):
    options = NeutrinoTelescopeOptions(
        events_per_file=6, cascade_fraction=1, energy_min_gev=0.99e8, energy_max_gev=1e8
    )
    tracemalloc.start()
    path = written(tmp_path, options)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    table = pq.read_table(path)
    count = per_event({name: embedded(table.schema)[name].to_numpy() for name in META})
    assert 50_000 < count.max() < 210_000
    assert peak < 600e6
    sensors = table["sensor_id"].to_numpy()[: count[0]]
    assert 1000 < len(np.unique(sensors)) <= 5160


def test_particles_that_never_trigger_are_refused(tmp_path):
    options = NeutrinoTelescopeOptions(energy_min_gev=0.1, energy_max_gev=1)
    with pytest.raises(ConfigError, match="energy_max_gev: .* none triggers; raise it"):
        written(tmp_path, options)
