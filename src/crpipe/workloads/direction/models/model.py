"""The whole model: features of all sensors, then a network over padded groups of events."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from crpipe.train.workload import Batch
    from crpipe.workloads.direction.models.features import Features


class DirectionModel(nn.Module):
    """Gives a vector for each event, which points to where the neutrino came from."""

    def __init__(self, features: Features, network: nn.Module) -> None:
        super().__init__()
        self.features = features
        self.network = network

    def forward(self, batch: Batch, turn: Tensor) -> Tensor:
        """Give vectors [B, 3] for the events of a batch that ``collate`` made, in its order.

        turn: [B] angle by which each event is turned about the vertical axis, in rad.
        """
        x = self.features(batch, batch["event"], batch["start"], turn)
        found = [self.network(x[rows], there) for rows, there in groups_of(batch)]
        return torch.cat(found).float()  # small angles need the digits that bfloat16 has not


def groups_of(batch: Batch) -> Iterator[tuple[Tensor, Tensor]]:
    """Give the rows of each padded group of events, [E, L], and, false for padding, [E, L]."""
    first = 0
    for number in range(sum(name.startswith("rows_") for name in batch)):
        rows = batch[f"rows_{number}"]
        kept = batch["kept"][first : first + rows.shape[0], None]
        yield rows, torch.arange(rows.shape[1], device=rows.device) < kept
        first += rows.shape[0]
