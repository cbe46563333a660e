"""Simulated gammas for the benchmarks of xec: ROOT files, links to more of them, shards by the real split."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

import numpy as np
import uproot

from benchmarks import campaigns
from crpipe.core.ranges import Range
from crpipe.workloads.xec.sensors import write_sensor_map
from crpipe.workloads.xec.simulator.files import XenonDetector
from crpipe.workloads.xec.simulator.options import XenonDetectorOptions

if TYPE_CHECKING:
    from pathlib import Path

    from crpipe.config.loading import Config

RANGE_FILES = 10  # in one range, so that large sets have many ranges of the same size
RUN = 1_000_000  # more than the events of a run: run · RUN + event is an id
READER = "crpipe.workloads.xec.reading.root:RootFiles"


def simulate(path: Path, number: int, events: int) -> None:
    """Write the simulated file of one run."""
    simulator = XenonDetector(XenonDetectorOptions(events_per_file=events))
    name = Range(number, number)
    simulator.write(name, simulator.files(name)[0], 1, path)


def root_files(folder: Path, events: int, file_events: int) -> Path:
    """Simulate so many events, in files of ``file_events`` at most, unless they exist; give the folder."""
    target = folder / f"root-{events}"
    if not (target / "finished").exists():
        target.mkdir(parents=True, exist_ok=True)
        numbers = range(1, 1 + max(1, events // file_events))
        paths = [target / f"gammas_{number}.root" for number in numbers]
        workers = min(os.cpu_count() or 1, len(paths))
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
            list(pool.map(simulate, paths, numbers, [min(events, file_events)] * len(paths)))
        (target / "finished").touch()
    return target


def paths_of(raw: Path) -> list[Path]:
    """List the files of a folder by their numbers."""
    return sorted(raw.glob("gammas_*.root"), key=lambda path: int(path.stem.split("_")[1]))


def sensors(raw: Path) -> Path:
    """Write the table of the sensors beside the files."""
    path = raw / "sensor_positions.csv"
    write_sensor_map(path)
    return path


def ids(raw: Path) -> tuple[int, int]:
    """Count the events of a folder, and add up their ids."""
    events = total = 0
    for path in paths_of(raw):
        with uproot.open(path) as file:
            found = file["tree"].arrays(["run", "event"], library="np")
        events += len(found["run"])
        total += int((found["run"].astype(np.int64) * RUN + found["event"]).sum())
    return events, total


def configured(raw: Path) -> Config:
    """Configure a campaign on a folder of ROOT files, all of it for training."""
    last = len(paths_of(raw))
    settings: dict[str, Any] = {
        "source.uri": raw / "gammas_{number}.root",
        "source.reader": READER,
        "train.workload": "crpipe.workloads.xec:Regressor",
        "ranges.first": 1,
        "ranges.last": last,
        "ranges.size": min(last, RANGE_FILES),
        "split.outlier_above": 1_000_000,
        "split.validation_fraction": 0,
        "resources.split.cpus": 1,
        "train.validate_every": 0,
        "results": raw / "results",
        "runs": raw / "runs",
    }
    return campaigns.configured(settings)


def split(raw: Path, names: list[str]) -> list[Path]:
    """Split what is staged; return the folders of shards."""
    config = configured(raw)
    for name in names:
        campaigns.split(campaigns.opened(config), name)
    return [config.paths().shards(name) for name in names]


def shards(raw: Path) -> list[Path]:
    """Stage and split a folder, unless it is; return the folders of its shards."""
    return campaigns.split_all(configured(raw))
