"""Simulated events for the benchmark: Kaggle's files, shards by the real split, GraphNeT's files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from benchmarks import campaigns
from crpipe.workloads.direction import layout
from crpipe.workloads.direction.simulator.files import kaggle_folder
from crpipe.workloads.direction.simulator.options import NeutrinoTelescopeOptions

if TYPE_CHECKING:
    from pathlib import Path

FILE_EVENTS = 20_000
READER = "crpipe.workloads.direction.reading.kaggle:KaggleFiles"


def kaggle(folder: Path, events: int) -> Path:
    """Simulate so many events, in files of FILE_EVENTS at most, unless they are there; return the folder."""
    target = folder / f"kaggle-{events}"
    if not (target / "finished").exists():
        options = NeutrinoTelescopeOptions(events_per_file=min(events, FILE_EVENTS))
        kaggle_folder(options, 1, range(1, 1 + max(1, events // FILE_EVENTS)), target)
        (target / "finished").touch()
    return target


def shards(raw: Path) -> Path:
    """Stage and split a folder of Kaggle's, all of it for training; return the folder of its shards."""
    last = len(list((raw / "train").iterdir()))
    settings = {
        "source.uri": raw / "train/batch_{number}.parquet",
        "source.reader": READER,
        "source.tables.meta": raw / "train_meta.parquet",
        "source.tables.geometry": raw / "sensor_geometry.csv",
        "train.workload": "crpipe.workloads.direction:FlatTransformer",
        "ranges.first": 1,
        "ranges.last": last,
        "ranges.step": last,
        "split.threshold": 1_000_000,
        "split.validation_fraction": 0,
        "train.validate_steps": 0,
        "results": raw / "results",
        "runs": raw / "runs",
    }
    (folder,) = campaigns.split_all(campaigns.configured(settings))
    return folder


def ids(raw: Path) -> tuple[int, int]:
    """Return the number of events of a folder, and the sum of their ids."""
    found = pq.read_table(raw / "train_meta.parquet", columns=["event_id"])["event_id"].to_numpy()
    return len(found), int(found.sum())


def graphnet(raw: Path) -> Path:
    """Write the same events as GraphNeT does: tables truth and pulses, for each chunk a file of both."""
    folder = raw / "graphnet"
    if (folder / "finished").exists():
        return folder
    for name in ("truth", "pulses"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    places = layout.read_geometry(raw / "sensor_geometry.csv")
    meta = pq.read_table(raw / "train_meta.parquet")
    for chunk, path in enumerate(sorted((raw / "train").iterdir())):
        table = pq.read_table(path)
        number = int(path.stem.split("_")[1])
        truth = meta.filter(pa.compute.equal(meta["batch_id"], number))
        truth = truth.select(["event_id", "azimuth", "zenith"]).rename_columns(
            ["event_no", "azimuth", "zenith"]
        )
        place = places[table["sensor_id"].to_numpy()]
        columns = {name: place[:, axis] for axis, name in enumerate("xyz")}
        columns |= {
            name: table[name].to_numpy().astype(np.float32) for name in ("time", "charge", "auxiliary")
        }
        columns["event_no"] = table["event_id"].to_numpy()
        pq.write_table(truth, folder / f"truth/truth_{chunk}.parquet")
        pq.write_table(pa.table(columns), folder / f"pulses/pulses_{chunk}.parquet")
    (folder / "finished").touch()
    return folder
