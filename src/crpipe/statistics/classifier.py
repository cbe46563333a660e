"""A classifier that tells two samples apart, cross-fitted: each group is judged by one that never saw it.

An AUC is a statement about a classifier and how much it learned from: it is trained on all groups and on a
quarter of them, and where it still learns, its limit for any number of groups is what is reported.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from crpipe.core.errors import require
from crpipe.statistics.groups import Statistic, bootstrapped, error_of, folds

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Index = NDArray[np.int64]

FOLDS, SEEDS = 5, 3
# With many rows the choice of the folds matters little, and training takes long.
MANY_ROWS, FOLDS_OF_MANY = 5000, 3
SHARES = (1.0, 0.25)  # of the training groups: the learning curve
FEWEST_GROUPS = 20  # four in a fold
TREES = 120
_WHY = "for the AUC of classifiers"
_DIGITS = 4  # of the spread of a feature: no last bit decides
_LEARNING = 4.5  # times the share of the AUC that is not learned yet: the excess variance, at most 1


@dataclass(frozen=True, slots=True)
class LabelledRows:
    """What a classifier looks at: R rows of two samples.

    features: [R, F]. real: [R] bool. event: [R], the row's event among N, for both samples. group: [N].
    weight: [R].
    """

    features: Floats
    real: NDArray[np.bool_]
    event: Index
    group: Index
    weight: Floats


@dataclass(frozen=True, slots=True)
class Curve:
    """A learning curve: AUCs of classifiers that learned from all groups and from a quarter, with errors.

    groups: how many they learned from. converged: whether all groups teach no more than a quarter of them
    within 2 errors. excess: how much more the AUC scatters than for classifiers that do not change.
    """

    groups: tuple[float, float]
    auc: tuple[float, float]
    error: tuple[float, float]
    converged: bool
    excess: float

    @property
    def limit(self) -> float:
        """The AUC that any number of groups would lead to."""
        return self.auc[0] if self.converged else min(2 * self.auc[0] - self.auc[1], 1.0)


@dataclass(frozen=True, slots=True)
class Judge:
    """A cross-fitted classifier: its scores of all rows, and its AUC as a statistic.

    scores: [R], large for real. fold: [R], which classifier gave each. statistic: the limit of the AUC.
    curve: what it comes from.
    """

    rows: LabelledRows
    scores: Floats
    fold: Index
    statistic: Statistic
    curve: Curve


def cross_fit(rows: LabelledRows) -> Judge | None:
    """Train and judge a gradient-boosted classifier; None for fewer than FEWEST_GROUPS groups.

    It learns from a quarter of the groups, too: an AUC falls short of its limit by about b / sqrt(groups), so
    the limit is 2 a(G) - a(G / 4), or a(G) where more groups teach nothing more, within 2 errors.
    """
    row_group = rows.group[rows.event]
    if min(len(np.unique(row_group[side])) for side in (rows.real, ~rows.real)) < FEWEST_GROUPS:
        return None
    table = rounded(rows.features)
    count, seeds = (FOLDS_OF_MANY, 1) if len(table) >= MANY_ROWS else (FOLDS, SEEDS)
    dealt = [folds(row_group, count, seed) for seed in range(seeds)]
    scores = [[_scores(table, rows, row_group, fold, share) for fold in dealt] for share in SHARES]
    whole, quarter = _mean_auc(rows, scores[0], dealt), _mean_auc(rows, scores[1], dealt)
    curve = _curve((whole, quarter), rows, len(np.unique(row_group)) * (count - 1) / count)
    limit = whole if curve.converged else lambda weights: min(2 * whole(weights) - quarter(weights), 1.0)
    return Judge(rows, scores[0][0], dealt[0], _spread(limit, curve.excess), curve)


def _spread(statistic: Statistic, factor: float) -> Statistic:
    """Make a statistic scatter ``factor`` times as much about its value for equal weights."""
    middle: list[float] = []

    def spread(weights: Floats) -> float:
        if not middle:
            middle.append(statistic(np.ones_like(weights)))
        return middle[0] + factor * (statistic(weights) - middle[0])

    return spread


def label_chances(
    learned: Floats, label: NDArray[Any], weight: Floats | None, table: Floats, *, why: str, **options: Any
) -> Floats:
    """Train gradient-boosted trees; return the probability of each label for each row of ``table``: [R, K].

    In one thread: the trees are small, two threads are no faster, and two that sleep while they wait for each
    other (`crpipe.core.waiting`) take ten times as long.
    """
    ensemble = require("sklearn.ensemble", extra="evaluate", why=why)
    limits = require("threadpoolctl", extra="evaluate", why=why)
    model = ensemble.HistGradientBoostingClassifier(random_state=0, **options)
    with limits.threadpool_limits(1, user_api="openmp"):
        chance: Floats = model.fit(learned, label, weight).predict_proba(table)
    return chance


def rounded(features: Floats) -> Floats:
    """Round each column to 1e-4 of its spread, in powers of ten: generated floats have other last bits."""
    spread = np.std(features, axis=0)
    step = 10.0 ** (np.ceil(np.log10(np.where(spread > 0, spread, 1.0))) - _DIGITS)
    return np.asarray(np.round(features / step) * step)


def _scores(table: Floats, rows: LabelledRows, row_group: Index, fold: Index, share: float) -> Floats:
    """Score every row by a classifier that learned from a share of the groups in the other folds: [R]."""
    scores = np.empty(len(table))
    # The first groups by a number drawn for each: smaller shares are parts of larger ones.
    rank = np.random.default_rng(len(row_group)).permutation(int(row_group.max()) + 1)[row_group]
    alike = bool(np.all(rows.weight == rows.weight[0]))
    for number in np.unique(fold):
        others = fold != number
        if share < 1:
            others &= rank <= np.quantile(np.unique(rank[others]), share)
        weight, tested = None if alike else rows.weight[others], fold == number
        given = table[others], rows.real[others], weight, table[tested]
        scores[tested] = label_chances(*given, why=_WHY, max_iter=TREES, early_stopping=False)[:, 1]
    return scores


def _curve(statistics: tuple[Statistic, Statistic], rows: LabelledRows, groups: float) -> Curve:
    """Compare what all groups and a quarter of them taught.

    The folds share what they learned, so their mean scatters more than tests of independent classifiers do:
    sqrt(2) times as much where nothing was learned (tests/nightly/test_floors.py), not at all where
    everything was.
    """
    count = int(rows.group.max()) + 1
    whole, quarter = bootstrapped({str(i): each for i, each in enumerate(statistics)}, rows.group).values()
    learned, error = whole - quarter, error_of(whole, count)
    still = learned[0] / max(2 * whole[0] - quarter[0] - 0.5, 1e-9)
    nothing = not whole[0] - 0.5 > 2 * np.sqrt(2) * error
    excess = np.sqrt(1 + (1.0 if nothing else np.clip(_LEARNING * still, 0, 1)))
    converged = not learned[0] > 2 * excess * error_of(learned, count)
    errors = (float(excess * error), float(excess * error_of(quarter, count)))
    return Curve((groups, groups / 4), (whole[0], quarter[0]), errors, converged, float(excess))


def _mean_auc(rows: LabelledRows, scores: list[Floats], dealt: list[Index]) -> Statistic:
    parts = [_fold_auc(rows, one, fold) for one, fold in zip(scores, dealt, strict=True)]
    return lambda weights: float(np.mean([part(weights) for part in parts]))


def _fold_auc(rows: LabelledRows, scores: Floats, fold: Index) -> Statistic:
    """Average the AUC over folds: scores of different classifiers are not compared with each other."""
    members = [np.flatnonzero(fold == number) for number in np.unique(fold)]
    parts = [auc(scores[mine], rows.real[mine], rows.event[mine], rows.weight[mine]) for mine in members]

    def averaged(weights: Floats) -> float:
        values = np.array([part(weights) for part in parts])
        return float(np.nanmean(values)) if np.isfinite(values).any() else float("nan")

    return averaged


def auc(score: Floats, real: NDArray[np.bool_], event: Index, weight: Floats) -> Statistic:
    """Return the share of pairs of a real and a generated row in which the real one scores higher.

    Ties count half. score, real, weight: [R]; event: of each row, where its weight is found. The statistic is
    nan where a side has no weight.
    """
    order = np.argsort(score, kind="stable")
    _, first = np.unique(score[order], return_index=True)
    is_real, index, of_row = real[order], event[order], weight[order]

    def share(weights: Floats) -> float:
        each = weights[index] * of_row
        ours, theirs = np.where(is_real, each, 0.0), np.where(is_real, 0.0, each)
        if len(first) < len(order):
            ours, theirs = (np.add.reduceat(side, first) for side in (ours, theirs))
        pairs = ours.sum() * theirs.sum()
        below = np.cumsum(theirs) - theirs / 2
        return float(ours @ below / pairs) if pairs > 0 else float("nan")

    return share
