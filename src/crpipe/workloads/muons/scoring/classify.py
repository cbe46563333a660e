"""How well a classifier separates generated events from real ones: 0.5 is not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from crpipe.core.extras import require

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from numpy.typing import NDArray

    from crpipe.workloads.muons.scoring.sample import Sample

    Floats = NDArray[np.float64]
    # Features [R, F] and the event of each row [R]
    Table = tuple[Floats, NDArray[np.int64]]

_SEED = 0  # equal predictions give equal verdicts
MOST_ROWS = 60_000  # of each side: AUC is known to 0.003, in about 5 s
FEWEST_ROWS = 200  # of each side: with fewer an AUC means nothing
FEWEST_GROUPS = 5  # that are scored: with fewer its bootstrap error means nothing
MUONS_PER_EVENT = 10  # so that a few large bundles do not make up the whole comparison
_FEWEST_MUONS = 3  # for spreads and correlations to mean something


def sklearn(module: str) -> ModuleType:
    """Import a module of scikit-learn; raise MissingExtra where it is not installed."""
    return require(f"sklearn.{module}", extra="evaluate", why="for the AUC of classifiers")


class Verdict(NamedTuple):
    """Held-out scores, and what they came from.

    score: [R], large for real; real: [R] bool; group: [R], which rows belong together; weight: [R].
    """

    score: Floats
    real: NDArray[np.bool_]
    group: NDArray[np.int64]
    weight: Floats

    def auc(self, weight: Floats | None = None) -> float:
        """Area under the curve; ``weight`` [G] re-weights groups. NaN when a side has no weight at all."""
        rows = self.weight if weight is None else weight[self.group] * self.weight
        if not (rows[self.real].any() and rows[~self.real].any()):
            return float("nan")
        return float(sklearn("metrics").roc_auc_score(self.real, self.score, sample_weight=rows))


def compare(real: Sample, generated: Sample, rows: Callable[[Sample], Table]) -> Verdict | None:
    """Train on half of the groups, score the other half; None when there is too little to learn from.

    The halves are drawn by group, real and generated together: a classifier that sees one copy of a
    condition in training and the other in the test would recognise it.
    """
    rng = np.random.default_rng(_SEED)
    tables, groups, weights = [], [], []
    for side in (real, generated):
        table, event = rows(side)
        chosen = rng.permutation(len(table))[:MOST_ROWS]
        if len(chosen) < FEWEST_ROWS:
            return None
        tables.append(table[chosen])
        groups.append(side.group[event[chosen]])
        weights.append(side.weights[event[chosen]])
    group = np.concatenate(groups)
    is_real = np.repeat([True, False], [len(table) for table in tables])
    in_training = _half(group, rng)
    if len(np.unique(group[~in_training])) < FEWEST_GROUPS:
        return None
    table, weight = np.concatenate(tables), np.concatenate(weights)
    model = sklearn("ensemble").HistGradientBoostingClassifier(
        max_iter=120, early_stopping=False, random_state=_SEED
    )
    known = None if real.weight is None else weight[in_training]
    model.fit(table[in_training], is_real[in_training], known)
    score = model.predict_proba(table[~in_training])[:, 1]
    return Verdict(score, is_real[~in_training], group[~in_training], weight[~in_training])


def _half(group: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.bool_]:
    """Choose half of the groups: [R] bool."""
    names, row = np.unique(group, return_inverse=True)
    chosen = rng.permutation(len(names)) < len(names) / 2
    return chosen[row]


def muon_rows(sample: Sample) -> Table:
    """Describe single muons, the first few of each event: energy, radius, azimuth, and their event."""
    first = np.cumsum(sample.multiplicity, dtype=np.int64) - sample.multiplicity
    early = np.arange(len(sample.event)) - first[sample.event] < MUONS_PER_EVENT
    event = sample.event[early]
    columns = [sample.log_energy, sample.log_radius, np.cos(sample.azimuth), np.sin(sample.azimuth)]
    muons = np.stack([column[early] for column in columns], axis=1)
    return np.concatenate([_event_columns(sample)[event], muons], axis=1), event


def bundle_rows(sample: Sample) -> Table:
    """Describe the shape of bundles of at least three muons."""
    return _summary_rows(sample, _FEWEST_MUONS)


def full_rows(sample: Sample) -> Table:
    """Describe all events with muons, how many there are included."""
    return _summary_rows(sample, 1)


def multiplicity_rows(sample: Sample) -> Table:
    """Describe all events by how many muons they have."""
    return _event_columns(sample), np.arange(len(sample))


def _summary_rows(sample: Sample, fewest: int) -> Table:
    event = np.flatnonzero(np.asarray(sample.multiplicity) >= fewest)
    return np.concatenate([_event_columns(sample), sample.summaries], axis=1)[event], event


def _event_columns(sample: Sample) -> Floats:
    return np.concatenate([sample.conditions, sample.log_multiplicity[:, None]], axis=1)
