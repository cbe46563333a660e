"""What the reports need to know of a campaign, as plain values; composed from the configuration once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from crpipe.core.errors import DataError
from crpipe.core.files import read_json_if_any
from crpipe.core.paths import OUTLIERS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from crpipe.core.paths import Paths

ITEMS = "items"  # the word for items before the layout is known


@dataclass(frozen=True, slots=True)
class CampaignView:
    """One campaign and one of its runs, as the reports see them.

    ranges: those of the chain, in order; skipped: those left out of it.
    data: digest of everything that shapes the shards; fingerprint: of everything that shapes a checkpoint.
    data_keys, train_keys: the keys that the campaign and the run are compared with, to name changed ones.
    threshold: the configured one; the ledgers hold the one that was used.
    disk_budget: bytes that raw copies may take.
    item: plural noun for what an event contains.
    has_outliers: False where all events have the same size; the chain then ends with its last range.
    """

    run: str
    paths: Paths
    ranges: tuple[str, ...]
    skipped: tuple[str, ...]
    data: str
    fingerprint: str
    data_keys: Mapping[str, Any]
    train_keys: Mapping[str, Any]
    threshold: int
    disk_budget: int
    item: str = ITEMS
    has_outliers: bool = True

    def links(self) -> tuple[str, ...]:
        """Names of the chain's links, in order."""
        return (*self.ranges, OUTLIERS) if self.has_outliers else self.ranges


def read_item(path: Path) -> tuple[str, bool]:
    """Read from ``layout.json`` the plural noun for items, and whether events can be outliers.

    Plain JSON: `crpipe status` must not pay for numpy. Raise DataError when the file is something else.
    """
    tree = read_json_if_any(path)
    if tree is None:
        return ITEMS, True
    if not (isinstance(tree, dict) and isinstance(tree.get("item"), str)):
        raise DataError(f"{path}: not the description of a layout; delete it and run the same command again")
    return tree["item"], not tree.get("fixed", 0)
