"""Weights of events: who must use them, and where a workload finds them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from crpipe.core.errors import ConfigError, ForeignError
from crpipe.events.batch import Events
from crpipe.events.layout import WEIGHT

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from crpipe.events.layout import Layout
    from crpipe.train.workload import Batch, Workload


def check_weighted(workload: Workload, name: str, layout: Layout) -> None:
    """Raise ConfigError when events have weights which the workload does not use."""
    if layout.weight and not getattr(workload, "weighted", False):
        raise ConfigError(
            f"train.workload: {name} lacks `weighted = True`, but events have the weight {layout.weight}; "
            'weigh its losses by batch["weight"] and its scores by truth.columns["weight"] and set it, or '
            "name a reader without a weight"
        )


def with_weights(batch: Batch, events: Events, index: NDArray[np.integer[Any]], weight: str) -> Batch:
    """Add the weights of the events at ``index`` to their batch, from the column ``weight``, if there is one.

    Raise ForeignError when collate made a tensor of that name.
    """
    if not weight:
        return batch
    if WEIGHT in batch:
        raise ForeignError(
            f"collate gave a tensor {WEIGHT!r}, which the engine adds from the column {weight}; rename it"
        )
    return {**batch, WEIGHT: torch.from_numpy(events.columns[weight][index].astype(np.float32))}


def weighed(events: Events, weight: str) -> Events:
    """Give events to be scored, with their weights as the column ``weight``, whatever the layout calls it."""
    if not weight:
        return events
    columns = {**events.columns, WEIGHT: events.columns[weight]}
    return Events(columns, events.multiplicity, events.items)
