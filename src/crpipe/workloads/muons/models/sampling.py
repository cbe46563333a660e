"""A trained generator as graphs whose noise is an input: what an export writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, slots=True)
class Noise:
    """One random input of ``SamplerGraphs.muons``: [rows, columns], standard normal or uniform in 0..1."""

    name: str
    rows: Literal["events", "muons"]
    columns: int
    law: Literal["normal", "uniform"]


@dataclass(frozen=True, slots=True)
class SamplerGraphs:
    """Two modules without any random number of their own; primaries [B, 4] are as in layout.PRIMARY.

    multiplicity: ``(primaries)`` → a multiplicity.Mixture, for any events.
    muons: ``(primaries, multiplicity [B], event [M], *noise)`` → [M, 3] (energy_gev, x_m, y_m); every event
        has muons.
    joint: muons depend on each other, so a bundle must be made in one piece.
    tolerance: largest difference for the same noise on two machines, in GeV or m relative to 1 + the value.
    notes: what a user should know about how this generator works, one sentence or two each.
    """

    multiplicity: nn.Module
    muons: nn.Module
    noise: tuple[Noise, ...]
    joint: bool
    tolerance: float
    notes: tuple[str, ...]
