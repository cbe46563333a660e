"""Who waits for whom, and who is first: staging goes at most ``source.look_ahead`` ranges beyond training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from crpipe.core.causes import is_present
from crpipe.workflow.chain import reference_ranges

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from crpipe.cli.jobs.campaign import Campaign

TRAINING_TARGETS = frozenset(
    {
        "all",
        "train",
        "train_all",
        "train_outliers",
        "evaluate",
        "evaluation",
        "figures",
        "gallery",
        "progress",
    }
)


def trains(targets: Collection[str], runs: Path) -> bool:
    """Return whether training is among ``targets``: rules, or files (of training: below ``runs``)."""
    return any(name in TRAINING_TARGETS or Path(name).is_relative_to(runs) for name in targets)


def priority(ranges: Sequence[str], name: str) -> int:
    """Rank the jobs of a range: the first one gets the largest number, one that is left out gets 0."""
    return len(ranges) - ranges.index(name) if name in ranges else 0


def training_priority(ranges: Sequence[str]) -> int:
    """Rank the jobs that everything after them waits for: above all jobs of ranges together.

    A solver adds the priorities up: several small jobs must not outweigh one.
    """
    return 3 * len(ranges) * (len(ranges) + 1)


def staging_turn(campaign: Campaign, name: str, *, training: bool) -> list[Path]:
    """List the files that range ``name`` waits for before it is staged.

    The ledger of the range look_ahead before it: raw copies of look_ahead ranges exist at most. And, where
    training is asked for, the receipt of the link before the first one whose last range is at most look_ahead
    before it. Both belong to earlier ranges, so that no two ranges wait for each other.
    What was staged before waits for nothing: a change of target or look_ahead must not copy it again.
    """
    paths, names = campaign.paths, campaign.ranges
    if is_present(paths.staged(name)) or is_present(paths.ledger(name)):
        return []
    # The threshold needs its reference ranges before anything is split: they cannot wait for a split one.
    reference = reference_ranges(campaign)
    if name in reference:
        return []
    ahead = campaign.config.source.look_ahead
    reach = names.index(name) - ahead
    before = []
    for place in range(reach, -1, -ahead):
        before.append(paths.ledger(names[place]))
        if names[place] not in reference:
            break  # a reference range waits for nothing: wait for what it passed by, too
    return [*before, *(_trained_before(campaign, reach) if training else ())]


def _trained_before(campaign: Campaign, reach: int) -> list[Path]:
    """Give the receipt of the link before the first one that trains on the range at ``reach``, or later."""
    chain = campaign.chain
    for link in chain.links:
        last = (link.ends - 1) % len(chain.ranges)  # each round trains on all ranges
        if link.ranges and last >= reach:
            return [campaign.paths.receipt(link.parent)] if link.parent else []
    return []
