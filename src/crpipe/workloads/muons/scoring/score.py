"""How good generated bundles are, in numbers and figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from crpipe.events.layout import WEIGHT
from crpipe.workloads.common import elementary
from crpipe.workloads.muons.layout import BUNDLES
from crpipe.workloads.muons.scoring import metrics, plots
from crpipe.workloads.muons.scoring.sample import Sample, log_energy, log_radius

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from numpy.typing import NDArray
    from torch import nn

    from crpipe.events.batch import Events
    from crpipe.train.workload import Generates

_SHOWN_EVENTS = 1000
_SHOWN_MUONS = 100  # of one event: a glance during training must not wait for outliers


def score(truth: Events, prediction: Events, folder: Path) -> dict[str, float]:
    """Compare generated events with the real ones of the same conditions; plot figures into ``folder``."""
    weight = truth.columns.get(WEIGHT)
    real = sample_of(truth, weight)
    same = all(np.array_equal(truth.columns[name], prediction.columns[name]) for name in BUNDLES.group)
    generated = sample_of(prediction, weight, real.group if same else None)
    trained = metrics.classifier_scores(real, generated)
    plots.draw_all(real, generated, trained, folder)
    return metrics.compare(real, generated, trained)


def sample_of(
    events: Events, weight: NDArray[Any] | None = None, group: NDArray[np.int64] | None = None
) -> Sample:
    """Take what the metrics look at; rows of one primary make one group.

    group: those of the events, where they are known.
    """
    if group is None:
        group = _groups([events.columns[name] for name in BUNDLES.group])
    return Sample(events.columns, events.multiplicity, events.items, group, weight)


def _groups(ids: list[NDArray[Any]]) -> NDArray[np.int64]:
    """Number the different rows of the columns [N] in ascending order: [N]."""
    order = np.lexsort(ids[::-1])
    starts = np.zeros(len(order), np.int64)
    for column in ids:
        ordered = column[order]
        starts[1:] |= ordered[1:] != ordered[:-1]
    group = np.empty_like(starts)
    group[order] = np.cumsum(starts)
    return group


def histograms(
    workload: Generates, model: nn.Module, events: Events, generator: torch.Generator
) -> dict[str, NDArray[np.float64]]:
    """Return distributions of a few events, real and generated, for a glance during training."""
    shown = events.part(0, min(len(events), _SHOWN_EVENTS))
    drawn = workload.multiplicities(model, shown, generator)
    made = workload.generate(model, shown, np.minimum(drawn, _SHOWN_MUONS), generator)
    real = sample_of(shown)
    names = ("log10_energy_gev", "cos_zenith", "log10_mass_number", "depth_m")
    found = {f"condition/{name}": column for name, column in zip(names, real.conditions.T, strict=True)}
    found |= {"log10_multiplicity/real": real.log_multiplicity}
    found |= {"log10_multiplicity/generated": elementary.log10(drawn + 1.0)}
    for name, sample in (("real", real), ("generated", sample_of(made))):
        early = np.arange(len(sample.event)) - sample.first[sample.event] < _SHOWN_MUONS
        found[f"log10_muon_energy_gev/{name}"] = log_energy(sample.muons[early])
        found[f"log10_radius_m/{name}"] = log_radius(sample.muons[early])
    return {name: values for name, values in found.items() if len(values)}
