"""How far a range or a link is, from its files and journals alone; no running process is asked."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from crpipe.campaign.ledger import LedgerSums
from crpipe.campaign.raw_files import CONVERTED, lease_folder
from crpipe.core.causes import is_present, look_at
from crpipe.core.journal import METRICS_BYTES, History, Row, metric_rows, tail
from crpipe.core.lease import is_held
from crpipe.core.paths import CONSOLIDATED, LARGE_ROLES, OUTLIERS, TRAINED_ROLES
from crpipe.events.shard_records import ShardManifest

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from crpipe.campaign.campaign import Campaign
    from crpipe.campaign.records import Receipt
    from crpipe.core.ranges import ChainLink


class State(StrEnum):
    """How far a range is."""

    WAITING = "waiting"
    LISTED = "listed"
    STAGING = "staging"
    STAGED = "staged"
    CONVERTING = "converting"
    CONVERTED = "converted"
    SPLITTING = "splitting"
    SPLIT = "split"
    CONSOLIDATED = "consolidated"  # the outliers of all ranges, merged; not a state of a single range
    TRAINING = "training"
    INTERRUPTED = "interrupted"  # no job works on it; what was done so far is kept and will be resumed
    TRAINED = "trained"
    FAILED = "failed"
    SKIPPED = "skipped"
    STALE = "stale"  # made under another configuration


NOT_IN_JSON = {"json": False}  # metadata of a field that `crpipe status --json` does not show
AT_WORK = frozenset({State.STAGING, State.CONVERTING, State.SPLITTING, State.TRAINING})
QUIET_S = 300.0  # a job that wrote nothing for this long is shown as quiet


@dataclass(frozen=True, slots=True)
class WorkState:
    """How far a range or a link of training is; ``None`` where no file shows it yet.

    ranges, round: of a link; a range, and the link on the outliers, has no ranges.
    files: raw copies that exist, or existed when the range was split. shards: those that training reads.
    outliers: events above the threshold, of all parts. All four are of a range.
    step: within the range or link while it is in training; of the whole chain once it is trained.
    quiet_s: seconds since the running job last wrote anything.
    stopped: why a link ended early; empty if it did not.
    ledger: the sums of a range's ledger; receipt: that of a finished link.
    """

    name: str
    state: State
    ranges: tuple[str, ...] = ()
    round: int = 0
    files: int | None = None
    quarantined: int = 0
    shards: int | None = None
    outliers: int | None = None
    step: int | None = None
    steps: int | None = None
    eta_s: float | None = None
    quiet_s: float | None = None
    attempt: int = 0
    error: str = ""
    stopped: str = ""
    ledger: LedgerSums | None = field(default=None, metadata=NOT_IN_JSON)
    receipt: Receipt | None = field(default=None, metadata=NOT_IN_JSON)


LEASE = "lease"


@dataclass(frozen=True)
class RangeFiles:
    """The files of one range, or of the outliers of all, whose shards are the consolidated ones.

    now: the time of the report, in seconds.
    """

    campaign: Campaign
    name: str
    history: History
    now: float

    @cached_property
    def ledger(self) -> LedgerSums | None:
        """Where every event of the range went: the sums of its ledger."""
        return LedgerSums.read_if_any(self.campaign.paths.ledger(self.name))

    @cached_property
    def shards(self) -> ShardManifest | None:
        """The manifest of the shards that the chain trains on."""
        paths = self.campaign.paths
        merged = paths.outlier_manifest(CONSOLIDATED)
        return ShardManifest.read_if_any(merged if self.name == OUTLIERS else paths.shard_manifest(self.name))

    @property
    def is_split(self) -> bool:
        """Whether everything is there that training on the range needs."""
        campaign = self.campaign
        outliers = not campaign.has_outliers or is_present(campaign.paths.outlier_manifest(self.name))
        return bool(self.ledger and self.shards and outliers)

    def stale(self) -> bool:
        """Return whether the shards were made under another configuration."""
        data = self.campaign.data
        return bool(data) and self.shards is not None and self.shards.data != data

    def merged(self) -> tuple[State, str]:
        """Return state and verb of the consolidation, for the outliers."""
        if self.shards is not None:
            return State.CONSOLIDATED, "consolidate"
        failed = "consolidate" in self.history.failed
        return (State.FAILED if failed else State.WAITING), "consolidate"

    def data_state(self) -> tuple[State, str, Row]:
        """Return state, verb and progress of a range that is not split yet."""
        paths = self.campaign.paths
        raw, shards = paths.raw(self.name), paths.shards(self.name)
        copies = _times(raw)
        about = {"files": len(copies)} if copies else {}
        converts = "convert" in self.history.open  # a job that holds the lease of the raw copies
        for state, verb, folder, held in (
            (State.SPLITTING, "split", shards, shards),
            (State.CONVERTING, "convert", raw, lease_folder(raw))
            if converts
            else (State.STAGING, "stage", raw, lease_folder(raw)),
        ):
            if is_held(held / LEASE) or self.history.running(verb):
                begun = [self.history.open[verb]["time"]] if verb in self.history.open else []
                newest = max([*begun, *_times(folder, every=True)], default=self.now)
                return state, verb, {**about, "quiet_s": max(0.0, self.now - newest)}
        for verb in ("split", "convert", "stage", "list"):
            if self.history.has_failed(verb):
                return State.FAILED, verb, about
        if is_present(paths.staged(self.name)):
            done = is_present(paths.converted(self.name))
            state, verb = (State.CONVERTED, "convert") if done else (State.STAGED, "stage")
            return State.INTERRUPTED if converts or "split" in self.history.open else state, verb, about
        if copies:
            return State.INTERRUPTED, "stage", about
        listed = is_present(paths.manifest(self.name))
        return (State.LISTED if listed else State.WAITING), "list", {}

    def split_columns(self) -> dict[str, Any]:
        """Return the columns that the split decides."""
        about: dict[str, Any] = {}
        if self.shards is not None:
            about["shards"] = sum(shard.role in TRAINED_ROLES for shard in self.shards.shards)
            if self.name == OUTLIERS:
                about["outliers"], _ = self.shards.totals()
        if self.ledger is not None:
            about["files"] = self.ledger.staged.files
            about["quarantined"] = self.ledger.quarantined
            if self.campaign.has_outliers:
                about["outliers"] = sum(map(self.ledger.events.of, LARGE_ROLES))
        return about


def _times(folder: Path, *, every: bool = False) -> list[float]:
    """Return the modification time of each finished copy below ``folder``, or of ``every`` file in it."""
    times = []
    for path, folders, names in os.walk(folder):
        if not every:
            folders[:] = [each for each in folders if each != CONVERTED]
        for name in names:
            if every or not (name.startswith(".") or name.endswith(".part") or name == LEASE):
                with contextlib.suppress(FileNotFoundError):
                    times.append(os.lstat(os.path.join(path, name)).st_mtime)  # noqa: PTH118 - os.walk gives strings
    return times


def training_progress(rows: list[Row]) -> Row:
    """Return step, steps and the time left in a range from its last rows of metrics."""
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
    durations = [
        (after["time"] - before["time"]) / (after["step"] - before["step"])
        for before, after in pairwise(rows)
        if after["step"] > before["step"]
    ]
    return median_of(durations)


def median_of(values: list[float]) -> float | None:
    """Return the median (the upper of two); importing `statistics` would add 10 ms to every start."""
    return sorted(values)[len(values) // 2] if values else None


# The files of one link of training, and the state that follows from them and from those of its ranges.


# Where file locks do not work across hosts, metrics younger than this show that a job elsewhere is training.
FRESH_S = 900.0


@dataclass(frozen=True)
class LinkTrace:
    """What a link's training left behind; ``data``: the files of its ranges, or of the outliers.

    now: the time of the report, in seconds. receipt: that of the finished training, if it follows from the
    chain. replaced: whether there is another one, and the link is trained again.
    """

    campaign: Campaign
    link: ChainLink
    data: tuple[RangeFiles, ...]
    history: History
    now: float
    receipt: Receipt | None
    replaced: bool

    @cached_property
    def metrics(self) -> list[Row]:
        """The last rows that the training wrote."""
        return metric_rows(tail(self.campaign.paths.store(self.link.name) / "metrics.jsonl", METRICS_BYTES))

    @property
    def weight(self) -> int:
        """Number of its ranges."""
        return len(self.link.ranges)

    def work_state(self) -> WorkState:
        """Return its state: that of the training, or how far its data are."""
        state, verb, progress = self.training(self._before())
        if self.stale() and state not in AT_WORK:
            state = State.STALE
        return WorkState(
            name=self.link.name,
            state=state,
            ranges=self.link.ranges,
            round=self.link.round,
            attempt=self.history.attempts.get(verb, 0),
            error=self.history.error(verb),
            stopped=str((self.receipt and self.receipt.stopped) or ""),
            receipt=self.receipt,
            **progress,
        )

    def training(self, before: tuple[State, str]) -> tuple[State, str, Row]:
        """Return state, verb and progress of a training; ``before``: state and verb as long as none began."""
        if self.receipt is not None:
            return State.TRAINED, "train", {"step": self.receipt.step}
        if before[0] not in (State.SPLIT, State.CONSOLIDATED):
            return *before, {}
        store = self.campaign.paths.store(self.link.name)
        progress = training_progress(self.metrics)
        status = look_at(store / "metrics.jsonl")
        quiet = None if status is None else max(0.0, self.now - status.st_mtime)
        young = quiet is not None and quiet < FRESH_S
        if is_held(store / LEASE) or (young and self.history.running("train")):
            return State.TRAINING, "train", {**progress, "quiet_s": quiet}
        reached: Row = {name: progress[name] for name in ("step", "steps") if name in progress}
        if self.history.has_failed("train"):
            return State.FAILED, "train", reached
        if any(store.glob("snapshot-*.pt")):
            return State.INTERRUPTED, "train", reached
        state, verb = before
        return state, "train" if "train" in self.history.attempts else verb, {}

    def stale(self) -> bool:
        """Return whether its shards or its receipt are those of another configuration."""
        campaign, receipt = self.campaign, self.receipt
        if not campaign.data:
            return False
        other = receipt is not None and (
            receipt.fingerprint != campaign.fingerprint or receipt.ranges != self.link.ranges
        )
        return other or any(files.stale() for files in self.data)

    def _before(self) -> tuple[State, str]:
        if self.link.name == OUTLIERS:
            return self.data[0].merged()
        ready = all(files.is_split for files in self.data)
        return (State.SPLIT, "split") if ready else (State.WAITING, "")


def range_state(files: RangeFiles, links: Sequence[LinkTrace], *, alone: bool) -> WorkState:
    """Find the state of a range: of its training, where that has begun, else how far its data are.

    links: those that train on it, one for each round. alone: it has a link of its own name, whose progress
    it shows.
    """
    state, verb, progress = _training_or_data(files, links)
    about = {"attempt": files.history.attempts.get(verb, 0), "error": files.history.error(verb), **progress}
    if not alone and verb == "train":
        about = {}
    stale = files.stale() or any(link.receipt is not None and link.stale() for link in links[-1:])
    return WorkState(
        name=files.name,
        state=State.STALE if stale and state not in AT_WORK else state,
        ledger=files.ledger,
        **{**files.split_columns(), **about},
    )


def _training_or_data(files: RangeFiles, links: Sequence[LinkTrace]) -> tuple[State, str, Row]:
    if links and links[-1].receipt is not None:
        return links[-1].training((State.SPLIT, "split"))
    if files.name == OUTLIERS:
        return links[0].training(files.merged()) if links else (*files.merged(), {})
    if not files.is_split:
        return files.data_state()
    current = next((link for link in links if link.receipt is None), None)
    return (State.SPLIT, "split", {}) if current is None else current.training((State.SPLIT, "split"))
