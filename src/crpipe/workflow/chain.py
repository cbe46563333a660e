"""What a link of the chain trains on and continues from, and which ranges a threshold is chosen from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from crpipe.core.paths import CONSOLIDATED, OUTLIERS

if TYPE_CHECKING:
    from pathlib import Path

    from crpipe.cli.jobs.campaign import Campaign


def shards_of(campaign: Campaign, name: str) -> list[Path]:
    """List the manifests of the shards that a link trains on, one for each range.

    Raise ConfigError when the campaign has no such link.
    """
    paths, link = campaign.paths, campaign.chain.named(name)
    if name == OUTLIERS:
        return [paths.outlier_manifest(CONSOLIDATED)]
    return [paths.shard_manifest(each) for each in link.ranges]


def parent_of(campaign: Campaign, name: str) -> list[Path]:
    """Give the receipt of the link before, whose checkpoint a link starts from; none for the first link."""
    parent = campaign.chain.named(name).parent
    return [campaign.paths.receipt(parent)] if parent else []


def reference_ranges(campaign: Campaign) -> list[str]:
    """Name the ranges that a quantile threshold is computed from; none if the threshold is a number."""
    split = campaign.config.split
    if split.quantile is None:
        return []
    return list(split.reference_ranges) or [campaign.ranges[0]]
