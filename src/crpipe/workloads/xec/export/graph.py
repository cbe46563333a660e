"""The trained models as functions of the raw branches of a ROOT file, all scaling inside, for an export."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from crpipe.workloads.xec.layout import LARGEST
from crpipe.workloads.xec.models.heads import sigma_of

if TYPE_CHECKING:
    from crpipe.workloads.xec.models.decoder import MaskedModel
    from crpipe.workloads.xec.models.heads import GammaModel

_NS = 1e9


def items_of(npho: Tensor, relative_time: Tensor, threshold: float) -> Tensor:
    """Turn raw branches, [B, 4760] each, into the items of the layout, as the reader does: [B, 4760, 4].

    relative_time: in s. threshold: photons below which a sensor has no time.
    """
    valid = npho.abs() <= LARGEST  # false for NaN
    timed = valid & (relative_time.abs() <= LARGEST) & (npho >= threshold)
    photons = torch.where(valid, npho, 0.0)
    time = torch.where(timed, relative_time * _NS, 0.0)
    return torch.stack([photons, time, valid.to(npho.dtype), timed.to(npho.dtype)], dim=2)


class RegressorGraph(nn.Module):
    """Predictions of all tasks from raw branches, in the order of ``outputs``."""

    def __init__(self, model: GammaModel, threshold: float) -> None:
        super().__init__()
        self.model = model
        self.threshold = threshold

    def forward(self, npho: Tensor, relative_time: Tensor) -> tuple[Tensor, ...]:
        """Give for each task [B, D] in the units of its columns, and behind it its uncertainties, if any."""
        found: list[Tensor] = []
        for name, (value, log_sigma) in self.model(items_of(npho, relative_time, self.threshold)).items():
            found.append(value)
            if log_sigma is not None:
                found.append(sigma_of(name, value, log_sigma, self.model.tasks[name]))
        return tuple(found)


class InpainterGraph(nn.Module):
    """Photons and times of all sensors, found from those that are valid."""

    def __init__(self, model: MaskedModel, threshold: float) -> None:
        super().__init__()
        self.model = model
        self.threshold = threshold

    def forward(self, npho: Tensor, relative_time: Tensor) -> tuple[Tensor, Tensor]:
        """Give photons and times in s, [B, 4760] each: found ones, also for the sensors that are valid."""
        found = self.model(items_of(npho, relative_time, self.threshold))
        return found.photons, found.time_ns / _NS
