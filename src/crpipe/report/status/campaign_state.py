"""The state of a campaign, read from its files alone: it works while nothing runs and the head is dead."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import TYPE_CHECKING

from crpipe.core.files import GIB, digest, free_bytes, tree_bytes
from crpipe.core.paths import OUTLIERS
from crpipe.report.status.journal_tail import History, attempts, histories
from crpipe.report.status.range_state import Evidence, Expected, middle, optional, seconds_per_step
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

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from crpipe.config.loading import Config

PACE_RANGES = 10
_LAST_STEPS = (State.TRAINING, State.INTERRUPTED, State.FAILED)


def collect(config: Config, token: SourceToken | None = None) -> CampaignStatus:
    """Read the state of every range from manifests, ledgers, receipts, leases and journals.

    What is known of the source's ``token`` comes from the caller. Raise DataError when a file is damaged.
    """
    paths = config.paths()
    expected = Expected(digest(config.data_keys()), digest(config.train_keys()), time.time())
    past = histories([*attempts(paths.data_journal()), *attempts(paths.train_journal())])
    past[OUTLIERS] = _merged(past.pop("", None), past.get(OUTLIERS))
    names = [str(item) for item in config.all_ranges()]
    chain = [Evidence(paths, name, past.get(name, History()), expected) for name in names]
    outliers = Evidence(paths, OUTLIERS, past[OUTLIERS], expected)
    statuses = [evidence.status() for evidence in chain]
    skipped = [RangeStatus(name, State.SKIPPED) for name in config.ranges.skip]
    pace = _pace(chain)
    return CampaignStatus(
        run=config.run,
        fingerprint=expected.fingerprint,
        data=expected.data,
        time=expected.now,
        ranges=(*sorted([*statuses, *skipped], key=lambda item: item.name), outliers.status()),
        ledgers=add_ledgers(evidence.ledger for evidence in chain if evidence.ledger is not None),
        trained=_trained([*chain, outliers]),
        disk=Disk(
            tree_bytes(paths.raw("")), round(config.source.disk_budget_gib * GIB), free_bytes(paths.results)
        ),
        pace_s=pace,
        eta_s=_eta(statuses, pace),
        changed=tuple(_changed_keys(config)),
        queue=jobs_here(),
        token=token,
    )


def _merged(whole: History | None, outliers: History | None) -> History:
    """Join the history of verbs on the whole campaign (consolidate) with that of training on the outliers."""
    joined = History()
    for past in (whole, outliers):
        if past is not None:
            joined.attempts |= past.attempts
            joined.open |= past.open
            joined.failed |= past.failed
    return joined


def _trained(chain: Sequence[Evidence]) -> TrainingTotals:
    """Take the chain's totals from its newest receipt, or from metrics that have gone beyond it."""
    rows = [evidence.receipt for evidence in chain if evidence.receipt is not None]
    rows += [evidence.metrics[-1] for evidence in chain if evidence.receipt is None and evidence.metrics]
    if not rows:
        return TrainingTotals()
    newest = max(rows, key=lambda row: int(row["step"]))
    return TrainingTotals(*(newest[name] for name in ("step", "events", "muons", "skipped")))


def _pace(chain: Sequence[Evidence]) -> float | None:
    """Estimate the wall time of one range: median between the last receipts, else from the steps so far.

    Receipts count what steps do not: waiting for the queue, for data and for another attempt.
    """
    times = [item.paths.receipt(item.name).stat().st_mtime for item in chain if item.receipt is not None]
    gaps = [after - before for before, after in pairwise(times) if after > before]
    if gaps:
        return middle(gaps[-PACE_RANGES:])
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


def _changed_keys(config: Config) -> Iterator[str]:
    paths, told = config.paths(), set()
    for path, keys in (
        (paths.campaign(), config.data_keys()),
        (paths.run_config(), config.train_keys()),
    ):
        recorded = optional(path)
        for name in sorted({*recorded, *keys}) if recorded is not None else ():
            if recorded is not None and recorded.get(name) != keys.get(name) and name not in told:
                told.add(name)
                yield f"{name}: made with {recorded.get(name)!r}, now {keys.get(name)!r}"
