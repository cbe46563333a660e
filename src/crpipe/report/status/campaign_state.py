"""The state of a campaign, read from its files alone: works while nothing runs, the workflow included."""

from __future__ import annotations

import time
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

from crpipe.config.products import data_may_change, run_may_change
from crpipe.config.record import changed_keys
from crpipe.core.files import free_bytes, read_json_if_any, tree_bytes
from crpipe.core.paths import OUTLIERS
from crpipe.events.duplicates import ALLOW, find_twins
from crpipe.report.status.journal_tail import History, attempts, histories
from crpipe.report.status.link_state import LinkTrace, range_status
from crpipe.report.status.range_state import Expected, RangeFiles, median_of, read_row, seconds_per_step
from crpipe.report.status.slurm_queue import jobs_here
from crpipe.report.status.status_types import (
    CampaignStatus,
    Disk,
    LinkStatus,
    RangeStatus,
    SourceToken,
    State,
    TrainingTotals,
    add_ledgers,
)
from crpipe.report.status.validated import last_validation

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from crpipe.core.paths import Paths
    from crpipe.report.campaign_view import CampaignView

PACE_RANGES = 10
_LAST_STEPS = (State.TRAINING, State.INTERRUPTED, State.FAILED)


def collect(view: CampaignView, token: SourceToken | None = None) -> CampaignStatus:
    """Read the state of every range from manifests, ledgers, receipts, leases and journals.

    ``token``: what the caller knows of the source's token. Raise DataError when a file is damaged.
    """
    paths = view.paths
    expected = Expected(view.data, view.fingerprint, view.has_outliers, time.time())
    past = histories([*attempts(paths.data_journal()), *attempts(paths.train_journal())])
    histories_of = {**past, OUTLIERS: _merged(past.get(""), past.get(OUTLIERS))}
    names = (*view.ranges, *([OUTLIERS] if view.has_outliers else []))
    files = {name: RangeFiles(paths, name, histories_of.get(name, History()), expected) for name in names}
    chain = [
        LinkTrace(
            paths,
            link,
            tuple(files[name] for name in link.ranges or names[-1:]),
            histories_of.get(link.name, History()),
            expected,
        )
        for link in view.chain.links
    ]
    users = _users(chain)
    alone = view.chain.one_to_one
    statuses = [
        range_status(each, users.get(each.name, []), alone=alone or each.name == OUTLIERS)
        for each in files.values()
    ]
    skipped = [RangeStatus(name, State.SKIPPED) for name in view.skipped]
    links = [link.status() for link in chain]
    pace = _pace(chain)
    return CampaignStatus(
        run=view.run,
        fingerprint=view.fingerprint,
        data=view.data,
        item=view.item,
        time=expected.now,
        # Names of ranges are digits: the outliers come last.
        ranges=tuple(sorted([*statuses, *skipped], key=lambda item: item.name)),
        links=tuple(links),
        one_to_one=alone,
        ledgers=add_ledgers(row for name in view.ranges if (row := files[name].ledger) is not None),
        trained=_trained(chain),
        disk=Disk(tree_bytes(paths.raw("")), view.disk_budget, free_bytes(paths.results)),
        pace_s=pace,
        eta_s=_eta(links, pace),
        changed=tuple(_changed_keys(view)),
        queue=jobs_here(),
        token=token,
        validation=last_validation(paths, view.chain.names),
        still_trained=_still_trained(paths, chain, view.skipped),
        max_files=int(view.data_keys.get("source.max_files", 0)),
        duplicates=describe_twins(view),
    )


def describe_twins(view: CampaignView) -> str:
    """Say which raw files are in two ranges, and what to do unless that is allowed; empty: none."""
    found = find_twins(view.paths, view.ranges)
    if found is None:
        return ""
    return found.describe() + (f" ({ALLOW})" if view.duplicates else f"; {found.remedy()}")


def _still_trained(paths: Paths, chain: Sequence[LinkTrace], skipped: Sequence[str]) -> tuple[str, ...]:
    """Name the skipped ranges that the newest checkpoint of the chain, or one before it, was trained on."""
    newest = next((link.receipt for link in reversed(chain) if link.receipt is not None), None)
    if newest is None or not skipped:
        return ()
    rows = map(read_row, paths.receipt(OUTLIERS).parent.glob("*.json"))
    made = {row.get("sha256"): row for row in rows if row is not None}
    seen: set[str] = set()
    while newest is not None:
        seen.update(newest["ranges"])
        newest = made.pop(newest.get("parent"), None)
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
    rows = [link.receipt for link in chain if link.receipt is not None]
    rows += [link.metrics[-1] for link in chain if link.receipt is None and link.metrics]
    if not rows:
        return TrainingTotals()
    newest = max(rows, key=lambda row: int(row["step"]))
    return TrainingTotals(*(newest[name] for name in ("step", "events", "items", "skipped")))


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


def _eta(links: Sequence[LinkStatus], pace: float | None) -> float | None:
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


def _changed_keys(view: CampaignView) -> Iterator[str]:
    if view.layout is None:  # which is part of the recorded keys
        return
    seen = set()
    paths = view.paths
    for path, keys, may_change in (
        (paths.campaign(), view.data_keys, partial(data_may_change, paths)),
        (paths.run_config(), view.train_keys, partial(run_may_change, paths)),
    ):
        recorded = read_json_if_any(path)
        changed = [] if recorded is None else changed_keys(recorded, keys)
        for name in [] if recorded is None or may_change(changed) else changed:
            if name not in seen:
                seen.add(name)
                yield f"{name}: made with {recorded.get(name)!r}, now {keys.get(name)!r}"
