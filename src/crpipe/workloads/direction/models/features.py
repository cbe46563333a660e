"""From DOM vectors to what a network sees: the one place where anything is scaled.

It is part of the model, so it is exported with it. All features are of order one; absent pulses are 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Mapping

_LENGTH_M = 500.0
_TIME_NS = 3000.0
_LEAST_PE = 1e-3


class Features(nn.Module):
    """Scales DOM vectors, and knows where each sensor is.

    places: [S, 3] in m.
    """

    places: Tensor

    @property
    def width(self) -> int:
        """Count the features of one sensor: place, number of pulses, and three for each pulse."""
        return 4 + 3 * self.pulses_per_dom

    def __init__(self, places: Tensor, pulses_per_dom: int, *, absolute: bool) -> None:
        super().__init__()
        self.pulses_per_dom = pulses_per_dom
        self.register_buffer("places", places)
        self.absolute = absolute

    def forward(self, doms: Mapping[str, Tensor], start: Tensor, turn: Tensor) -> Tensor:
        """Give the features of D sensors: [D, 4 + 3K].

        doms: sensor [D], many [D], pulse [P, 4] and slot [P], as in DomVectors. start: [D] reference time of
        the event, in ns. turn: [D, 2] cosine and sine of the angle by which the event is turned about the
        vertical axis.
        """
        sensor, slot = doms["sensor"], doms["slot"]
        x, y, z = self.places[sensor].unbind(dim=1)
        cosine, sine = turn.unbind(dim=1)
        place = torch.stack([x * cosine - y * sine, x * sine + y * cosine, z], dim=1) / _LENGTH_M
        many = doms["many"].log1p() / 3 - 1
        _, time, charge, auxiliary = doms["pulse"].unbind(dim=1)
        late = time / 10 if self.absolute else time - start[slot // self.pulses_per_dom]
        scaled = [late / _TIME_NS, charge.clamp_min(_LEAST_PE).log10() / 3, auxiliary - 0.5]
        seen = place.new_zeros(sensor.shape[0] * self.pulses_per_dom, 3)
        seen = seen.index_copy(0, slot, torch.stack(scaled, dim=1))
        return torch.cat([place, many[:, None], seen.view(sensor.shape[0], -1)], dim=1)
