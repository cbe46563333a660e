"""What the workloads of this package do alike: multiplicities, and the comparison with real bundles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from crpipe.events.metric import Metric
from crpipe.workloads.muons import collate as bundles
from crpipe.workloads.muons.layout import BUNDLES
from crpipe.workloads.muons.models.sampling import BundleGenerator
from crpipe.workloads.muons.options import MuonFlowOptions, MuonGanOptions

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

Options = TypeVar("Options", bound=MuonGanOptions | MuonFlowOptions)


class BundleWorkload(BundleGenerator, Generic[Options]):
    """A workload over muon bundles whose model holds a network ``multiplicity``; ``predict`` is its own."""

    event_columns = tuple(field.name for field in BUNDLES.events)
    item_columns = tuple(field.name for field in BUNDLES.items)
    metrics = (
        Metric("w1_log_energy", "W1 of log10(energy / GeV)", ideal=0.0),
        Metric("w1_radius_m", "W1 of radius", unit="m", ideal=0.0),
        Metric("auc_event", "AUC of events", better="near", ideal=0.5),
        Metric("auc_multiplicity", "AUC of multiplicities", better="near", ideal=0.5),
        Metric("auc_full", "AUC of events with own multiplicities", better="near", ideal=0.5),
        Metric("auc_muon", "AUC of single muons", better="near", ideal=0.5),
    )

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
