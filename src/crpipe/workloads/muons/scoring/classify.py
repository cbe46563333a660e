"""Classifiers that tell generated bundles from real ones, and the numbers that an evaluation declares."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from crpipe.core.errors import require
from crpipe.events.batch import offsets
from crpipe.events.layout import Metric
from crpipe.workloads.muons.scoring.sample import azimuth, log_energy, log_radius

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from numpy.typing import NDArray

    from crpipe.workloads.muons.scoring.sample import Sample

    Floats = NDArray[np.float64]
    Index = NDArray[np.int64]

# A classifier needs rows of each side, and its error groups of each side in the half that was held out of its
# training; a distance needs muons in a bin of conditions.
FEWEST_ROWS = 200
FEWEST_GROUPS = 10
FEWEST_MUONS = 300  # real ones
FEWEST_GENERATED = 20  # with fewer, the bin counts as empty and has no distance


def _distance(name: str, title: str, unit: str = "") -> Metric:
    needs = f"{FEWEST_GROUPS} primaries, and {FEWEST_MUONS} muons in one bin of conditions"
    return Metric(name, title, unit, ideal=0.0, groups=FEWEST_GROUPS, needs=needs)


def _auc(name: str, title: str, rows: str) -> Metric:
    groups = 2 * FEWEST_GROUPS
    needs = f"{FEWEST_ROWS} {rows} of {groups} primaries, real and generated, and scikit-learn"
    return Metric(name, title, better="near", ideal=0.5, groups=groups, needs=needs)


METRICS: tuple[Metric, ...] = (
    _distance("w1_log_energy", "W1 of log10(energy / GeV)"),
    _distance("w1_radius_m", "W1 of radius", "m"),
    _auc("auc_event", "AUC of events", "events of 3 muons or more"),
    _auc("auc_multiplicity", "AUC of multiplicities", "events"),
    _auc("auc_full", "AUC of events with own multiplicities", "events of 1 muon or more"),
    _auc("auc_muon", "AUC of single muons", "muons"),
)

# How well a classifier separates generated events from real ones: 0.5 is not at all.

_SEED = 0  # equal predictions give equal verdicts
MOST_ROWS = 60_000  # of each side: AUC is known to 0.003, in about 5 s
MUONS_PER_EVENT = 10  # so that a few large bundles do not make up the whole comparison
_FEWEST_MUONS = 3  # for spreads and correlations to mean something


def sklearn(module: str) -> ModuleType:
    """Import a module of scikit-learn; raise MissingExtra where it is not installed."""
    return require(f"sklearn.{module}", extra="evaluate", why="for the AUC of classifiers")


class ClassifierRows(NamedTuple):
    """What a classifier may look at: the event of each of R rows, and the features [K, F] of chosen rows [K].

    Features are made of the chosen rows alone: of millions at most MOST_ROWS are looked at.
    """

    event: Index
    features: Callable[[Index], Floats]


class ClassifierScores(NamedTuple):
    """Held-out scores, and what they came from.

    score: [R], large for real; real: [R] bool; group: [R], which rows belong together; weight: [R].
    """

    score: Floats
    real: NDArray[np.bool_]
    group: NDArray[np.int64]
    weight: Floats

    def auc(self) -> float:
        """Area under the curve; NaN when a side has no weight at all."""
        return self._counted().auc

    def error(self) -> float:
        """Return the error of ``auc`` from leaving out one group at a time; NaN for fewer than two groups.

        The jackknife of Efron and Stein (1981), with the placements of DeLong et al. (1988) summed over
        clusters as by Obuchowski (1997): rows of a group are correlated, and so are its real and its
        generated ones. The variance is (G - 1) / G times the sum over groups of (auc without it - mean)².
        Twenty bootstrap samples fall short of it where few large groups dominate. The classifier is fixed:
        its training half is independent of what it scores, and a worse one is no error.
        """
        counted = self._counted()
        weighs = (counted.real + counted.generated) > 0
        with np.errstate(divide="ignore", invalid="ignore"):
            without = counted.without_each()[weighs]
        groups = len(without)
        if groups < 2 or not np.isfinite(without).all():  # noqa: PLR2004 - one group has no spread
            return float("nan")
        return float(np.sqrt((groups - 1) / groups * np.sum((without - without.mean()) ** 2)))

    def _counted(self) -> _Pairs:
        _, group = np.unique(self.group, return_inverse=True)
        levels, level = np.unique(self.score, return_inverse=True)
        real, first = self.real, group * len(levels)
        weight = np.where(real, self.weight, 0.0)
        other = np.where(real, 0.0, self.weight)
        below = _below(level, real, self.weight, np.zeros_like(level))
        below_in_group = _below(first + level, real, self.weight, first)

        def summed(values: Floats) -> Floats:
            return np.bincount(group, values).astype(np.float64)

        return _Pairs(
            of_real=summed(weight * below),
            of_generated=summed(other * (weight.sum() - below)),
            in_group=summed(weight * below_in_group),
            real=summed(weight),
            generated=summed(other),
        )


class _Pairs(NamedTuple):
    """Weighted pairs of a real and a generated row in which the real one has the larger score, half for ties.

    All [G]: of_real, of_generated: pairs of a group's real (generated) rows with those of all groups;
    in_group: pairs inside the group; real, generated: its sums of weights.
    """

    of_real: Floats
    of_generated: Floats
    in_group: Floats
    real: Floats
    generated: Floats

    @property
    def auc(self) -> float:
        """Share of the pairs."""
        pairs = self.real.sum() * self.generated.sum()
        return float(self.of_real.sum() / pairs) if pairs else float("nan")

    def without_each(self) -> Floats:
        """Return the share of the pairs that are left without each group: [G]."""
        pairs = self.of_real.sum() - self.of_real - self.of_generated + self.in_group
        return pairs / (self.real.sum() - self.real) / (self.generated.sum() - self.generated)


def _below(
    key: NDArray[np.int64], real: NDArray[np.bool_], weight: Floats, start: NDArray[np.int64]
) -> Floats:
    """Sum the weights of the other side's rows with keys from ``start`` to ``key``, half for ``key``: [R]."""
    sums = np.zeros(len(key))
    for side in (real, ~real):
        order = np.argsort(key[~side], kind="stable")
        keys, ends = key[~side][order], np.concatenate([[0.0], np.cumsum(weight[~side][order])])
        low, equal, high = (
            ends[np.searchsorted(keys, *asked)]
            for asked in ((start[side], "left"), (key[side], "left"), (key[side], "right"))
        )
        sums[side] = (equal + high) / 2 - low
    return sums


def compare(
    real: Sample, generated: Sample, rows: Callable[[Sample], ClassifierRows]
) -> ClassifierScores | None:
    """Train on half of the groups, score the other half; None when there is too little to learn from.

    The halves are drawn by group, real and generated together: a classifier that sees one copy of a
    condition in training and the other in the test would recognise it.
    """
    rng = np.random.default_rng(_SEED)
    tables, groups, weights = [], [], []
    for side in (real, generated):
        event, features = rows(side)
        selected = rng.permutation(len(event))[:MOST_ROWS]
        if len(selected) < FEWEST_ROWS:
            return None
        tables.append(features(selected))
        groups.append(side.group[event[selected]])
        weights.append(side.weights[event[selected]])
    group = np.concatenate(groups)
    is_real = np.repeat([True, False], [len(table) for table in tables])
    in_training = _half(group, rng)
    if min(len(np.unique(group[~in_training & side])) for side in (is_real, ~is_real)) < FEWEST_GROUPS:
        return None
    table, weight = np.concatenate(tables), np.concatenate(weights)
    model = sklearn("ensemble").HistGradientBoostingClassifier(
        max_iter=120, early_stopping=False, random_state=_SEED
    )
    sample_weight = None if real.weight is None else weight[in_training]
    model.fit(table[in_training], is_real[in_training], sample_weight)
    score = model.predict_proba(table[~in_training])[:, 1]
    return ClassifierScores(score, is_real[~in_training], group[~in_training], weight[~in_training])


def _half(group: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.bool_]:
    """Choose half of the groups: [R] bool."""
    names, row = np.unique(group, return_inverse=True)
    selected = rng.permutation(len(names)) < len(names) / 2
    return selected[row]


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


def bundle_rows(sample: Sample) -> ClassifierRows:
    """Describe the shape of bundles of at least three muons."""
    return _summary_rows(sample, _FEWEST_MUONS)


def full_rows(sample: Sample) -> ClassifierRows:
    """Describe all events with muons, how many there are included."""
    return _summary_rows(sample, 1)


def multiplicity_rows(sample: Sample) -> ClassifierRows:
    """Describe all events by how many muons they have."""
    return ClassifierRows(np.arange(len(sample)), lambda rows: _event_columns(sample, rows))


def _summary_rows(sample: Sample, fewest: int) -> ClassifierRows:
    event = np.flatnonzero(np.asarray(sample.multiplicity) >= fewest)

    def features(rows: Index) -> Floats:
        events = event[rows]
        return np.concatenate([_event_columns(sample, events), sample.take(events).summaries], axis=1)

    return ClassifierRows(event, features)


def _event_columns(sample: Sample, events: Index) -> Floats:
    return np.concatenate([sample.conditions[events], sample.log_multiplicity[events, None]], axis=1)
