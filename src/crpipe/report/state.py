"""The state of a campaign, of its ranges and links, read from its files alone: works while nothing runs."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from crpipe.campaign.claims import changed_keys, data_keys_are_unused, run_may_change
from crpipe.campaign.duplicates import ALLOW, find_twins
from crpipe.campaign.ledger import LedgerSums
from crpipe.campaign.raw_files import lease_folder
from crpipe.campaign.records import Receipt
from crpipe.core.causes import is_present
from crpipe.core.files import GIB, free_bytes, read_json_if_any, tree_bytes
from crpipe.core.journal import METRICS_BYTES, History, Row, attempts, histories, metric_rows, tail
from crpipe.core.lease import is_held
from crpipe.core.paths import BEST, CONSOLIDATED, LARGE_ROLES, OUTLIERS, TRAINED_ROLES
from crpipe.events.shard_records import ShardManifest
from crpipe.report.state_types import (
    AT_WORK,
    CampaignStatus,
    Disk,
    SourceToken,
    State,
    TrainingTotals,
    WorkState,
    add_ledgers,
    jobs_here,
    last_validation,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from crpipe.campaign.campaign import Campaign
    from crpipe.core.paths import Paths
    from crpipe.core.ranges import ChainLink

# The files of one range before training, and what follows from them; no running process is asked.


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
    def ledger(self) -> LedgerSums | None:
        """Where every event of the range went: the sums of its ledger."""
        return LedgerSums.read_if_any(self.paths.ledger(self.name))

    @cached_property
    def shards(self) -> ShardManifest | None:
        """The manifest of the shards that the chain trains on."""
        paths = self.paths
        merged = paths.outlier_manifest(CONSOLIDATED)
        return ShardManifest.read_if_any(merged if self.name == OUTLIERS else paths.shard_manifest(self.name))

    @property
    def is_split(self) -> bool:
        """Whether everything is there that training on the range needs."""
        outliers = not self.expected.has_outliers or is_present(self.paths.outlier_manifest(self.name))
        return bool(self.ledger and self.shards and outliers)

    def stale(self) -> bool:
        """Return whether the shards were made under another configuration."""
        data = self.expected.data
        return bool(data) and self.shards is not None and self.shards.data != data

    def merged(self) -> tuple[State, str]:
        """Return state and verb of the consolidation, for the outliers."""
        if self.shards is not None:
            return State.CONSOLIDATED, "consolidate"
        failed = "consolidate" in self.history.failed
        return (State.FAILED if failed else State.WAITING), "consolidate"

    def data_state(self) -> tuple[State, str, Row]:
        """Return state, verb and progress of a range that is not split yet."""
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
        """Return the columns that the split decides."""
        about: dict[str, Any] = {}
        if self.shards is not None:
            about["shards"] = sum(shard.role in TRAINED_ROLES for shard in self.shards.shards)
            if self.name == OUTLIERS:
                about["outliers"], _ = self.shards.totals()
        if self.ledger is not None:
            about["files"] = self.ledger.staged.files
            about["quarantined"] = self.ledger.quarantined
            if self.expected.has_outliers:
                about["outliers"] = sum(map(self.ledger.events.of, LARGE_ROLES))
        return about


def age(path: Path, now: float) -> float | None:
    """Return the seconds since a file was written; None when there is none."""
    try:
        return max(0.0, now - path.stat().st_mtime)
    except FileNotFoundError:
        return None


def _times(folder: Path, *, every: bool = False) -> list[float]:
    """Return the modification time of each finished copy below ``folder``, or of ``every`` file in it."""
    times = []
    for place, _, names in os.walk(folder):
        for name in names:
            if every or not (name.startswith(".") or name.endswith(".part") or name == LEASE):
                with contextlib.suppress(FileNotFoundError):
                    times.append(os.lstat(os.path.join(place, name)).st_mtime)  # noqa: PTH118 - os.walk gives strings
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
    paces = [
        (after["time"] - before["time"]) / (after["step"] - before["step"])
        for before, after in pairwise(rows)
        if after["step"] > before["step"]
    ]
    return median_of(paces)


def median_of(values: list[float]) -> float | None:
    """Return the median (the upper of two); importing `statistics` would add 10 ms to every start."""
    return sorted(values)[len(values) // 2] if values else None


# The files of one link of training, and the state that follows from them and from those of its ranges.


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
    def receipt(self) -> Receipt | None:
        """The receipt of the finished training."""
        return Receipt.read_if_any(self.paths.receipt(self.link.name))

    @cached_property
    def metrics(self) -> list[Row]:
        """The last rows that the training wrote."""
        return metric_rows(tail(self.paths.store(self.link.name) / "metrics.jsonl", METRICS_BYTES))

    @property
    def weight(self) -> int:
        """Number of its ranges."""
        return len(self.link.ranges)

    def status(self) -> WorkState:
        """Find the state: that of the training, or how far its data are."""
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
            **progress,
        )

    def training(self, before: tuple[State, str]) -> tuple[State, str, Row]:
        """Return state, verb and progress of a training; ``before``: state and verb as long as none began."""
        if self.receipt is not None:
            return State.TRAINED, "train", {"step": self.receipt.step}
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
            made.fingerprint != self.expected.fingerprint or made.ranges != wanted.ranges
        )
        return other or any(files.stale() for files in self.data)

    def _before(self) -> tuple[State, str]:
        if self.link.name == OUTLIERS:
            return self.data[0].merged()
        ready = all(files.is_split for files in self.data)
        return (State.SPLIT, "split") if ready else (State.WAITING, "")


def range_status(files: RangeFiles, links: Sequence[LinkTrace], *, alone: bool) -> WorkState:
    """Find the state of a range: of its training, where that has begun, else how far its data are.

    links: those that train on it, one for each round. alone: it has a link of its own name, whose progress
    it shows.
    """
    state, verb, progress = _range_state(files, links)
    about = {"attempt": files.history.attempts.get(verb, 0), "error": files.history.error(verb), **progress}
    if not alone and verb == "train":
        about = {}
    stale = files.stale() or any(link.receipt is not None and link.stale() for link in links[-1:])
    return WorkState(
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


PACE_RANGES = 10
_LAST_STEPS = (State.TRAINING, State.INTERRUPTED, State.FAILED)


def collect(campaign: Campaign, token: SourceToken | None = None) -> CampaignStatus:
    """Read the state of every range from manifests, ledgers, receipts, leases and journals.

    ``token``: what the caller knows of the source's token. Raise DataError when a file is damaged.
    """
    paths = campaign.paths
    expected = Expected(campaign.data, campaign.fingerprint, campaign.has_outliers, time.time())
    past = histories([*attempts(paths.data_journal()), *attempts(paths.train_journal())])
    histories_of = {**past, OUTLIERS: _merged(past.get(""), past.get(OUTLIERS))}
    names = (*campaign.ranges, *([OUTLIERS] if campaign.has_outliers else []))
    files = {name: RangeFiles(paths, name, histories_of.get(name, History()), expected) for name in names}
    chain = [
        LinkTrace(
            paths,
            link,
            tuple(files[name] for name in link.ranges or names[-1:]),
            histories_of.get(link.name, History()),
            expected,
        )
        for link in campaign.chain.links
    ]
    users = _users(chain)
    alone = campaign.chain.one_to_one
    statuses = [
        range_status(each, users.get(each.name, []), alone=alone or each.name == OUTLIERS)
        for each in files.values()
    ]
    skipped = [WorkState(name, State.SKIPPED) for name in campaign.config.ranges.skip]
    links = [link.status() for link in chain]
    pace = _pace(chain)
    budget = round(campaign.config.source.disk_budget_gib * GIB)
    return CampaignStatus(
        run=campaign.paths.run,
        fingerprint=campaign.fingerprint,
        data=campaign.data,
        item=campaign.item,
        time=expected.now,
        # Names of ranges are digits: the outliers come last.
        ranges=tuple(sorted([*statuses, *skipped], key=lambda item: item.name)),
        links=tuple(links),
        one_to_one=alone,
        ledgers=add_ledgers(row for name in campaign.ranges if (row := files[name].ledger) is not None),
        trained=_trained(chain),
        disk=Disk(tree_bytes(paths.raw("")), budget, free_bytes(paths.results)),
        pace_s=pace,
        eta_s=_eta(links, pace),
        changed=tuple(_changed_keys(campaign)),
        queue=jobs_here(),
        token=token,
        validation=last_validation(paths, campaign.chain.names),
        still_trained=_still_trained(paths, chain, campaign.config.ranges.skip),
        max_files=int(campaign.data_keys.get("source.max_files", 0)),
        duplicates=describe_twins(campaign),
    )


def describe_twins(campaign: Campaign) -> str:
    """Describe which raw files are in two ranges, and what to do unless that is allowed; empty: none."""
    twins = find_twins(campaign.paths, campaign.ranges)
    if twins is None:
        return ""
    allowed = campaign.config.ranges.duplicates == "allow"
    return twins.describe() + (f" ({ALLOW})" if allowed else f"; {twins.remedy()}")


def _still_trained(paths: Paths, chain: Sequence[LinkTrace], skipped: Sequence[str]) -> tuple[str, ...]:
    """Name the skipped ranges that the newest checkpoint of the chain, or one before it, was trained on."""
    newest = next((link.receipt for link in reversed(chain) if link.receipt is not None), None)
    if newest is None or not skipped:
        return ()
    files = paths.receipt(OUTLIERS).parent.glob("*.json")
    receipts = [Receipt.read_if_any(path) for path in files if not path.name.endswith(BEST)]
    made = {receipt.sha256: receipt for receipt in receipts if receipt is not None}
    seen: set[str] = set()
    while newest is not None:
        seen.update(newest.ranges)
        newest = made.pop(newest.parent, None)
    return tuple(sorted(seen.intersection(skipped)))


def _merged(whole: History | None, outliers: History | None) -> History:
    """Join the history of verbs without a range (consolidate) with that of training on the outliers."""
    joined = History()
    for past in (whole, outliers):
        if past is not None:
            joined.attempts |= past.attempts
            joined.open |= past.open
            joined.failed |= past.failed
    return joined


def _users(chain: Sequence[LinkTrace]) -> dict[str, list[LinkTrace]]:
    """Find the links that train on each range, in the order of the rounds."""
    users: dict[str, list[LinkTrace]] = {}
    for link in chain:
        for files in link.data:
            users.setdefault(files.name, []).append(link)
    return users


def _trained(chain: Sequence[LinkTrace]) -> TrainingTotals:
    """Take the chain's totals from its newest receipt, or from newer metrics of a link in training."""
    totals = [
        TrainingTotals(receipt.step, receipt.events, receipt.items, receipt.skipped)
        for link in chain
        if (receipt := link.receipt)
    ]
    totals += [
        TrainingTotals(*(link.metrics[-1][name] for name in ("step", "events", "items", "skipped")))
        for link in chain
        if link.receipt is None and link.metrics
    ]
    return max(totals, key=lambda total: int(total.step), default=TrainingTotals())


def _pace(chain: Sequence[LinkTrace]) -> float | None:
    """Estimate the wall time of one range: the median between the last receipts, else from steps so far.

    Unlike steps, receipts include the time in the queue, the wait for data, and repeated attempts.
    """
    bulk = [link for link in chain if link.weight]
    done = [link for link in bulk if link.receipt is not None]
    times = [link.paths.receipt(link.link.name).stat().st_mtime for link in done]
    pairs = zip(pairwise(times), done[1:], strict=True)
    gaps = [(after - before) / link.weight for (before, after), link in pairs if after > before]
    if gaps:
        return median_of(gaps[-PACE_RANGES:])
    for link in bulk:
        step_s = seconds_per_step(link.metrics)
        if step_s is not None:
            return step_s * float(link.metrics[-1]["range_steps"]) / link.weight
    return None


def _eta(links: Sequence[WorkState], pace: float | None) -> float | None:
    """Add up what is left of each link on ranges: a link takes as long as its ranges."""
    if pace is None:
        return None
    left = 0.0
    for link in links:
        if link.eta_s is not None and link.ranges:
            left += link.eta_s
        elif link.state is not State.TRAINED:
            begun = link.step is not None and link.steps and link.state in _LAST_STEPS
            share = 1 - (link.step or 0) / (link.steps or 1) if begun else 1.0
            left += pace * len(link.ranges) * share
    return left


def _changed_keys(campaign: Campaign) -> Iterator[str]:
    if campaign.known_layout is None:  # which is part of the recorded keys
        return
    seen = set()
    paths = campaign.paths
    for path, keys, may_change in (
        (paths.campaign(), campaign.data_keys, partial(data_keys_are_unused, paths)),
        (paths.run_config(), campaign.run_keys, partial(run_may_change, paths)),
    ):
        recorded = read_json_if_any(path)
        changed = [] if recorded is None else changed_keys(recorded, keys)
        for name in [] if recorded is None or may_change(changed) else changed:
            if name not in seen:
                seen.add(name)
                yield f"{name}: made with {recorded.get(name)!r}, now {keys.get(name)!r}"
