"""From DOM vectors to what a network sees: the one place where anything is scaled.

It is part of the model, so it is exported with it. All features are of order one; absent pulses are 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Mapping

_LENGTH_M, _TIME_NS = 500.0, 3000.0
_NEAR_M, _NEAR_NS = 150.0, 500.0  # of an event's own size
_LEAST_PE = 1e-3
_NOISE = 1e-3  # weight of a sensor without a coincidence, where the centre of the light is sought


class Features(nn.Module):
    """Scales DOM vectors, and knows where each sensor is.

    places: [S, 3] in m.
    """

    places: Tensor

    def __init__(self, places: Tensor, pulses_per_dom: int, *, absolute: bool) -> None:
        super().__init__()
        self.pulses_per_dom = pulses_per_dom
        self.register_buffer("places", places)
        self.absolute = absolute

    @property
    def width(self) -> int:
        """Count the features of one sensor: eight of its own, and three for each pulse."""
        return 8 + 3 * self.pulses_per_dom

    def forward(self, doms: Mapping[str, Tensor], event: Tensor, start: Tensor, turn: Tensor) -> Tensor:
        """Give the features of D sensors of B events: [D, 8 + 3K].

        doms: sensor [D], many [D], pulse [P, 4] and slot [P], as in DomVectors. event: [D]. start: [B]
        reference time of the event, in ns. turn: [B] angle in rad by which it is turned about the vertical
        axis.

        The features: place in the detector, and from the centre of the event's light; time of the first pulse
        from the mean of all; number of pulses; time, charge and kind of each pulse.
        """
        sensor, slot = doms["sensor"], doms["slot"]
        place = _turned(self.places[sensor], turn[event])
        _, time, charge, auxiliary = doms["pulse"].unbind(dim=1)
        late = time - start[event[slot // self.pulses_per_dom]]
        shown = time / 10 if self.absolute else late
        scaled = [shown / _TIME_NS, charge.clamp_min(_LEAST_PE).log10() / 3, auxiliary - 0.5, late / _NEAR_NS]
        seen = place.new_zeros(sensor.shape[0] * self.pulses_per_dom, 4)
        seen = seen.index_copy(0, slot, torch.stack(scaled, dim=1)).view(sensor.shape[0], -1, 4)
        near = torch.cat([place / _NEAR_M, seen[:, 0, 3:]], dim=1)
        # Pulses in local coincidence are light, most others noise.
        weight = torch.where(seen[:, 0, 2] < 0, 1.0, _NOISE) * (doms["many"] > 0)
        near = near - _means(near, weight, event, start.shape[0])[event]
        many = doms["many"].log1p() / 3 - 1
        return torch.cat([place / _LENGTH_M, near, many[:, None], seen[:, :, :3].flatten(1)], dim=1)


def _turned(places: Tensor, turn: Tensor) -> Tensor:
    x, y, z = places.unbind(dim=1)
    cosine, sine = turn.cos(), turn.sin()
    return torch.stack([x * cosine - y * sine, x * sine + y * cosine, z], dim=1)


def _means(values: Tensor, weight: Tensor, event: Tensor, events: int) -> Tensor:
    """Give the weighted means of values [D, F] over the rows of each event: [B, F]."""
    sums = values.new_zeros(events, values.shape[1]).index_add(0, event, values * weight[:, None])
    return sums / values.new_zeros(events).index_add(0, event, weight).clamp_min(_NOISE)[:, None]
