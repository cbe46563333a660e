"""The events of a campaign as batches of numpy arrays."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from crpipe.core.causes import is_present
from crpipe.core.destinations import LARGE_ROLES, ROLES
from crpipe.core.errors import ConfigError, DataError
from crpipe.loading.loader import Loader

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from pathlib import Path

    from crpipe.events.batch import Events
    from crpipe.events.layout import Layout
    from crpipe.report.campaign_view import CampaignView

MOST_ITEMS = 4_000_000  # of a batch of outliers


class EventBatches:
    """Batches of events of one part, shuffled; each ``for`` loop begins from the start.

    events, items: how many there are in an epoch. layout: names, types and units of the columns.
    """

    events: int
    items: int
    layout: Layout

    def __init__(self, loader: Loader) -> None:
        """Take a loader whose shards are checked."""
        self._loader = loader
        self.events = loader.events
        self.items = loader.items
        self.layout = loader.layout

    def __len__(self) -> int:
        """Count the batches of one epoch."""
        return self._loader.batches_per_epoch

    def __iter__(self) -> Generator[Events]:
        """Yield the batches of all epochs; raise ShardError for a damaged shard."""
        with contextlib.closing(self._loader.batches()) as stream:
            for events, _ in stream:
                yield events


def open_batches(
    view: CampaignView, part: str, ranges: Sequence[str], *, batch_events: int, epochs: int, seed: int
) -> EventBatches:
    """Open the shards of some ranges, or of all that are split."""
    if part not in ROLES:
        raise ConfigError(f"part {part!r}: unknown; legal: {', '.join(ROLES)}")
    folders = list(_folders(view, part, ranges))
    if not folders:
        raise DataError(f"{view.paths.results}: no range is split yet; run `crpipe run` first")
    most = MOST_ITEMS if part in LARGE_ROLES else None  # thousands of them may not fit into memory
    return EventBatches(
        Loader(folders, part, batch_events=batch_events, seed=(seed,), epochs=epochs, max_items=most)
    )


def _folders(view: CampaignView, part: str, asked: Sequence[str]) -> Generator[Path]:
    for name in asked or view.ranges:
        outliers = part in LARGE_ROLES
        manifest = view.paths.outlier_manifest(name) if outliers else view.paths.shard_manifest(name)
        if is_present(manifest):
            yield manifest.parent
        elif asked:
            raise DataError(f"{manifest}: missing; run `crpipe split {name}` first")
