"""Numbers of rows that repeat from batch to batch: events and items that count for nothing fill them up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from crpipe.loading.shapes import rounded

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from crpipe.train.workload import Batch

LEAST = 1024  # items; below, the products are so small that nothing is gained


def padding(events: int, items: int) -> NDArray[np.int64]:
    """Count the items of each event that is added to ``events`` with ``items`` in all: [D], each at least 1.

    With them both numbers are shapes. A single event stays alone (see models.large_bundles), and few items
    as they are. Example: 1,000 events with 2,000 items get 8 events (1,008) with 2 items each (2,016).
    """
    if events <= 1 or items < LEAST:
        return np.zeros(0, np.int64)
    added = rounded(events + 1) - events
    missing = rounded(items + added) - items
    return np.diff(np.arange(added + 1) * missing // added)


def padded_owner(event: NDArray[np.int64], events: int) -> NDArray[np.int64]:
    """Add the rows of ``padding`` to the event of each item, which are in 0..events-1: [M']."""
    more = padding(events, len(event))
    return np.concatenate([event, np.repeat(events + np.arange(len(more)), more)])


def weights(batch: Batch) -> Tensor:
    """Give what each event of a batch counts for: [B]; nothing for padding."""
    if "weight" not in batch:
        return batch["counts"]
    return batch["counts"] * batch["weight"].index_select(0, batch["order"])
