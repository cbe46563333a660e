"""The files of one range before training, and what follows from them; no running process is asked."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from crpipe.core.causes import is_present
from crpipe.core.destinations import LARGE_ROLES, TRAINED_ROLES
from crpipe.core.files import read_json_if_any
from crpipe.core.lease import is_held
from crpipe.core.paths import CONSOLIDATED, OUTLIERS
from crpipe.core.raw_files import lease_folder
from crpipe.events.ledger_file import read_sums_if_any
from crpipe.report.status.status_types import State

if TYPE_CHECKING:
    from pathlib import Path

    from crpipe.core.paths import Paths
    from crpipe.report.status.journal_tail import History, Row

LEASE = "lease"


@dataclass(frozen=True, slots=True)
class Expected:
    """What the files of all ranges are compared with.

    data: digest of the data; fingerprint: of the training; both empty where they are unknown.
    now: the time of the report, in seconds.
    """

    data: str
    fingerprint: str
    has_outliers: bool
    now: float


@dataclass(frozen=True)
class RangeFiles:
    """The files of one range, or of the outliers of all, whose shards are the consolidated ones."""

    paths: Paths
    name: str
    history: History
    expected: Expected

    @cached_property
    def ledger(self) -> Row | None:
        """Where every event of the range went: the sums of its ledger."""
        return read_sums_if_any(self.paths.ledger(self.name))

    @cached_property
    def shards(self) -> Row | None:
        """The manifest of the shards that the chain trains on."""
        paths = self.paths
        outliers = self.name == OUTLIERS
        return read_row(paths.outlier_manifest(CONSOLIDATED) if outliers else paths.shard_manifest(self.name))

    @property
    def is_split(self) -> bool:
        """Whether everything is there that training on the range needs."""
        outliers = not self.expected.has_outliers or is_present(self.paths.outlier_manifest(self.name))
        return bool(self.ledger and self.shards and outliers)

    def stale(self) -> bool:
        """Return whether the shards were made under another configuration."""
        data = self.expected.data
        return bool(data) and self.shards is not None and self.shards["data"] != data

    def merged(self) -> tuple[State, str]:
        """Give state and verb of the consolidation, for the outliers."""
        if self.shards is not None:
            return State.CONSOLIDATED, "consolidate"
        failed = "consolidate" in self.history.failed
        return (State.FAILED if failed else State.WAITING), "consolidate"

    def data_state(self) -> tuple[State, str, Row]:
        """Give state, verb and progress of a range that is not split yet."""
        raw, shards = self.paths.raw(self.name), self.paths.shards(self.name)
        copies = _times(raw)
        about = {"files": len(copies)} if copies else {}
        for state, verb, folder, held in (
            (State.SPLITTING, "split", shards, shards),
            (State.STAGING, "stage", raw, lease_folder(raw)),
        ):
            if is_held(held / LEASE) or self.history.running(verb):
                begun = [self.history.open[verb]["time"]] if verb in self.history.open else []
                newest = max([*begun, *_times(folder, every=True)], default=self.expected.now)
                return state, verb, {**about, "quiet_s": max(0.0, self.expected.now - newest)}
        for verb in ("split", "stage", "list"):
            if self.history.has_failed(verb):
                return State.FAILED, verb, about
        if is_present(self.paths.staged(self.name)):
            return (State.INTERRUPTED if "split" in self.history.open else State.STAGED), "stage", about
        if copies:
            return State.INTERRUPTED, "stage", about
        listed = is_present(self.paths.manifest(self.name))
        return (State.LISTED if listed else State.WAITING), "list", {}

    def split_columns(self) -> dict[str, Any]:
        """Give the columns that the split decides."""
        about: dict[str, Any] = {}
        if self.shards is not None:
            shards = self.shards["shards"]
            about["shards"] = sum(shard["role"] in TRAINED_ROLES for shard in shards)
            if self.name == OUTLIERS:
                about["outliers"] = sum(shard["events"] for shard in shards)
        if self.ledger is not None:
            about["files"] = self.ledger["staged"]["files"]
            about["quarantined"] = self.ledger["quarantined"]
            if self.expected.has_outliers:
                about["outliers"] = sum(self.ledger["events"][role] for role in LARGE_ROLES)
        return about


def read_row(path: Path) -> Row | None:
    """Read a file with one JSON object, if there is one."""
    row: Row | None = read_json_if_any(path)
    return row


def age(path: Path, now: float) -> float | None:
    """Give the seconds since a file was written; None when there is none."""
    try:
        return max(0.0, now - path.stat().st_mtime)
    except FileNotFoundError:
        return None


def _times(folder: Path, *, every: bool = False) -> list[float]:
    """Give the modification time of each finished copy below ``folder``, or of ``every`` file in it."""
    times = []
    for place, _, names in os.walk(folder):
        for name in names:
            if every or not (name.startswith(".") or name.endswith(".part") or name == LEASE):
                with contextlib.suppress(FileNotFoundError):
                    times.append(os.lstat(os.path.join(place, name)).st_mtime)  # noqa: PTH118 - os.walk gives strings
    return times


def training_progress(rows: list[Row]) -> Row:
    """Give step, steps and the time left in a range from its last rows of metrics."""
    if not rows:
        return {}
    last = rows[-1]
    progress: Row = {"step": last["range_step"], "steps": last["range_steps"]}
    step_s = seconds_per_step(rows)
    if step_s is not None:
        progress["eta_s"] = step_s * (last["range_steps"] - last["range_step"])
    return progress


def seconds_per_step(rows: list[Row]) -> float | None:
    """Take the median over pairs of rows, so that a pause between two attempts has no effect."""
    paces = [
        (after["time"] - before["time"]) / (after["step"] - before["step"])
        for before, after in pairwise(rows)
        if after["step"] > before["step"]
    ]
    return median_of(paces)


def median_of(values: list[float]) -> float | None:
    """Give the median (the upper of two); importing `statistics` would add 10 ms to every start."""
    return sorted(values)[len(values) // 2] if values else None
