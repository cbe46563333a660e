"""Simulated events for benchmarks/direction.py: Kaggle's files, shards by the real split, GraphNeT's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from crpipe.campaign.campaign import Campaign
from crpipe.config.loading import load_config
from crpipe.core.text import Silent
from crpipe.source.listing import list_range
from crpipe.source.side_tables import stage_tables
from crpipe.source.stage import stage_range
from crpipe.split.split import split_range
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
    config = load_config((), tuple(f"{key}={value}" for key, value in settings.items()))
    (name,) = map(str, config.all_ranges())
    folder = config.paths().shards(name)
    if not (folder / "manifest.json").exists():
        stage_tables(Campaign.open(config), Silent())
        list_range(Campaign.open(config), name, Silent())
        stage_range(Campaign.open(config), name, Silent())
        split_range(Campaign.open(config), name, Silent())
    return folder


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


def with_giant(folder: Path, pulses: int) -> Path:
    """Simulate a small folder, and make one event of the first ``pulses`` pulses of its file."""
    target = folder / "giant"
    if not (target / "finished").exists():
        kaggle_folder(NeutrinoTelescopeOptions(events_per_file=4000), 2, [1], target)
        path, meta = target / "train/batch_1.parquet", pq.read_table(target / "train_meta.parquet")
        first = int(np.searchsorted(meta["last_pulse_index"].to_numpy(), pulses))
        rest = meta.slice(first)  # its first event is cut where the giant ends
        table = pq.read_table(path)
        giant = table[:pulses].sort_by("time")
        giant = giant.set_column(4, "event_id", pa.array(np.zeros(pulses, np.int64)))
        starts = np.maximum(rest["first_pulse_index"].to_numpy(), pulses)
        rest = rest.set_column(2, "first_pulse_index", pa.array(starts))
        row = meta.slice(0, 1).to_pydict()
        row |= {"event_id": [0], "first_pulse_index": [0], "last_pulse_index": [pulses - 1]}
        rows = pa.concat_tables([pa.table(row, schema=meta.schema), rest])
        pq.write_table(rows, target / "train_meta.parquet")
        pq.write_table(pa.concat_tables([giant, table[pulses:]]), path)
        (target / "finished").touch()
    return target
