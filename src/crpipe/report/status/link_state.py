"""The files of one link of training, and the state that follows from them and from those of its ranges."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from crpipe.core.lease import is_held
from crpipe.core.paths import OUTLIERS
from crpipe.report.status.journal_tail import METRICS_BYTES, History, Row, metric_rows, tail
from crpipe.report.status.range_state import (
    LEASE,
    Expected,
    RangeFiles,
    age,
    read_row,
    training_progress,
)
from crpipe.report.status.status_types import AT_WORK, LinkStatus, RangeStatus, State

if TYPE_CHECKING:
    from collections.abc import Sequence

    from crpipe.core.chain import ChainLink
    from crpipe.core.paths import Paths

# Where file locks do not work across hosts, metrics younger than this show that a job elsewhere is training.
FRESH_S = 900.0


@dataclass(frozen=True)
class LinkTrace:
    """What a link's training left behind; ``data``: the files of its ranges, or of the outliers."""

    paths: Paths
    link: ChainLink
    data: tuple[RangeFiles, ...]
    history: History
    expected: Expected

    @cached_property
    def receipt(self) -> Row | None:
        """The receipt of the finished training."""
        return read_row(self.paths.receipt(self.link.name))

    @cached_property
    def metrics(self) -> list[Row]:
        """The last rows that the training wrote."""
        return metric_rows(tail(self.paths.store(self.link.name) / "metrics.jsonl", METRICS_BYTES))

    @property
    def weight(self) -> int:
        """Number of its ranges."""
        return len(self.link.ranges)

    def status(self) -> LinkStatus:
        """Find the state: that of the training, or how far its data are."""
        state, verb, progress = self.training(self._before())
        if self.stale() and state not in AT_WORK:
            state = State.STALE
        return LinkStatus(
            name=self.link.name,
            state=state,
            ranges=self.link.ranges,
            round=self.link.round,
            attempt=self.history.attempts.get(verb, 0),
            error=self.history.error(verb),
            stopped=str((self.receipt or {}).get("stopped", "")),
            **progress,
        )

    def training(self, before: tuple[State, str]) -> tuple[State, str, Row]:
        """Give state, verb and progress of the training; ``before``: state and verb as long as none began."""
        if self.receipt is not None:
            return State.TRAINED, "train", {"step": self.receipt["step"]}
        if before[0] not in (State.SPLIT, State.CONSOLIDATED):
            return *before, {}
        store = self.paths.store(self.link.name)
        progress = training_progress(self.metrics)
        quiet = age(store / "metrics.jsonl", self.expected.now)
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
        if not self.expected.data:
            return False
        made, wanted = self.receipt, self.link
        other = made is not None and (
            made["fingerprint"] != self.expected.fingerprint or tuple(made["ranges"]) != wanted.ranges
        )
        return other or any(files.stale() for files in self.data)

    def _before(self) -> tuple[State, str]:
        if self.link.name == OUTLIERS:
            return self.data[0].merged()
        ready = all(files.is_split for files in self.data)
        return (State.SPLIT, "split") if ready else (State.WAITING, "")


def range_status(files: RangeFiles, links: Sequence[LinkTrace], *, alone: bool) -> RangeStatus:
    """Find the state of a range: of its training, where that has begun, else how far its data are.

    links: those that train on it, one for each round. alone: it has a link of its own name, whose progress
    it shows.
    """
    state, verb, progress = _range_state(files, links)
    about = {"attempt": files.history.attempts.get(verb, 0), "error": files.history.error(verb), **progress}
    if not alone and verb == "train":
        about = {}
    stale = files.stale() or any(link.receipt is not None and link.stale() for link in links[-1:])
    return RangeStatus(
        name=files.name,
        state=State.STALE if stale and state not in AT_WORK else state,
        **{**files.split_columns(), **about},
    )


def _range_state(files: RangeFiles, links: Sequence[LinkTrace]) -> tuple[State, str, Row]:
    if links and links[-1].receipt is not None:
        return links[-1].training((State.SPLIT, "split"))
    if files.name == OUTLIERS:
        return links[0].training(files.merged()) if links else (*files.merged(), {})
    if not files.is_split:
        return files.data_state()
    current = next((link for link in links if link.receipt is None), None)
    return (State.SPLIT, "split", {}) if current is None else current.training((State.SPLIT, "split"))
