"""What the workloads of this package do alike: multiplicities, and the comparison with real bundles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from crpipe.workloads.muons import collate as bundles
from crpipe.workloads.muons.models.sampling import BundleGenerator
from crpipe.workloads.muons.options import MuonFlowConfig, MuonGanConfig

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    import torch
    from numpy.typing import NDArray
    from torch import nn

    from crpipe.events.batch import Events
    from crpipe.workloads.muons.models.multiplicity import Multiplicity

# Scoring imports scipy and scikit-learn, a second of every training job, which rarely needs them.
# ruff: noqa: PLC0415

Options = TypeVar("Options", bound=MuonGanConfig | MuonFlowConfig)


class BundleWorkload(BundleGenerator, Generic[Options]):
    """A workload over muon bundles whose model holds a network ``multiplicity``; ``predict`` is its own."""

    def __init__(self, options: Options) -> None:
        self.options = options

    def size(self, events: Events) -> NDArray[np.integer[Any]]:
        """Count the muons of each event that enter a batch: [N]."""
        return bundles.window_size(events.multiplicity, self.options.max_muons)

    def multiplicities(
        self, model: nn.Module, events: Events, generator: torch.Generator
    ) -> NDArray[np.int64]:
        """Draw a multiplicity for the conditions of each event: [N]."""
        return bundles.sampled(cast("Multiplicity", model.get_submodule("multiplicity")), events, generator)

    def histograms(
        self, model: nn.Module, events: Events, generator: torch.Generator
    ) -> dict[str, NDArray[np.floating[Any]]]:
        """Give distributions for TensorBoard; see scoring.histograms."""
        from crpipe.workloads.muons.scoring import score as scoring

        return {**scoring.histograms(self, model, events, generator)}

    def score(self, truth: Events, prediction: Events, folder: Path) -> dict[str, float]:
        """Compare; see scoring.score."""
        from crpipe.workloads.muons.scoring import score as scoring

        return scoring.score(truth, prediction, folder)
