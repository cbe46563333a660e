"""What a workload offers so that its generator can be used, and handed on with its noise as an input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from torch import nn

    from crpipe.events.batch import Events


@dataclass(frozen=True, slots=True)
class Noise:
    """One random input of ``SamplerGraphs.muons``: [rows, columns], standard normal or uniform in 0..1."""

    name: str
    rows: Literal["events", "muons"]
    columns: int
    law: Literal["normal", "uniform"]


@dataclass(frozen=True, slots=True)
class SamplerGraphs:
    """Two modules without any random number of their own; primaries [B, 4] are as in fields.PRIMARY.

    multiplicity: ``(primaries)`` → a multiplicity.Mixture, for any events.
    muons: ``(primaries, multiplicity [B], event [M], *noise)`` → [M, 3] (energy_gev, x_m, y_m); every event
        has muons.
    whole: muons see each other, so a bundle must be made in one piece.
    tolerance: how far the same noise may lead apart on two machines, in GeV or m relative to 1 + the value.
    notes: what a user should know about how this generator works, one sentence or two each.
    """

    multiplicity: nn.Module
    muons: nn.Module
    noise: tuple[Noise, ...]
    whole: bool
    tolerance: float
    notes: tuple[str, ...]


@runtime_checkable
class BundleGenerator(Protocol):
    """What a workload needs beside the protocol to generate events for a table of conditions."""

    def multiplicities(
        self, model: nn.Module, events: Events, generator: torch.Generator
    ) -> NDArray[np.int64]:
        """Draw a multiplicity for the conditions of each event: [N]."""

    def predict(
        self,
        model: nn.Module,
        events: Events,
        generator: torch.Generator,
        multiplicity: NDArray[np.int64] | None = None,
    ) -> Events:
        """Generate events for the conditions in ``events``; what muons it holds is not looked at.

        multiplicity: [N], how many muons to give each event; sampled from the model when it is None.
        """


@runtime_checkable
class Exportable(Protocol):
    """What a workload needs beside the protocol to be exported."""

    def sampler(self, model: nn.Module) -> SamplerGraphs:
        """Take the networks of a trained model apart into a sampler."""
