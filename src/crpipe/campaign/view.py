"""What the reports need to know of a campaign, as plain values; composed from the configuration once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from crpipe.core.errors import DataError, LayoutError
from crpipe.core.files import read_json_if_any
from crpipe.events.layout import Layout

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from crpipe.core.paths import Paths
    from crpipe.core.ranges import Chain

ITEMS = "items"  # the word for items as long as the layout is unknown


@dataclass(frozen=True, slots=True)
class CampaignView:
    """One campaign and one of its runs, as the reports see them.

    ranges: those of the chain, in order; skipped: those left out of it. chain: the links of training.
    data: digest of everything that shapes the shards; fingerprint: of everything that shapes a checkpoint;
        both are empty as long as the layout is unknown, which is part of them.
    data_keys, train_keys: compared with the recorded keys of the campaign and the run, to name changed ones.
    threshold: the configured one; the ledgers hold the one that was used.
    disk_budget: bytes that raw copies may take.
    layout: columns of events and items; None as long as it is unknown.
    duplicates: a raw file may be in two ranges.
    """

    run: str
    paths: Paths
    ranges: tuple[str, ...]
    skipped: tuple[str, ...]
    chain: Chain
    data: str
    fingerprint: str
    data_keys: Mapping[str, Any]
    train_keys: Mapping[str, Any]
    threshold: int
    disk_budget: int
    layout: Layout | None = None
    duplicates: bool = False

    @property
    def item(self) -> str:
        """Plural noun for what an event contains."""
        return ITEMS if self.layout is None else self.layout.item

    @property
    def has_outliers(self) -> bool:
        """Whether events can be outliers: not when all of them have the same size."""
        return self.layout is None or self.layout.has_outliers()


def read_layout(path: Path) -> Layout | None:
    """Read ``layout.json``, ``None`` when it does not exist; raise DataError when it is something else."""
    tree = read_json_if_any(path)
    try:
        return None if tree is None else Layout.from_description(tree)
    except LayoutError as error:
        raise DataError(
            f"{path}: {error}; delete it and campaign.json beside it: the next job writes both again"
        ) from error
