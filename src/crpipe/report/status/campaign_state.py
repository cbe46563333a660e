"""The state of a campaign, read from its files alone: works while nothing runs, the workflow included."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import TYPE_CHECKING

from crpipe.core.files import free_bytes, read_json_if_any, tree_bytes
from crpipe.core.paths import OUTLIERS
from crpipe.report.status.journal_tail import History, attempts, histories
from crpipe.report.status.range_state import Expected, RangeFiles, median_of, seconds_per_step
from crpipe.report.status.slurm_queue import jobs_here
from crpipe.report.status.status_types import (
    CampaignStatus,
    Disk,
    RangeStatus,
    SourceToken,
    State,
    TrainingTotals,
    add_ledgers,
)
from crpipe.report.status.validated import last_validation

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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
    chain = [RangeFiles(paths, name, past.get(name, History()), expected) for name in view.ranges]
    last = []
    if view.has_outliers:
        history = _merged(past.get(""), past.get(OUTLIERS))
        last = [RangeFiles(paths, OUTLIERS, history, expected)]
    statuses = [files.status() for files in chain]
    skipped = [RangeStatus(name, State.SKIPPED) for name in view.skipped]
    pace = _pace(chain)
    return CampaignStatus(
        run=view.run,
        fingerprint=view.fingerprint,
        data=view.data,
        item=view.item,
        time=expected.now,
        ranges=(
            *sorted([*statuses, *skipped], key=lambda item: item.name),
            *(files.status() for files in last),
        ),
        ledgers=add_ledgers(files.ledger for files in chain if files.ledger is not None),
        trained=_trained([*chain, *last]),
        disk=Disk(tree_bytes(paths.raw("")), view.disk_budget, free_bytes(paths.results)),
        pace_s=pace,
        eta_s=_eta(statuses, pace),
        changed=tuple(_changed_keys(view)),
        queue=jobs_here(),
        token=token,
        validation=last_validation(paths, view.links()),
    )


def _merged(whole: History | None, outliers: History | None) -> History:
    """Join the history of verbs without a range (consolidate) with that of training on the outliers."""
    joined = History()
    for past in (whole, outliers):
        if past is not None:
            joined.attempts |= past.attempts
            joined.open |= past.open
            joined.failed |= past.failed
    return joined


def _trained(chain: Sequence[RangeFiles]) -> TrainingTotals:
    """Take the chain's totals from its newest receipt, or from newer metrics of a link in training."""
    rows = [link.receipt for link in chain if link.receipt is not None]
    rows += [link.metrics[-1] for link in chain if link.receipt is None and link.metrics]
    if not rows:
        return TrainingTotals()
    newest = max(rows, key=lambda row: int(row["step"]))
    return TrainingTotals(*(newest[name] for name in ("step", "events", "items", "skipped")))


def _pace(chain: Sequence[RangeFiles]) -> float | None:
    """Estimate the wall time of one range: the median between the last receipts, else from steps so far.

    Unlike steps, receipts include the time in the queue, the wait for data, and repeated attempts.
    """
    times = [item.paths.receipt(item.name).stat().st_mtime for item in chain if item.receipt is not None]
    gaps = [after - before for before, after in pairwise(times) if after > before]
    if gaps:
        return median_of(gaps[-PACE_RANGES:])
    for item in chain:
        step_s = seconds_per_step(item.metrics)
        if step_s is not None:
            return step_s * float(item.metrics[-1]["range_steps"])
    return None


def _eta(chain: Sequence[RangeStatus], pace: float | None) -> float | None:
    if pace is None:
        return None
    left = 0.0
    for item in chain:
        if item.eta_s is not None:
            left += item.eta_s
        elif item.state is not State.TRAINED:
            begun = item.step is not None and item.steps and item.state in _LAST_STEPS
            left += pace * (1 - (item.step or 0) / (item.steps or 1)) if begun else pace
    return left


def _changed_keys(view: CampaignView) -> Iterator[str]:
    if view.layout is None:  # which is part of the recorded keys
        return
    seen = set()
    for path, keys in (
        (view.paths.campaign(), view.data_keys),
        (view.paths.run_config(), view.train_keys),
    ):
        recorded = read_json_if_any(path)
        for name in sorted({*recorded, *keys}) if recorded is not None else ():
            if recorded.get(name) != keys.get(name) and name not in seen:
                seen.add(name)
                yield f"{name}: made with {recorded.get(name)!r}, now {keys.get(name)!r}"
