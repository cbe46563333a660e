"""Proper scores of the generated muons of single events: cheap numbers for validation inside training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from crpipe.events.metric import Metric
from crpipe.workloads import elementary
from crpipe.workloads.muons.scoring.sample import LEAST_GEV, LEAST_M

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from crpipe.events.batch import Events

    Floats = NDArray[np.floating[Any]]

MOST_MUONS = 32  # of an event, in each of the three samples
NLL = Metric("multiplicity_nll", "negative log likelihood of the multiplicity")
SCORES = (
    Metric("score_log_energy", "energy score of log10(energy / GeV)"),
    Metric("score_log_radius", "energy score of log10(radius / m)"),
)


def energy_scores(truth: Events, first: Events, second: Events, seed: int) -> dict[str, Floats]:
    """Give the energy score of each event's muons, [N] each (Gneiting and Raftery 2007, eq. 21).

    first, second: two independent predictions with the true multiplicities. The score is
    E|x - y| - E|x - x'| / 2 with x and x' from the two predictions and y from the truth, without bias: its
    mean is least where generated muons follow the true distribution. An event without muons counts 0.
    """
    rng = np.random.default_rng(seed)
    kept = np.minimum(truth.multiplicity.astype(np.int64), MOST_MUONS)
    known = np.arange(MOST_MUONS) < kept[:, None]
    pairs = np.maximum(kept, 1) ** 2
    both = known[:, :, None] & known[:, None, :]
    samples = [_features(events, known, rng) for events in (truth, first, second)]
    scores = {}
    for number, metric in enumerate(SCORES):
        y, x, other = (sample[number] for sample in samples)
        near = [np.where(both, np.abs(a[:, :, None] - y[:, None, :]), 0).sum((1, 2)) for a in (x, other)]
        apart = np.where(both, np.abs(x[:, :, None] - other[:, None, :]), 0).sum((1, 2))
        scores[metric.name] = ((near[0] + near[1]) / 2 - apart / 2) / pairs
    return scores


def _features(events: Events, known: NDArray[np.bool_], rng: np.random.Generator) -> list[Floats]:
    """Give log energy and log radius, [N, K] each, of some muons of each event at random."""
    if not len(events.items):
        return [np.zeros(known.shape)] * len(SCORES)
    count = events.multiplicity.astype(np.int64)[:, None]
    drawn = (rng.random(known.shape) * count).astype(np.int64)
    place = np.where(count > MOST_MUONS, drawn, np.arange(MOST_MUONS))
    muons = events.items[np.where(known, events.offsets()[:-1, None] + place, 0)].astype(np.float64)
    energy = elementary.log10(np.maximum(muons[..., 0], LEAST_GEV))
    return [energy, elementary.log10(np.hypot(muons[..., 1], muons[..., 2]) + LEAST_M)]
