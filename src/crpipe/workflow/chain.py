"""Which steps a campaign has, and in which order its links are trained."""

from __future__ import annotations

from typing import TYPE_CHECKING

from crpipe.core.paths import OUTLIERS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from crpipe.cli.jobs import Campaign


def has_outliers(campaign: Campaign) -> bool:
    """Return whether events may have more items than the threshold.

    Without them nothing is consolidated, and the chain of training ends with the last range.
    """
    return campaign.layout.has_outliers()


def links(campaign: Campaign) -> list[str]:
    """Name the links of the chain of training: the ranges, then the outliers if there can be any."""
    return [*campaign.ranges, *([OUTLIERS] if has_outliers(campaign) else [])]


def before(names: Sequence[str], name: str, steps: int = 1) -> str | None:
    """Name the range that comes ``steps`` before ``name``, if there is one."""
    index = names.index(name) - steps
    return names[index] if index >= 0 else None


def reference_ranges(campaign: Campaign) -> list[str]:
    """Name the ranges that a quantile threshold is computed from; none if the threshold is a number."""
    split = campaign.config.split
    if split.quantile is None:
        return []
    return list(split.reference_ranges) or [campaign.ranges[0]]
