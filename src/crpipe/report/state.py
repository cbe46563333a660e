"""The state of a campaign, read once from its files; text, JSON, page and tables are made from it.

Works while jobs run, while nothing runs, and after the head has died.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from crpipe.campaign.claims import changed_keys, data_claim, run_claim
from crpipe.campaign.duplicates import ALLOW, find_twins
from crpipe.campaign.ledger import Counts, LedgerSums
from crpipe.campaign.records import BestReceipt, Receipt, SkippedRange
from crpipe.config.plugins import called_now
from crpipe.core.files import free_bytes, read_json_if_any, tree_bytes
from crpipe.core.journal import METRICS_BYTES, History, attempts, histories, metric_rows, tail
from crpipe.core.paths import BEST, DESTINATIONS, HELD_OUT, OUTLIERS, OUTLIERS_OF, Paths
from crpipe.report.queues import QueuedJob, jobs_here
from crpipe.report.series import VALIDATION
from crpipe.report.work_state import (
    NOT_IN_JSON,
    LinkTrace,
    RangeFiles,
    State,
    WorkState,
    median_of,
    range_state,
    seconds_per_step,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from crpipe.campaign.campaign import Campaign

PACE_RANGES = 10
_LAST_STEPS = (State.TRAINING, State.INTERRUPTED, State.FAILED)
_COPIED = (State.STAGED, State.CONVERTING, State.CONVERTED, State.SPLITTING)
_SHOWN_IF_ANY = frozenset({"test", *(OUTLIERS_OF[part] for part in HELD_OUT)})
_SHOWN = 6  # numbers of a validation that are shown


@dataclass(frozen=True, slots=True)
class Ledgers:
    """All ledgers taken together; ``unbalanced`` names the ranges whose sums do not add up.

    weights: sums of the events' weights, listed and by destination; empty where events have none.
    size_only: files of which nothing but the size was verified. server_only: files that were verified only
        against the server which sent them. repeated: events that occur twice in a range.
    empty: events without items. doubtful_groups: why the group columns look wrong; mostly empty.
    untrained: ranges without any training event up to the threshold.
    """

    count: int
    events: Counts
    items: Counts
    quarantined: int
    size_only: int
    server_only: int
    repeated: int
    empty: int
    unbalanced: tuple[str, ...]
    weights: Mapping[str, float]
    doubtful_groups: str
    untrained: tuple[str, ...]

    @classmethod
    def of(cls, ledgers: Iterable[LedgerSums]) -> Ledgers:
        """Sum the ledgers of all ranges and check each sum again, whatever the ledger says of itself."""
        rows = list(ledgers)
        weights = [row.weights for row in rows if row.weights is not None]
        return cls(
            count=len(rows),
            events=_total([row.events for row in rows]),
            items=_total([row.items for row in rows]),
            quarantined=sum(row.quarantined for row in rows),
            size_only=sum(row.staged.size_only for row in rows),
            server_only=sum(row.staged.server_only or 0 for row in rows),
            empty=sum(row.empty for row in rows),
            repeated=sum(row.repeated["events"] for row in rows if row.repeated),
            unbalanced=tuple(str(row.range) for row in rows if not (row.balanced and row.is_balanced())),
            weights={
                name: math.fsum(part[name] for part in weights)
                for name in ("listed", *DESTINATIONS)
                if weights
            },
            doubtful_groups=next((row.doubtful_groups for row in rows if row.doubtful_groups), ""),
            untrained=tuple(str(row.range) for row in rows if not row.events.train),
        )

    def balanced(self) -> bool:
        """Return whether everything listed has exactly one destination, in each ledger and in all."""
        return not self.unbalanced and self.events.is_balanced() and self.items.is_balanced()

    def balance(self) -> str:
        """Write how many ledgers balance."""
        return f"{self.count - len(self.unbalanced)} of {self.count}"


def _total(parts: Sequence[Counts]) -> Counts:
    sums: dict[str, Any] = {name: sum(part.of(name) for part in parts) for name in ("listed", *DESTINATIONS)}
    return Counts(**sums)


def destinations_of(counts: Counts) -> tuple[str, ...]:
    """Name the destinations that a person is shown: test and held-out outliers where there are any."""
    return tuple(name for name in DESTINATIONS if name not in _SHOWN_IF_ANY or counts.of(name))


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

    @classmethod
    def of(cls, chain: Sequence[LinkTrace]) -> TrainingTotals:
        """Take the totals of the newest receipt, or of newer metrics of a link in training."""
        names = ("step", "events", "items", "skipped")
        totals = [cls(*(getattr(link.receipt, name) for name in names)) for link in chain if link.receipt]
        begun = [link for link in chain if link.receipt is None and link.metrics and not link.replaced]
        totals += [cls(*(link.metrics[-1][name] for name in names)) for link in begun]
        return max(totals, key=lambda total: int(total.step), default=cls())


@dataclass(frozen=True, slots=True)
class LastValidation:
    """The last validation of one link, and its best value of what train.monitor names.

    numbers, step: what was measured last, finite values only; None where the file of metrics is gone.
    metric, best, best_step: empty and None without train.monitor.
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

    @classmethod
    def of(cls, paths: Paths, links: Sequence[str]) -> LastValidation | None:
        """Find the newest link with a validation or a best checkpoint; None where there is none."""
        for link in reversed(links):
            best = BestReceipt.read_if_any(paths.best_receipt(link))
            metric = best.metric if best else ""
            step, numbers = _last_row(paths, link, metric)
            if best or numbers:
                receipt = Receipt.read_if_any(paths.receipt(link))
                return cls(
                    link=link,
                    step=step,
                    numbers=numbers,
                    metric=metric,
                    value=numbers.get(metric),
                    best=best.value if best else None,
                    best_step=best.step if best else None,
                    stopped=(receipt.stopped if receipt else None) or "",
                )
        return None

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
    """Rank the workload's own numbers first, then losses, then the other metrics of phases."""
    return 0 if "/" not in name else 1 if name.endswith("/loss") else 2


def _last_row(paths: Paths, link: str, metric: str) -> tuple[int | None, dict[str, float]]:
    """Read step and numbers of the last validation of a link, with ``metric`` in it where that is given."""
    rows = metric_rows(tail(paths.store(link) / "metrics.jsonl", METRICS_BYTES, VALIDATION.encode()))
    for row in reversed(rows):
        names = [name for name in row if name.startswith(VALIDATION)]
        if VALIDATION + metric in names or (names and not metric):
            return row.get("step"), {name.removeprefix(VALIDATION): row[name] for name in names}
    return None, {}


@dataclass(frozen=True, slots=True)
class CampaignState:
    """Everything that ``crpipe status`` shows, and the campaign that it is of.

    item: plural noun for what an event contains.
    links: the chain in order; one_to_one: whether each range has one link of its own name.
    pace_s: wall time of one range of the chain; eta_s: time until the last range is trained.
    changed: keys whose value differs from the one with which results or run were made.
    queue: the jobs in Slurm's queue, if there is one.
    token: None when the source needs none, or when none is found.
    validation: of the newest link that keeps a best checkpoint.
    still_trained: skipped ranges that the newest checkpoint was trained on.
    given_up: ranges that stayed bad and were left out (ranges.on_failure: skip), with what is missing.
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
    queue: tuple[QueuedJob, ...]
    token: SourceToken | None
    validation: LastValidation | None
    still_trained: tuple[str, ...]
    given_up: tuple[SkippedRange, ...]
    max_files: int
    duplicates: str
    campaign: Campaign = field(metadata=NOT_IN_JSON)

    @classmethod
    def read(cls, campaign: Campaign, token: SourceToken | None = None) -> CampaignState:
        """Read manifests, ledgers, receipts, leases and journals of all ranges and links.

        ``token``: what the caller knows of the source's token. Raise DataError when a file is damaged.
        """
        paths, given_up = campaign.paths, {each.range: each for each in campaign.given_up}
        skipped = (*campaign.config.ranges.skip, *given_up)
        now, alone = time.time(), campaign.chain.one_to_one
        files, chain = files_of(campaign, now)
        users = _users(chain)
        ranges = [
            range_state(each, users.get(each.name, []), alone=alone or each.name == OUTLIERS)
            for each in files.values()
        ]
        ranges += [
            WorkState(name, State.SKIPPED, ledger=LedgerSums.read_if_any(paths.ledger(name)))
            for name in campaign.config.ranges.skip
        ]
        ranges += [
            WorkState(name, State.SKIPPED, attempt=each.attempts, error=each.cause)
            for name, each in given_up.items()
        ]
        links = tuple(link.work_state() for link in chain)
        range_s = _seconds_per_range(chain)
        taken = tree_bytes(paths.raw(""))
        return cls(
            run=paths.run,
            fingerprint=campaign.fingerprint,
            data=campaign.data,
            item=campaign.item,
            time=now,
            # Names of ranges are digits: the outliers come last.
            ranges=tuple(sorted(ranges, key=lambda item: item.name)),
            links=links,
            one_to_one=alone,
            ledgers=Ledgers.of(row for name in campaign.ranges if (row := files[name].ledger) is not None),
            trained=TrainingTotals.of(chain),
            disk=Disk(taken, campaign.raw_budget(taken), free_bytes(paths.results)),
            pace_s=range_s,
            eta_s=_eta(links, range_s),
            changed=tuple(changed_values(campaign)),
            queue=jobs_here(),
            token=token,
            validation=LastValidation.of(paths, campaign.chain.names),
            still_trained=_still_trained(paths, campaign.chain.names, skipped),
            given_up=(*given_up.values(),),
            max_files=int(campaign.data_keys.get("source.max_files", 0)),
            duplicates=_describe_twins(campaign),
            campaign=campaign,
        )

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

    def receipt(self) -> Receipt | None:
        """The receipt of the chain's last finished link."""
        return next((link.receipt for link in reversed(self.links) if link.receipt), None)

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


def files_of(campaign: Campaign, now: float = 0.0) -> tuple[dict[str, RangeFiles], list[LinkTrace]]:
    """Return the files of each range, and of the outliers, and the traces of the chain's links.

    now: what ages are counted from.
    """
    paths = campaign.paths
    rows = [*attempts(paths.data_journal()), *attempts(paths.train_journal())]
    # A verb without a range (consolidate) works on the outliers.
    past = histories(row | {"range": OUTLIERS} if row["range"] == "" else row for row in rows)
    names = (*campaign.ranges, *([OUTLIERS] if campaign.has_outliers else []))
    files = {name: RangeFiles(campaign, name, past.get(name, History()), now) for name in names}
    receipts, chain = campaign.receipts(), []
    replaced = campaign.replaced(receipts)
    for link in campaign.chain.links:
        data = tuple(files[name] for name in link.ranges or names[-1:])
        receipt, is_replaced = receipts.get(link.name), link.name in replaced
        about = (past.get(link.name, History()), now, None if is_replaced else receipt, is_replaced)
        chain.append(LinkTrace(campaign, link, data, *about))
    return files, chain


def _users(chain: Sequence[LinkTrace]) -> dict[str, list[LinkTrace]]:
    """Find the links that train on each range, in the order of the rounds."""
    users: dict[str, list[LinkTrace]] = {}
    for link in chain:
        for files in link.data:
            users.setdefault(files.name, []).append(link)
    return users


def _describe_twins(campaign: Campaign) -> str:
    """Describe which raw files are in two ranges, and what to do unless that is allowed; empty: none."""
    twins = find_twins(campaign.paths, campaign.ranges)
    if twins is None:
        return ""
    allowed = campaign.config.ranges.duplicates == "allow"
    return twins.describe() + (f" ({ALLOW})" if allowed else f"; {twins.remedy()}")


def _still_trained(paths: Paths, links: Sequence[str], skipped: Sequence[str]) -> tuple[str, ...]:
    """Name the skipped ranges that the newest checkpoint of the chain, or one before it, was trained on."""
    files = paths.receipt(OUTLIERS).parent.glob("*.json") if skipped else ()
    receipts = [Receipt.read_if_any(path) for path in files if not path.name.endswith(BEST)]
    parents = {receipt.sha256: receipt for receipt in receipts if receipt is not None}
    by_link = {receipt.range: receipt for receipt in parents.values()}
    newest = next((by_link[name] for name in reversed(links) if name in by_link), None)
    seen: set[str] = set()
    while newest is not None:
        seen.update(newest.ranges)
        newest = parents.pop(newest.parent, None)
    return tuple(sorted(seen.intersection(skipped)))


def _seconds_per_range(chain: Sequence[LinkTrace]) -> float | None:
    """Estimate the wall time of one range: the median between the last receipts, else from steps so far.

    Unlike steps, receipts include the time in the queue, the wait for data, and repeated attempts.
    """
    bulk = [link for link in chain if link.weight]
    done = [link for link in bulk if link.receipt is not None]
    times = [link.campaign.paths.receipt(link.link.name).stat().st_mtime for link in done]
    pairs = zip(pairwise(times), done[1:], strict=True)
    gaps = [(after - before) / link.weight for (before, after), link in pairs if after > before]
    if gaps:
        return median_of(gaps[-PACE_RANGES:])
    for link in bulk:
        step_s = seconds_per_step(link.metrics)
        if step_s is not None:
            return step_s * float(link.metrics[-1]["range_steps"]) / link.weight
    return None


def _eta(links: Sequence[WorkState], range_s: float | None) -> float | None:
    """Add up what is left of each link on ranges: a link takes as long as its ranges."""
    if range_s is None:
        return None
    left = 0.0
    for link in links:
        if link.eta_s is not None and link.ranges:
            left += link.eta_s
        elif link.state is not State.TRAINED:
            begun = link.step is not None and link.steps and link.state in _LAST_STEPS
            share = 1 - (link.step or 0) / (link.steps or 1) if begun else 1.0
            left += range_s * len(link.ranges) * share
    return left


def changed_values(campaign: Campaign) -> Iterator[str]:
    """Describe each key whose value differs from the one with which results or run were made."""
    if campaign.known_layout is None:  # which is part of the recorded keys
        return
    seen = set()
    for path, keys, _, may_change in (data_claim(campaign), run_claim(campaign)):
        recorded = read_json_if_any(path)
        changed = [] if recorded is None else changed_keys(recorded, keys)
        for name in [] if recorded is None or may_change(changed) else changed:
            if name not in seen:
                seen.add(name)
                yield f"{called_now(name)}: made with {recorded.get(name)!r}, now {keys.get(name)!r}"
