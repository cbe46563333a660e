"""What the muon workloads share: multiplicities, tables, export, and the comparison with real bundles."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import numpy as np

from crpipe.author import Workload
from crpipe.workloads.muons import batches as bundles
from crpipe.workloads.muons.layout import BUNDLES, nested_table
from crpipe.workloads.muons.options import MuonGanOptions, MuonVaeOptions
from crpipe.workloads.muons.scoring import sample

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa
    import torch
    from numpy.typing import NDArray
    from torch import nn

    from crpipe.events.batch import Events
    from crpipe.inference.card import Provenance
    from crpipe.inference.export import Graphs
    from crpipe.train.workload import Columns, Measured
    from crpipe.workloads.muons.models.networks import Multiplicity

# Scoring and export import scipy, scikit-learn and onnx: a second of every training job, which has no use for
# them.
# ruff: noqa: PLC0415

Options = TypeVar("Options", bound=MuonGanOptions | MuonVaeOptions)


class BundleWorkload(Workload, Generic[Options]):
    """A workload over muon bundles whose model holds a network ``multiplicity``."""

    options: Options
    weighted = True
    event_columns = tuple(field.name for field in BUNDLES.events)
    item_columns = tuple(field.name for field in BUNDLES.items)
    metrics = sample.METRICS

    validation_metrics = (sample.NLL, *sample.SCORES)

    def size(self, events: Events) -> NDArray[np.integer[Any]]:
        """Count the muons of each event that enter a batch: [N]."""
        return bundles.window_size(events.multiplicity, self.options.max_muons)

    def multiplicities(
        self, model: nn.Module, events: Events, generator: torch.Generator
    ) -> NDArray[np.int64]:
        """Draw a multiplicity for the conditions of each event: [N]."""
        return bundles.sampled(cast("Multiplicity", model.get_submodule("multiplicity")), events, generator)

    @abc.abstractmethod
    def generate(
        self, model: nn.Module, events: Events, multiplicity: NDArray[np.int64], generator: torch.Generator
    ) -> Events:
        """Generate bundles of the given multiplicities for the conditions in ``events``."""

    def validate(self, model: nn.Module, events: Events, generator: torch.Generator) -> Columns:
        """Score the multiplicities, and the muons of bundles of the true ones: [N] each."""
        true = events.multiplicity.astype(np.int64)
        first, second = (self.generate(model, events, true, generator) for _ in range(2))
        scores = sample.energy_scores(events, first, second, generator.initial_seed() % 2**63)
        network = cast("Multiplicity", model.get_submodule("multiplicity"))
        return {sample.NLL.name: bundles.negative_log_likelihood(network, events, generator.device), **scores}

    def table(self, events: Events, prediction: Events) -> pa.Table:  # noqa: ARG002 - bundles have all columns
        """Return the rows in the converter's schema."""
        return nested_table(prediction.columns, prediction.multiplicity, prediction.items)

    def graphs(self, model: nn.Module, made: Provenance, folder: Path) -> Graphs:
        """Write the sampler as ONNX graphs with a script that runs them; see export.write."""
        from crpipe.workloads.muons import export

        return export.write(export.sampler_of(model, self.options), made, folder)

    def card(self, made: Provenance, graphs: Graphs) -> Mapping[str, Sequence[str]]:
        """Return what a user of the generator should know; see export.sections."""
        from crpipe.workloads.muons import export

        return export.sections(made, graphs)

    def histograms(
        self, model: nn.Module, events: Events, generator: torch.Generator
    ) -> dict[str, NDArray[np.floating[Any]]]:
        """Return distributions for TensorBoard; see scoring.histograms."""
        from crpipe.workloads.muons.scoring import score as scoring

        return {**scoring.histograms(self, model, events, generator)}

    def score(self, truth: Events, prediction: Events, folder: Path) -> dict[str, Measured]:
        """Compare events with their own multiplicities; see scoring.score."""
        from crpipe.workloads.muons.scoring import score as scoring

        return scoring.score(truth, prediction, folder)

    def score_given(self, truth: Events, prediction: Events, folder: Path) -> dict[str, Measured]:
        """Compare events with the true multiplicities; see scoring.score."""
        from crpipe.workloads.muons.scoring import score as scoring

        return scoring.score_given(truth, prediction, folder)
