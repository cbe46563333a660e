"""Which of several generators made a true event? A classifier of what they generate is asked.

The log-posterior of the CaloChallenge (arXiv:2410.21611, after arXiv:2211.11765): a classifier learns to tell
the generators' events from each other; of true events, it gives the largest probability to the generator
whose events are most like them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from crpipe.core.errors import require
from crpipe.statistics.classifier import FEWEST_GROUPS, LabelledRows, label_chances, rounded
from crpipe.statistics.groups import folds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

PARTS = 5
_WHY = "for the log-posterior of several models"
_LEAST = 1e-12  # chance: one event must not decide


def log_posteriors(models: Sequence[LabelledRows]) -> Floats | None:
    """Return the mean log-posterior of each of K generators over true rows: [PARTS, K].

    It is -log(K) for all if they are alike. models: what each generated, beside the same true rows, with the
    same groups. Each of PARTS classifiers learns from groups of its own and is asked about the others: they
    scatter by what they happened to learn from. None for fewer than FEWEST_GROUPS groups in a part.
    """
    require("sklearn.ensemble", extra="evaluate", why=_WHY)
    truth, first = models[0], models[0].real
    parts = [(truth, first), *((rows, ~rows.real) for rows in models)]
    groups = [rows.group[rows.event[part]] for rows, part in parts]
    if min(len(np.unique(each)) for each in groups) < PARTS * FEWEST_GROUPS:
        return None
    table = rounded(np.concatenate([rows.features[part] for rows, part in parts]))
    label = np.repeat(np.arange(len(parts)), [len(each) for each in groups])  # 0: true
    weight = np.concatenate([rows.weight[part] / rows.weight[part].sum() for rows, part in parts])
    fold = folds(np.concatenate(groups), PARTS, 0)
    values = []
    for number in range(PARTS):
        learned, judged = (fold == number) & (label > 0), (fold != number) & (label == 0)
        share = weight[learned] * (learned.sum() / weight[learned].sum())
        given = table[learned], label[learned], share, table[judged]
        chance = np.log(np.maximum(label_chances(*given, why=_WHY, early_stopping=True), _LEAST))
        values.append(np.average(chance, axis=0, weights=weight[judged]))
    return np.array(values)
