"""What an inpainter says of each event: numbers, and lists of the sensors that it found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from crpipe.events.batch import cut_lists
from crpipe.workloads.xec.layout import PHOTONS, PHOTONS_VALID, TIME, TIME_VALID
from crpipe.workloads.xec.sensors import face_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from crpipe.events.batch import Events
    from crpipe.train.workload import Columns

HIDDEN, DEAD = 0, 1  # kinds of a found sensor
# List columns of a prediction: one value for each found sensor of the event.
LISTS = {
    "sensor_id": np.int16,
    "kind": np.int8,
    "photons": np.float32,
    "time_ns": np.float32,
    "true_photons": np.float32,
    "true_time_ns": np.float32,
}


def columns(
    sensors: NDArray[np.float32],
    hidden: NDArray[np.bool_],
    photons: NDArray[np.float32],
    time_ns: NDArray[np.float32],
    averages: Callable[[NDArray[np.bool_]], Columns],
) -> Columns:
    """List hidden and dead sensors of N events, with what was found and, of hidden ones, what they saw.

    sensors: [N, 4760, 4]; hidden: [N, 4760]; photons, time_ns: [N, 4760], found. Numbers of each event:
    hidden, dead (how many). Lists: see LISTS; true values are NaN where nobody knows them. averages: of the
    sensors around hidden and dead ones [N, 4760], by name, in the order of ``np.nonzero``; {} for none.
    """
    valid = sensors[..., PHOTONS_VALID] > 0
    wanted = hidden | ~valid
    event, sensor = np.nonzero(wanted)
    known = hidden[event, sensor]
    timed = known & (sensors[event, sensor, TIME_VALID] > 0)
    values: tuple[NDArray[Any], ...] = (
        sensor,
        np.where(known, HIDDEN, DEAD),
        photons[event, sensor],
        time_ns[event, sensor],
        np.where(known, sensors[event, sensor, PHOTONS], np.nan),
        np.where(timed, sensors[event, sensor, TIME], np.nan),
    )
    counts = wanted.sum(axis=1)
    found: Columns = {
        "hidden": hidden.sum(axis=1).astype(np.int64),
        "dead": (~valid).sum(axis=1).astype(np.int64),
    }
    flat = {name: part.astype(LISTS[name]) for name, part in zip(LISTS, values, strict=True)}
    for name, part in (flat | averages(wanted)).items():
        found[name] = cut_lists(part, counts)
    return found


def rows(events: Events, prediction: Columns) -> pa.Table:
    """Give one row for each found sensor, under the names of the reference's branches.

    mask_type: 0 hidden, 1 dead. Times in s. What nobody knows is NaN.
    """
    lengths = np.array([len(each) for each in prediction["sensor_id"]], np.int64)
    lists = {name: np.concatenate([np.zeros(0, dtype), *prediction[name]]) for name, dtype in LISTS.items()}
    sensor = lists["sensor_id"].astype(np.int32)
    values: dict[str, tuple[Any, type]] = {
        "run_number": (np.repeat(events.columns["run"], lengths), np.int64),
        "event_number": (np.repeat(events.columns["event"], lengths), np.int64),
        "sensor_id": (sensor, np.int32),
        "face": (face_of()[sensor], np.int32),
        "mask_type": (lists["kind"], np.int32),
        "truth_npho": (lists["true_photons"], np.float32),
        "truth_time": (lists["true_time_ns"] * 1e-9, np.float32),
        "pred_npho": (lists["photons"], np.float32),
        "pred_time": (lists["time_ns"] * 1e-9, np.float32),
        "error_npho": (lists["photons"] - lists["true_photons"], np.float32),
        "error_time": ((lists["time_ns"] - lists["true_time_ns"]) * 1e-9, np.float32),
    }
    return pa.table({name: column.astype(dtype) for name, (column, dtype) in values.items()})
