"""Whether a number of an evaluation is good, compared with floor, baseline and ideal, in words."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from crpipe.report.evaluations import COLUMNS

if TYPE_CHECKING:
    from crpipe.report.evaluations import Evaluation, Measure

GOOD, FAIR, BAD, UNKNOWN = "good", "fair", "bad", "unknown"
SIGNS = {GOOD: "✓", FAIR: "~", BAD: "✗", UNKNOWN: ""}
ERRORS = 2.0  # two numbers are equal if they differ by less than this many errors
FAR = 3.0  # times the floor's distance from the ideal, from which a number is bad
RULE = (
    f"Good: equal to the floor (the events simulated a second time) within {ERRORS:g} errors, or, without a "
    f"floor, better than the baseline. Bad: not better than the baseline, or more than {FAR:g} times as far "
    "from the ideal as the floor. Fair: what is between."
)
# What a person may have to look up, by the word in a metric's title.
TERMS = {
    "W1": "W1 (Wasserstein distance): how far the predicted distribution has to be moved, on average, to "
    "become the true one; in the unit of the quantity, 0 if both are equal.",
    "AUC": "AUC: a classifier is trained to separate predicted from true events; AUC is the share of pairs "
    "that it orders correctly. 0.5: it cannot separate them; 1: it always can.",
    "quantile": "p % quantile: p % of the events have a smaller value.",
    "pull": "pull: residual / predicted error; a width of 1 means that the predicted errors are right.",
}


@dataclass(frozen=True, slots=True)
class Mark:
    """How good one number is: ``level`` (good, fair, bad, unknown), and why in words."""

    level: str
    text: str

    @property
    def sign(self) -> str:
        """One character for the level; empty where nothing is known."""
        return SIGNS[self.level]


def mark(found: Evaluation, measure: Measure) -> Mark:
    """Judge one number of an evaluation against its floor, baseline and ideal."""
    own = _distance(found, measure, "values")
    if own is None:
        return Mark(UNKNOWN, "")
    floor, baseline = (_distance(found, measure, column) for column in ("again", "baseline"))
    if floor is not None and _reaches(own, floor):
        return Mark(GOOD, "reaches the floor")
    if baseline is not None and not _beats(own, baseline):
        return Mark(
            BAD, "worse than the baseline" if _beats(baseline, own) else "no better than the baseline"
        )
    if floor is not None:
        return _above(own[0], floor[0], measure)
    if baseline is not None:
        return Mark(GOOD, "better than the baseline")
    return Mark(UNKNOWN, "")


def _above(own: float, floor: float, measure: Measure) -> Mark:
    """Say how many times farther from the ideal than the floor a number is, where that can be said."""
    if measure.ideal is None or floor <= 0 or measure.better == "high":
        return Mark(FAIR, "does not reach the floor")
    factor = own / floor
    return Mark(BAD if factor > FAR else FAIR, f"{factor:.2g} times as far from the ideal as the floor")


def _distance(found: Evaluation, measure: Measure, column: str) -> tuple[float, float] | None:
    """Give a number that is smaller for a better value, with its error."""
    number = found.number(column, measure.name)
    if number is None:
        return None
    value, error = number
    better = measure.better
    if better == "low" and measure.ideal is not None:
        distance: float | None = abs(value - measure.ideal)
    else:
        distance = measure.distance(value)
    return None if distance is None or not math.isfinite(distance) else (distance, error or 0.0)


def _reaches(own: tuple[float, float], floor: tuple[float, float]) -> bool:
    return own[0] - floor[0] <= ERRORS * math.hypot(own[1], floor[1])


def _beats(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return other[0] - one[0] > ERRORS * math.hypot(one[1], other[1])


def terms_of(found: Evaluation) -> list[str]:
    """List the explanations of what the shown metrics are called."""
    titles = " ".join(measure.title for measure in found.measures())
    return [text for word, text in TERMS.items() if re.search(rf"\b{word}\b", titles)]


def compared_with(found: Evaluation) -> list[str]:
    """Explain the columns that an evaluation has besides the model."""
    meanings = {
        "again": f"{COLUMNS['again']} (the floor): the same events simulated with other random numbers; a "
        "perfect model differs from the truth by as much.",
        "baseline": f"{COLUMNS['baseline']}: a simple estimate without a network, which a model has to beat.",
    }
    return [text for column, text in meanings.items() if column in found.columns]
