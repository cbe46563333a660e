"""The whole model: features of all sensors, then a network over padded groups of events."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
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
        count = batch["count"]
        event = torch.repeat_interleave(torch.arange(len(count), device=count.device), count)
        x = self.features(batch, event, batch["start"], turn)
        begins = count.cumsum(0) - count
        found = [
            self.network(*padded(x, begins[first:last], count[first:last]))
            for first, last in batch["groups"].tolist()
        ]
        return torch.cat(found).float()  # small angles need the digits that bfloat16 has not


def padded(x: Tensor, begins: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """Pad the rows of some events to one length: [E, L, F] and, false for padding, [E, L].

    x: [D, F], rows event after event. begins, count: [E] first row and number of rows of each event.
    """
    place = torch.arange(int(count.max()), device=x.device)
    there = place < count[:, None]
    rows = torch.where(there, begins[:, None] + place, 0)
    return x[rows], there
