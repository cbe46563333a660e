"""The state of a campaign as plain data: states of ranges, sums of ledgers, disk; filled by `collect`."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crpipe.campaign.records import BestReceipt, Receipt
from crpipe.core.errors import QueueError
from crpipe.core.journal import METRICS_BYTES, metric_rows, tail
from crpipe.core.paths import DESTINATIONS, HELD_OUT, LARGE_ROLES, OUTLIERS, OUTLIERS_OF
from crpipe.report.series import VALIDATION

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from crpipe.campaign.ledger import Counts, LedgerSums
    from crpipe.core.paths import Paths


class State(StrEnum):
    """How far a range is."""

    WAITING = "waiting"
    LISTED = "listed"
    STAGING = "staging"
    STAGED = "staged"
    SPLITTING = "splitting"
    SPLIT = "split"
    CONSOLIDATED = "consolidated"  # the outliers of all ranges, merged; not a state of a single range
    TRAINING = "training"
    INTERRUPTED = "interrupted"  # no job works on it; what was done so far is kept and will be resumed
    TRAINED = "trained"
    FAILED = "failed"
    SKIPPED = "skipped"
    STALE = "stale"  # made under another configuration


AT_WORK = frozenset({State.STAGING, State.SPLITTING, State.TRAINING})
QUIET_S = 300.0  # a job that wrote nothing for this long is shown as quiet
_SHOWN_IF_ANY = frozenset({"test", *(OUTLIERS_OF[part] for part in HELD_OUT)})
_COPIED = frozenset({State.STAGED, State.SPLITTING})


@dataclass(frozen=True, slots=True)
class WorkState:
    """How far a range or a link of training is; ``None`` where no file shows it yet.

    ranges, round: of a link; a range, and the link on the outliers, has no ranges.
    files: raw copies that exist, or existed when the range was split. shards: those that training reads.
    outliers: events above the threshold, of all parts. All four are of a range.
    step: within the range or link while it is in training; of the whole chain once it is trained.
    quiet_s: seconds since the running job last wrote anything.
    stopped: why a link ended early; empty if it did not.
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


@dataclass(frozen=True, slots=True)
class Sums:
    """Events or items by destination."""

    listed: int = 0
    train: int = 0
    validation: int = 0
    test: int = 0
    outliers: int = 0
    validation_outliers: int = 0
    test_outliers: int = 0
    rejected: int = 0

    def balanced(self) -> bool:
        """Return whether everything listed has exactly one destination."""
        found: int = sum(getattr(self, name) for name in DESTINATIONS)
        return self.listed == found

    def shown(self) -> tuple[str, ...]:
        """Name the destinations that a person is shown: test and held-out outliers where there are any."""
        return tuple(name for name in DESTINATIONS if name not in _SHOWN_IF_ANY or getattr(self, name))

    def large(self) -> int:
        """Count the events above the threshold, or their items, of all parts."""
        return sum(getattr(self, name) for name in LARGE_ROLES)


@dataclass(frozen=True, slots=True)
class Ledgers:
    """All ledgers taken together; ``unbalanced`` names the ranges whose sums do not add up.

    weights: sums of the events' weights, listed and by destination; empty where events have none.
    size_only: files of which nothing but the size was verified. server_only: files that were verified only
        against the server which sent them. repeated: events that occur twice in a range.
    empty: events without items. doubtful_groups: why the group columns look wrong; mostly empty.
    untrained: ranges without any training event up to the threshold.
    """

    count: int = 0
    events: Sums = field(default_factory=Sums)
    items: Sums = field(default_factory=Sums)
    quarantined: int = 0
    size_only: int = 0
    server_only: int = 0
    repeated: int = 0
    empty: int = 0
    unbalanced: tuple[str, ...] = ()
    weights: Mapping[str, float] = field(default_factory=dict)
    doubtful_groups: str = ""
    untrained: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Disk:
    """Raw copies against their budget, and free space on the disk of the results; in bytes."""

    raw: int
    budget: int
    free: int


@dataclass(frozen=True, slots=True)
class SourceToken:
    """The token with which jobs read the source: where it was found and when it ends, never its text.

    ends: seconds since the epoch, None when the token names no end; problem: why it could not be read.
    """

    place: str = ""
    ends: float | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class TrainingTotals:
    """Totals of the chain so far."""

    step: int = 0
    events: int = 0
    items: int = 0
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class CampaignStatus:
    """Everything that ``crpipe status`` shows.

    item: plural noun for what an event contains.
    links: the chain in order; one_to_one: whether each range has one link of its own name.
    pace_s: wall time of one range of the chain; eta_s: time until the last range is trained.
    changed: keys whose value differs from the one with which results or run were made.
    queue: the jobs in Slurm's queue, if there is one.
    token: None when the source needs none, or when none is found.
    validation: of the newest link that keeps a best checkpoint.
    still_trained: skipped ranges that the newest checkpoint was trained on.
    max_files: files that are taken of each range; 0: all.
    duplicates: raw files that are in two ranges, in words; empty: none.
    """

    run: str
    fingerprint: str
    data: str
    item: str
    time: float
    ranges: tuple[WorkState, ...]
    links: tuple[WorkState, ...]
    one_to_one: bool
    ledgers: Ledgers
    trained: TrainingTotals
    disk: Disk
    pace_s: float | None
    eta_s: float | None
    changed: tuple[str, ...]
    queue: tuple[QueuedJob, ...] = ()
    token: SourceToken | None = None
    validation: ValidationStatus | None = None
    still_trained: tuple[str, ...] = ()
    max_files: int = 0
    duplicates: str = ""

    def chain(self) -> tuple[WorkState, ...]:
        """The ranges that are trained on, in order: without the skipped ones and without the outliers."""
        return tuple(
            item for item in self.ranges if item.name != OUTLIERS and item.state is not State.SKIPPED
        )

    def bulk(self) -> tuple[WorkState, ...]:
        """The links that train on ranges, in order: all but the one on the outliers."""
        return tuple(link for link in self.links if link.ranges)

    def rows(self) -> tuple[WorkState, ...]:
        """All ranges and links."""
        return (*self.ranges, *self.links)

    def noun(self) -> str:
        """What progress is counted in: ranges, or links where these differ."""
        return "range" if self.one_to_one else "link"

    def finished(self) -> int:
        """Count the links on ranges that are trained."""
        return sum(link.state is State.TRAINED for link in self.bulk())

    def trained_of(self) -> str:
        """Write how many ranges, or links, are trained: 3 of 12 links."""
        total = len(self.bulk())
        return f"{self.finished():,} of {total:,} {self.noun()}{'' if total == 1 else 's'}"

    def copies_all(self) -> bool:
        """Return whether every range of the chain was copied, so that the source is not read again."""
        return all(item.shards is not None or item.state in _COPIED for item in self.chain())

    def states(self) -> Counter[State]:
        """Count the ranges in each state, without the outliers."""
        return Counter(item.state for item in self.ranges if item.name != OUTLIERS)


def add_ledgers(ledgers: Iterable[LedgerSums]) -> Ledgers:
    """Sum the ledgers of all ranges and check each sum again, whatever the ledger says of itself."""
    rows = list(ledgers)
    unbalanced = [str(row.range) for row in rows if not (row.balanced and row.is_balanced())]
    return Ledgers(
        count=len(rows),
        events=_total([row.events for row in rows]),
        items=_total([row.items for row in rows]),
        quarantined=sum(row.quarantined for row in rows),
        size_only=sum(row.staged.size_only for row in rows),
        server_only=sum(row.staged.server_only or 0 for row in rows),
        empty=sum(row.empty for row in rows),
        repeated=sum(row.repeated["events"] for row in rows if row.repeated),
        unbalanced=tuple(unbalanced),
        weights=_weights([row.weights for row in rows if row.weights is not None]),
        doubtful_groups=next((row.doubtful_groups for row in rows if row.doubtful_groups), ""),
        untrained=tuple(str(row.range) for row in rows if not row.events.train),
    )


def _weights(parts: list[Mapping[str, float]]) -> dict[str, float]:
    return {name: math.fsum(part[name] for part in parts) for name in ("listed", *DESTINATIONS) if parts}


def _total(parts: Sequence[Counts]) -> Sums:
    return Sums(**{name: sum(part.of(name) for part in parts) for name in ("listed", *DESTINATIONS)})


# The last validation of the newest link that has one, for `crpipe status`.


_SHOWN = 6  # numbers of a validation that are shown


@dataclass(frozen=True, slots=True)
class ValidationStatus:
    """The last validation of one link, and its best value of what train.keep_best names.

    numbers, step: what was measured last, finite values only; None where the file of metrics is gone.
    metric, best, best_step: empty and None without train.keep_best.
    value: the last one of ``metric``. stopped: why the link ended early; empty where it did not.
    """

    link: str
    step: int | None = None
    numbers: Mapping[str, float] = field(default_factory=dict)
    metric: str = ""
    value: float | None = None
    best: float | None = None
    best_step: int | None = None
    stopped: str = ""

    def line(self) -> str:
        """Describe it in one line."""
        ended = f"; ended early: {self.stopped}" if self.stopped else ""
        if self.best is None or self.best_step is None:
            first = sorted(self.numbers.items(), key=lambda item: _rank(item[0]))
            shown = [f"{name} {value:.5g}" for name, value in first[:_SHOWN]]
            more = ", …" if len(self.numbers) > _SHOWN else ""
            return f"{', '.join(shown)}{more} at step {self.step or 0:,} ({self.link}){ended}"
        now = "" if self.value is None else f"{self.value:.5g} at step {self.step or 0:,}, "
        return f"{self.metric} {now}best {self.best:.5g} at step {self.best_step:,} ({self.link}){ended}"


def _rank(name: str) -> int:
    """Put the workload's own numbers first, then losses, then the other metrics of phases."""
    return 0 if "/" not in name else 1 if name.endswith("/loss") else 2


def last_validation(paths: Paths, links: Sequence[str]) -> ValidationStatus | None:
    """Find the newest link with a validation or a best checkpoint; None where there is none."""
    for link in reversed(links):
        best = BestReceipt.read_if_any(paths.best_receipt(link))
        metric = best.metric if best else ""
        last, numbers = _last_row(paths, link, metric)
        if best or numbers:
            receipt = Receipt.read_if_any(paths.receipt(link))
            return ValidationStatus(
                link,
                last.get("step"),
                numbers,
                metric,
                numbers.get(metric),
                best.value if best else None,
                best.step if best else None,
                (receipt.stopped if receipt else None) or "",
            )
    return None


def _last_row(paths: Paths, link: str, metric: str) -> tuple[dict[str, Any], dict[str, float]]:
    """Read the last validation of a link, with ``metric`` in it where that is given."""
    wanted = VALIDATION + metric
    rows = metric_rows(tail(paths.store(link) / "metrics.jsonl", METRICS_BYTES, VALIDATION.encode()))
    for row in reversed(rows):
        names = [name for name in row if name.startswith(VALIDATION)]
        if wanted in names or (names and not metric):
            return row, {name.removeprefix(VALIDATION): row[name] for name in names}
    return {}, {}


# The jobs of this directory in Slurm's queue, where there is a Slurm.


LOGS = Path("logs/slurm")  # slurm-logdir of the profile: where it exists, jobs were submitted from here
PREFIX = "crpipe_"  # slurm-jobname-prefix of the profile
_FORMAT = "%i|%T|%N|%r|%j|%Z|%k"  # the comment last: it may hold anything
_FIELDS = _FORMAT.count("|") + 1
_PATIENCE_S = 3.0


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """One job in Slurm's queue; where: its node once it runs, before that the reason why it waits."""

    number: str
    state: str
    where: str
    work: str


def jobs_here() -> tuple[QueuedJob, ...]:
    """Ask Slurm for the jobs submitted from the working directory; none if it does not answer in time."""
    try:
        return ask_slurm(_PATIENCE_S) if has_slurm() else ()
    except QueueError:
        return ()


def has_slurm() -> bool:
    """Return whether jobs of this directory can be in a Slurm's queue."""
    return LOGS.is_dir() and shutil.which("squeue") is not None


def ask_slurm(patience_s: float) -> tuple[QueuedJob, ...]:
    """Ask squeue for the jobs submitted from the working directory; raise QueueError without an answer."""
    command = [shutil.which("squeue") or "squeue", "-h", "--me", "-o", _FORMAT]
    try:
        done = subprocess.run(  # noqa: S603 - a fixed command
            command, capture_output=True, text=True, timeout=patience_s, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise QueueError(f"squeue does not answer within {patience_s:g} s") from error
    if done.returncode:
        raise QueueError(f"squeue failed: {' '.join(done.stderr.split())}")
    return read_queue(done.stdout, os.path.realpath("."))


def read_queue(answer: str, folder: str) -> tuple[QueuedJob, ...]:
    """Read squeue's answer; keep the jobs that a crpipe workflow submitted from ``folder``."""
    rows = [line.split("|", _FIELDS - 1) for line in answer.splitlines()]
    jobs = []
    for row in rows:
        if len(row) != _FIELDS:  # a comment of several lines
            continue
        number, state, node, reason, name, place, comment = row
        if name.startswith(PREFIX) and os.path.realpath(place) == folder:
            jobs.append(QueuedJob(number, state.lower(), node or reason, _work(comment)))
    return tuple(jobs)


def _work(comment: str) -> str:
    """Read the rule and its wildcards from the comment that Snakemake gives to its jobs."""
    rule, _, wildcards = comment.removeprefix("rule_").partition("_wildcards_")
    return f"{rule} {wildcards}".strip()
