"""Jobs of each rule, and how many of them are done: what `crpipe status` calls stale is to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from crpipe.core.causes import is_present
from crpipe.core.paths import OUTLIERS
from crpipe.report.status.journal_tail import History
from crpipe.report.status.link_state import LinkTrace
from crpipe.report.status.range_state import Expected, RangeFiles

if TYPE_CHECKING:
    from crpipe.core.chain import ChainLink
    from crpipe.report.campaign_view import CampaignView


def count_jobs(view: CampaignView) -> dict[str, tuple[int, int]]:
    """Give the jobs of each rule, and how many of them have left an output of this configuration."""
    paths, names = view.paths, view.ranges
    expected = Expected(view.data, view.fingerprint, view.has_outliers, 0.0)
    found = {name: RangeFiles(paths, name, History(), expected) for name in (*names, OUTLIERS)}
    split = [found[name].is_split and not found[name].stale() for name in names]
    outputs = {
        "list": [is_present(paths.manifest(name)) for name in names],
        "stage": [done or is_present(paths.staged(name)) for name, done in zip(names, split, strict=True)],
        "split": split,
        "train": [_is_trained(view, link, found) for link in view.chain.links if link.ranges],
    }
    if view.has_outliers:
        merged = found[OUTLIERS]
        outputs["outliers_consolidated"] = [merged.shards is not None and not merged.stale()]
        outputs["train_outliers"] = [
            _is_trained(view, link, found) for link in view.chain.links if not link.ranges
        ]
    return {rule: (len(done), sum(done)) for rule, done in outputs.items()}


def _is_trained(view: CampaignView, link: ChainLink, found: dict[str, RangeFiles]) -> bool:
    data = tuple(found[name] for name in link.ranges or (OUTLIERS,))
    trace = LinkTrace(view.paths, link, data, History(), data[0].expected)
    return trace.receipt is not None and not trace.stale()
