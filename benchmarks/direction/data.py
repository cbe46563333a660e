"""Simulated events for the benchmark: Kaggle's files and shards by the real split."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from benchmarks import campaigns
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
        "ranges.size": last,
        "split.outlier_above": 1_000_000,
        "split.validation_fraction": 0,
        "train.validate_every": 0,
        "results": raw / "results",
        "runs": raw / "runs",
    }
    (folder,) = campaigns.split_all(campaigns.configured(settings))
    return folder


def ids(raw: Path) -> tuple[int, int]:
    """Return the number of events of a folder, and the sum of their ids."""
    found = pq.read_table(raw / "train_meta.parquet", columns=["event_id"])["event_id"].to_numpy()
    return len(found), int(found.sum())
