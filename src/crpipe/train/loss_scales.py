"""Loss scales of a training in float16: one for each phase, so that small gradients do not become zero.

A phase's loss is multiplied by its scale before the backward pass, its gradients are divided by it after it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch import Tensor, nn

FIRST, LEAST, MOST = 2.0**16, 1.0, 2.0**24
GROW_AFTER = 2000  # optimizer steps of a phase without an overflow


class LossScales:
    """The scale of each phase and the optimizer steps since it changed, on the device: nothing waits for it.

    Scales are powers of two, so that multiplying and dividing are exact. A scale is halved when gradients
    overflow, and doubled after GROW_AFTER optimizer steps without.
    """

    def __init__(self, phases: Iterable[str], device: torch.device) -> None:
        self._values = {name: torch.tensor([FIRST, 0.0], device=device) for name in phases}

    def scaled(self, phase: str, loss: Tensor) -> Tensor:
        """Multiply a phase's loss by its scale."""
        return loss * self._values[phase][0]

    def unscale(self, phase: str, params: Sequence[nn.Parameter]) -> None:
        """Divide the gradients of a phase by its scale."""
        gradients = [parameter.grad for parameter in params if parameter.grad is not None]
        if gradients:
            torch._foreach_mul_(gradients, 1 / self._values[phase][0])

    def update(self, phase: str, infinite: Tensor, lost: Tensor) -> Tensor:
        """Change the scale after an optimizer step; return 1 when its gradients overflowed, else 0.

        infinite: 1 when the gradients are not finite. lost: 1 when the loss was not, for which no scale is
        to blame; the same holds for gradients at a scale of LEAST.
        """
        values = self._values[phase]
        scale, steps = values.unbind()
        overflowed = infinite * (1 - lost) * (scale > LEAST)
        steps = (steps + 1 - torch.maximum(infinite, lost)) * (1 - overflowed)
        grows = (steps >= GROW_AFTER).to(scale.dtype)
        scale = (scale * (1 + grows) * (1 - overflowed / 2)).clamp_max(MOST)
        values.copy_(torch.stack([scale, steps * (1 - grows)]))
        return overflowed

    def state(self) -> dict[str, list[float]]:
        """Return plain values for a snapshot."""
        return {name: values.tolist() for name, values in self._values.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the phases that ``state`` gave; others keep the first scale."""
        for name, values in self._values.items():
            if name in state:
                values.copy_(torch.tensor(state[name]))
