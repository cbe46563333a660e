"""The files of one range, and the state that follows from them; no running process is asked."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from crpipe.core.files import read_json_if_any
from crpipe.core.lease import is_held
from crpipe.core.paths import CONSOLIDATED, OUTLIERS
from crpipe.report.status.journal_tail import METRICS_BYTES, History, Row, tail
from crpipe.report.status.status_types import AT_WORK, HELD_OUT, RangeStatus, State

if TYPE_CHECKING:
    from pathlib import Path

    from crpipe.core.paths import Paths

# Where file locks do not work across hosts, metrics younger than this show that a job elsewhere is training.
FRESH_S = 900.0
LEASE = "lease"
# Failures by which a job was stopped from outside: its range is interrupted, not failed.
_STOPPED = frozenset({"Interrupted", "KeyboardInterrupt", "SystemExit"})


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
    """The files of one range, or of the link on the outliers, whose shards are the consolidated ones."""

    paths: Paths
    name: str
    history: History
    expected: Expected

    @cached_property
    def ledger(self) -> Row | None:
        """Where every event of the range went."""
        return _read(self.paths.ledger(self.name))

    @cached_property
    def shards(self) -> Row | None:
        """The manifest of the shards that the chain trains on."""
        paths = self.paths
        outliers = self.name == OUTLIERS
        return _read(paths.outlier_manifest(CONSOLIDATED) if outliers else paths.shard_manifest(self.name))

    @cached_property
    def receipt(self) -> Row | None:
        """The receipt of the finished training."""
        return _read(self.paths.receipt(self.name))

    @cached_property
    def metrics(self) -> list[Row]:
        """The last rows that the training wrote."""
        return tail(self.paths.store(self.name) / "metrics.jsonl", METRICS_BYTES)

    def status(self) -> RangeStatus:
        """Find the state: the last step that has left a trace decides, and gives the progress."""
        state, verb, progress = self._state()
        if self._stale() and state not in AT_WORK:
            state = State.STALE
        return RangeStatus(
            name=self.name,
            state=state,
            attempt=self.history.attempts.get(verb, 0),
            error=self._error(verb),
            **{**self._split_columns(), **progress},
        )

    def _error(self, verb: str) -> str:
        """Give the error of the last attempt of ``verb``, else of the evaluation, which has no own state."""
        failed = self.history.failed
        if verb in failed:
            return str(failed[verb]["error"])
        return f"evaluate: {failed['evaluate']['error']}" if "evaluate" in failed else ""

    def _stale(self) -> bool:
        data, fingerprint = self.expected.data, self.expected.fingerprint
        if not data:
            return False
        return (self.shards is not None and self.shards["data"] != data) or (
            self.receipt is not None and self.receipt["fingerprint"] != fingerprint
        )

    def _state(self) -> tuple[State, str, Row]:
        if self.receipt is not None:
            return State.TRAINED, "train", {"step": self.receipt["step"]}
        if self.name == OUTLIERS:
            return self._outliers_state()
        outliers = not self.expected.has_outliers or self.paths.outlier_manifest(self.name).exists()
        if self.ledger and self.shards and outliers:
            return self._train_state(before=(State.SPLIT, "split"))
        return self._data_state()

    def _outliers_state(self) -> tuple[State, str, Row]:
        if self.shards is not None:
            return self._train_state(before=(State.CONSOLIDATED, "consolidate"))
        failed = "consolidate" in self.history.failed
        return (State.FAILED if failed else State.WAITING), "consolidate", {}

    def _train_state(self, before: tuple[State, str]) -> tuple[State, str, Row]:
        store = self.paths.store(self.name)
        progress = training_progress(self.metrics)
        quiet = self._age(store / "metrics.jsonl")
        young = quiet is not None and quiet < FRESH_S
        if is_held(store / LEASE) or (young and self.history.running("train")):
            return State.TRAINING, "train", {**progress, "quiet_s": quiet}
        reached: Row = {name: progress[name] for name in ("step", "steps") if name in progress}
        if self._failed("train"):
            return State.FAILED, "train", reached
        if any(store.glob("snapshot-*.pt")):
            return State.INTERRUPTED, "train", reached
        state, verb = before
        return state, "train" if "train" in self.history.attempts else verb, {}

    def _data_state(self) -> tuple[State, str, Row]:
        raw, shards = self.paths.raw(self.name), self.paths.shards(self.name)
        copies = _times(raw)
        about = {"files": len(copies)} if copies else {}
        for state, verb, folder in ((State.SPLITTING, "split", shards), (State.STAGING, "stage", raw)):
            if is_held(folder / LEASE) or self.history.running(verb):
                begun = [self.history.open[verb]["time"]] if verb in self.history.open else []
                newest = max([*begun, *_times(folder, every=True)], default=self.expected.now)
                return state, verb, {**about, "quiet_s": max(0.0, self.expected.now - newest)}
        for verb in ("split", "stage", "list"):
            if self._failed(verb):
                return State.FAILED, verb, about
        if self.paths.staged(self.name).exists():
            return (State.INTERRUPTED if "split" in self.history.open else State.STAGED), "stage", about
        if copies:
            return State.INTERRUPTED, "stage", about
        listed = self.paths.manifest(self.name).exists()
        return (State.LISTED if listed else State.WAITING), "list", {}

    def _failed(self, verb: str) -> bool:
        """Return whether the last attempt failed; a killed one that began after it counts as interrupted."""
        row = self.history.failed.get(verb)
        return row is not None and verb not in self.history.open and row.get("kind") not in _STOPPED

    def _split_columns(self) -> dict[str, Any]:
        about: dict[str, Any] = {}
        if self.shards is not None:
            shards = self.shards["shards"]
            about["shards"] = sum(shard["role"] not in HELD_OUT for shard in shards)
            if self.name == OUTLIERS:
                about["outliers"] = sum(shard["events"] for shard in shards)
        if self.ledger is not None:
            about["files"] = sum(item["state"] == "staged" for item in self.ledger["files"])
            about["quarantined"] = self.ledger["quarantined"]
            if self.expected.has_outliers:
                about["outliers"] = self.ledger["events"]["outliers"]
        return about

    def _age(self, path: Path) -> float | None:
        try:
            return max(0.0, self.expected.now - path.stat().st_mtime)
        except FileNotFoundError:
            return None


def _read(path: Path) -> Row | None:
    row: Row | None = read_json_if_any(path)
    return row


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
