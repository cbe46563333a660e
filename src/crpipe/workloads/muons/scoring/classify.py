"""What classifiers look at that tell generated bundles from real ones."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from crpipe.core.errors import MissingExtra
from crpipe.events.batch import offsets
from crpipe.statistics.classifier import Judge, LabelledRows, cross_fit
from crpipe.workloads.muons.scoring.sample import Sample, azimuth, log_energy, log_radius

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Index = NDArray[np.int64]
    Describe = Callable[[Sample], "ClassifierRows"]

_LOG = logging.getLogger(__name__)
_SEED = 0  # equal predictions give equal verdicts
MOST_ROWS = 20_000  # of each side
MUONS_PER_EVENT = 10  # so that a few large bundles do not make up the whole comparison
FEWEST_MUONS = 3  # for spreads and correlations to mean something


class ClassifierRows(NamedTuple):
    """What a classifier may look at: the event of each of R rows, and the features [K, F] of chosen rows [K].

    Features are made of the chosen rows alone: of millions at most MOST_ROWS are looked at.
    """

    event: Index
    features: Callable[[Index], Floats]


def judges(real: Sample, generated: Sample, kinds: Mapping[str, Describe]) -> dict[str, Judge]:
    """Train the named classifiers that have enough to learn from; none, with a warning, without scikit-learn.

    At the end of a campaign the other numbers are worth more than an error.
    """
    try:
        trained = {name: cross_fit(_chosen(real, generated, rows)) for name, rows in kinds.items()}
    except MissingExtra as missing:
        _LOG.warning("the AUCs are left out: %s, then evaluate again", missing)
        return {}
    return {name: judge for name, judge in trained.items() if judge is not None}


def _chosen(real: Sample, generated: Sample, rows: Describe) -> LabelledRows:
    rng = np.random.default_rng(_SEED)
    tables, events = [], []
    for side in (real, generated):
        event, features = rows(side)
        selected = rng.permutation(len(event))[:MOST_ROWS]
        tables.append(features(selected))
        events.append(event[selected])
    event = np.concatenate(events)
    is_real = np.repeat([True, False], [len(table) for table in tables])
    weights = [side.weights[chosen] for side, chosen in zip((real, generated), events, strict=True)]
    return LabelledRows(np.concatenate(tables), is_real, event, real.group, np.concatenate(weights))


def muon_rows(sample: Sample) -> ClassifierRows:
    """Describe single muons, the first few of each event: energy, radius, azimuth, and their event."""
    early = np.minimum(np.asarray(sample.multiplicity, np.int64), MUONS_PER_EVENT)
    event = np.repeat(np.arange(len(sample)), early)
    index = np.arange(len(event)) + np.repeat(sample.first[:-1] - offsets(early)[:-1], early)

    def features(rows: Index) -> Floats:
        muons = sample.muons[index[rows]]
        angle = azimuth(muons)
        columns = np.stack([log_energy(muons), log_radius(muons), np.cos(angle), np.sin(angle)], axis=1)
        return np.concatenate([_event_columns(sample, event[rows]), columns], axis=1)

    return ClassifierRows(event, features)


def multiplicity_rows(sample: Sample) -> ClassifierRows:
    """Describe all events by how many muons they have."""
    return ClassifierRows(np.arange(len(sample)), lambda rows: _event_columns(sample, rows))


def _summary_rows(sample: Sample, fewest: int) -> ClassifierRows:
    """Describe the shape of bundles of at least so many muons, how many there are included."""
    event = np.flatnonzero(np.asarray(sample.multiplicity) >= fewest)

    def features(rows: Index) -> Floats:
        return np.concatenate([_event_columns(sample, event[rows]), sample.summaries[event[rows]]], axis=1)

    return ClassifierRows(event, features)


def _event_columns(sample: Sample, events: Index) -> Floats:
    return np.concatenate([sample.conditions[events], sample.log_multiplicity[events, None]], axis=1)


GIVEN: dict[str, Describe] = {"auc_event": partial(_summary_rows, fewest=FEWEST_MUONS), "auc_muon": muon_rows}
OWN: dict[str, Describe] = {
    "auc_full": partial(_summary_rows, fewest=1),
    "auc_multiplicity": multiplicity_rows,
}
# The rows that are kept for a comparison of several models, by the name that a person sees.
KEPT = {"auc_event": "bundles, true multiplicities", "auc_full": "events, own multiplicities"}


def kept(judged: Mapping[str, Judge]) -> dict[str, LabelledRows]:
    """Return the rows that a comparison of several models looks at."""
    return {KEPT[name]: judge.rows for name, judge in judged.items() if name in KEPT}
