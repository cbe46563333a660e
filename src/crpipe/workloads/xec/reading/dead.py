"""Lists of dead sensors: one for all runs, or one with the run of each entry."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from crpipe.core.errors import FormatError
from crpipe.workloads.xec.layout import SENSORS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

_HEADER = "run,sensor_id"


class DeadSensors:
    """Which sensors are dead in which run; ``sensors`` has a list for each run, and None for all runs."""

    def __init__(self, sensors: Mapping[int | None, list[int]]) -> None:
        self._lists = {run: np.unique(each) for run, each in sensors.items()}

    def of(self, runs: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Give the dead sensors of each event: [N, 4760]."""
        found = np.zeros((len(runs), SENSORS), bool)
        for run, sensors in self._lists.items():
            events = np.arange(len(runs)) if run is None else np.flatnonzero(runs == run)
            found[np.ix_(events, sensors)] = True
        return found


def read_dead(path: Path) -> DeadSensors:
    """Read a list of dead sensors; raise FormatError with the line.

    Either one sensor id in each line, or a CSV table with the header run,sensor_id. Text after # is ignored.
    """
    lists: dict[int | None, list[int]] = {}
    by_run: bool | None = None
    for number, line in enumerate(_lines(path), 1):
        text = "".join(line.partition("#")[0].split())
        if not text:
            continue
        if by_run is None:
            by_run = text == _HEADER
            if by_run:
                continue
        run, sensor = _entry(path, number, text, by_run=by_run)
        lists.setdefault(run, []).append(sensor)
    return DeadSensors(lists)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise FormatError(
            f"{path}: expected a text file of dead sensors ({error}); name one in source.tables, as dead"
        ) from error


def _entry(path: Path, number: int, text: str, *, by_run: bool) -> tuple[int | None, int]:
    try:
        *run, sensor = map(int, text.split(","))
    except ValueError:
        run, sensor = [], -1
    if len(run) != by_run or not 0 <= sensor < SENSORS:
        expected = _HEADER if by_run else f"a sensor id, or {_HEADER} as the first line"
        raise FormatError(
            f"{path}: line {number}: expected {expected}, with sensors from 0 to {SENSORS - 1}, found "
            f"{text!r}; correct this file, which source.tables names as dead"
        )
    return (run[0] if run else None), sensor
