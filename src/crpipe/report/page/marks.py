"""What the held-out events say of a number of an evaluation, compared with its floor or ideal, in words."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from crpipe.core.text import counted
from crpipe.report.evaluations import COLUMNS

if TYPE_CHECKING:
    from crpipe.report.evaluations import Evaluation, Measure

SAME, DIFFERS, UNKNOWN = "same", "differs", "unknown"
WORDS = {SAME: "no difference seen", DIFFERS: "differs", UNKNOWN: ""}
SIGNS = {SAME: "≈", DIFFERS: "≠", UNKNOWN: ""}
ERRORS = 2.0  # a difference is seen from this many errors on
RULE = (
    f"Differs: by more than {ERRORS:g} errors from the floor (the events simulated a second time); a number "
    "that has no floor and should be near an ideal, such as a coverage, from that ideal. No difference seen: "
    "by less; the fewer groups of events were held out, the larger a difference may be that is not seen. "
    "No mark: there is nothing to compare with."
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
    """What is seen of one number: ``level`` (same, differs, unknown), and more in words."""

    level: str
    text: str

    @property
    def sign(self) -> str:
        """One character for the level; empty where nothing is known."""
        return SIGNS[self.level]

    @property
    def word(self) -> str:
        """The level in words; empty where nothing is known."""
        return WORDS[self.level]


def mark(found: Evaluation, measure: Measure) -> Mark:
    """Compare one number with its floor, or with its ideal where it should be near one and has no floor."""
    own, floor, baseline = (_distance(found, measure, column) for column in ("values", "again", "baseline"))
    if floor is not None:
        what = "the floor"
    elif measure.better == "near":
        floor, what = (0.0, 0.0), f"the ideal {measure.ideal:g}"
    if own is None or floor is None:
        return Mark(UNKNOWN, "")
    error = math.hypot(own[1], floor[1])
    if not error > 0:
        return Mark(UNKNOWN, "")  # of numbers without errors nobody can say whether they differ
    if abs(own[0] - floor[0]) <= ERRORS * error:
        return Mark(SAME, f"with {sample_of(found)}")
    text = _how_far(own[0], floor[0], measure, what)
    beaten = baseline is None or baseline[0] - own[0] > ERRORS * math.hypot(own[1], baseline[1])
    return Mark(DIFFERS, text if beaten else f"{text}; no better than the baseline")


def sample_of(found: Evaluation) -> str:
    """Describe how many held-out groups judged a model, or events where groups are not known."""
    if found.groups:
        return counted(found.groups, "group")
    return counted(found.events, "event") if found.events else "these events"


def _how_far(own: float, floor: float, measure: Measure, what: str) -> str:
    """Describe how a number differs from its floor or ideal."""
    if own < floor:
        return f"nearer to the ideal than {what}: chance or a leak, no quality"
    if what != "the floor":
        return f"{own:.2g} away from {what}"
    if measure.ideal is None or floor <= 0 or measure.better == "high":
        return "does not reach the floor"
    return f"{own / floor:.2g} times as far from the ideal as the floor"


def _distance(found: Evaluation, measure: Measure, column: str) -> tuple[float, float] | None:
    """Return a number that is smaller for a better value, with its error."""
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
