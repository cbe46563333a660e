"""Who waits for whom: staging stays at most ``source.look_ahead`` ranges ahead of training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from crpipe.workflow.chain import before, reference_ranges

if TYPE_CHECKING:
    from collections.abc import Collection

    from crpipe.cli.jobs import Campaign

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


def staging_turn(campaign: Campaign, name: str, *, training: bool) -> Path | None:
    """Give the file that range ``name`` waits for before it is staged, if any.

    It is the receipt of the range look_ahead before it, or that range's ledger when nothing is trained.
    What was staged before waits for nothing: a change of target or look_ahead must not copy it again.
    """
    paths = campaign.paths
    earlier = before(campaign.ranges, name, campaign.config.source.look_ahead)
    if earlier is None or paths.staged(name).exists() or paths.ledger(name).exists():
        return None
    # The threshold needs its reference ranges before anything is split: they cannot wait for a split one.
    if name in reference_ranges(campaign):
        return None
    return paths.receipt(earlier) if training else paths.ledger(earlier)
