"""Small folders of pulses in the format of the Kaggle challenge, from events given as lists."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from crpipe.events.batch import offsets
from crpipe.workloads.direction.reading.kaggle import KEY, embed

SENSORS = 60
TEST_COLUMNS = ("batch_id", "event_id", "first_pulse_index", "last_pulse_index")


def make_pulses(multiplicity, seed=0, sensors=SENSORS, first_id=24):
    """Event ids, truth and pulses of events with given numbers of pulses: (columns, items [M, 4] float64)."""
    rng = np.random.default_rng(seed)
    events, pulses = len(multiplicity), int(np.sum(multiplicity))
    columns = {
        "event_id": first_id + 10_000 * seed + np.arange(events) * 17,
        "azimuth": rng.uniform(0, 2 * np.pi, events),
        "zenith": np.arccos(rng.uniform(-1, 1, events)),
        "energy_gev": 10 ** rng.uniform(2, 6, events),
    }
    items = np.stack(
        [
            rng.integers(0, sensors, pulses),
            rng.integers(5_714, 77_785, pulses),
            rng.integers(1, 80, pulses) / 40,  # exact as float32
            rng.integers(0, 2, pulses),
        ],
        axis=1,
    )
    return columns, items


def pulse_table(columns, multiplicity, items):
    """The table of pulses; event_id is the index of pandas, as in the challenge's files."""
    table = pa.table(
        {
            "sensor_id": pa.array(items[:, 0].astype(np.int16)),
            "time": pa.array(items[:, 1].astype(np.int64)),
            "charge": pa.array(items[:, 2].astype(np.float64)),
            "auxiliary": pa.array(items[:, 3].astype(bool)),
            "event_id": pa.array(np.repeat(columns["event_id"], multiplicity).astype(np.int64)),
        }
    )
    return table.replace_schema_metadata({b"pandas": b'{"index_columns": ["event_id"]}'})


def metadata_table(number, columns, multiplicity):
    """The rows of train_meta.parquet for one file, and energy_gev."""
    ends = offsets(multiplicity)
    return pa.table(
        {
            "batch_id": np.full(len(multiplicity), number, np.int64),
            "event_id": columns["event_id"].astype(np.int64),
            "first_pulse_index": ends[:-1],
            "last_pulse_index": ends[1:] - 1,
            "azimuth": columns["azimuth"],
            "zenith": columns["zenith"],
            "energy_gev": columns["energy_gev"],
        }
    )


def write_geometry(path, sensors=SENSORS, per_string=10):
    """A sensor_geometry.csv of strings 100 m apart in a row."""
    ids = np.arange(sensors)
    rows = zip(ids, 100 * (ids // per_string), 0 * ids, 500 - 17 * (ids % per_string), strict=True)
    text = "".join(f"{sensor},{x:.2f},{y:.2f},{z:.2f}\n" for sensor, x, y, z in rows)
    path.write_text("sensor_id,x,y,z\n" + text)
    return path


def write_folder(folder, events, labelled=True, **options):
    """Write train/batch_N.parquet, train_meta.parquet (test_meta.parquet) and sensor_geometry.csv.

    events: {number: (columns, multiplicity, items)}; options are those of pq.write_table for the metadata.
    Returns the side tables, {"meta": path, "geometry": path}.
    """
    (folder / "train").mkdir(parents=True, exist_ok=True)
    for number, (columns, multiplicity, items) in events.items():
        table = pulse_table(columns, multiplicity, items)
        pq.write_table(table, folder / "train" / f"batch_{number}.parquet")
    rows = [metadata_table(number, each[0], each[1]) for number, each in events.items()]
    meta = pa.concat_tables(rows)
    path = folder / ("train_meta.parquet" if labelled else "test_meta.parquet")
    pq.write_table(meta if labelled else meta.select(TEST_COLUMNS), path, **options)
    return {"meta": path, "geometry": write_geometry(folder / "sensor_geometry.csv")}


def write_simulated(path, columns, multiplicity, items, number=1):
    """Write a file of pulses that holds its own metadata."""
    table = pulse_table(columns, multiplicity, items)
    own = {**table.schema.metadata, KEY: embed(metadata_table(number, columns, multiplicity))}
    pq.write_table(table.replace_schema_metadata(own), path)
    return path
