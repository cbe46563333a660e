"""What an evaluation shows of each number, by crpipe.statistics.verdict, and of all of them in one line."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from crpipe.core.text import counted, measured, number
from crpipe.report.evaluations import BASELINE, ERROR, FLOORS, MODEL, Evaluation, MetricRow
from crpipe.statistics.verdict import (
    AGREES,
    CANNOT_TELL,
    DIFFERS,
    ERRORS,
    SIGNS,
    SMALL,
    Difference,
    levels,
    worst,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from crpipe.campaign.records import BinRow

RULE = (
    "Agrees: the difference from the floor, or from the ideal where there is no floor, is below the "
    "tolerance even with 2 errors added. Small difference: it is seen, but below the tolerance. Differs: it "
    "is seen, and not below the tolerance. Cannot tell: anything else, with the groups that would be needed. "
    "Errors are those of groups of events; several numbers are judged together by Holm's rule, a table by "
    "its largest deviation among random exchanges of real and generated groups."
)
BETTER, LIKE, WORSE = "better than", "like", "worse than"  # the baseline
Part = tuple[str, str, Difference]  # of a number: its bin (empty: it is no table), its value in words


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is seen of one number, or of all.

    word: one of the four, empty where there is nothing to compare with. text: how far, and how that is known.
    worst_bin: of a table, with its value. errors: how many the difference is off. needed: where it cannot
    tell, the groups that would. baseline: BETTER, LIKE, WORSE or CANNOT_TELL; empty without one. beside: the
    same in a sentence. chance: of such a difference between equal samples.
    """

    word: str = ""
    text: str = ""
    baseline: str = ""
    beside: str = ""
    worst_bin: str = ""
    errors: float = 0.0
    needed: int | None = None
    chance: float = 1.0

    @property
    def sign(self) -> str:
        """One character for the word; empty where nothing is known."""
        return SIGNS.get(self.word, "")

    @property
    def level(self) -> str:
        """The word as the name of a style."""
        return self.word.replace(" ", "-") or "unknown"


def verdicts(evaluation: Evaluation) -> dict[str, Verdict]:
    """Judge each number that is shown, by its name, together with the others."""
    rows = [row for row in evaluation.shown() if MODEL in row.numbers]
    few = evaluation.too_few_for()
    lacking = [row for row in evaluation.shown() if MODEL not in row.numbers and row not in few]
    judged = {row.name: _differences(evaluation, row) for row in rows}
    baselines = {row.name: each for row in rows if (each := _from_baseline(evaluation, row))}
    limits = _limits({name: [one for _, _, one in parts] for name, parts in judged.items() if parts})
    beside = _limits({name: [each] for name, each in baselines.items()})
    none = Verdict(CANNOT_TELL, "the model has no finite number", chance=0.0)
    result = dict.fromkeys((row.name for row in lacking), none)
    for row in rows:
        one = _judge(judged[row.name], limits[row.name]) if judged[row.name] else Verdict()
        if row.name in baselines:
            word, text = _beside(row, baselines[row.name], beside[row.name])
            one = replace(one, baseline=word, beside=text)
        result[row.name] = one
    return result


def overall(evaluation: Evaluation, each: Mapping[str, Verdict]) -> Verdict:
    """Return the worst of the words that ``verdicts`` gave, with the number and the bin that it is due to."""
    title = {row.name: row.title for row in evaluation.shown()}
    word = worst([one.word for one in each.values() if one.word])
    those = sorted((name for name in each if each[name].word == word), key=lambda name: each[name].chance)
    text = ""
    if word == AGREES:
        text = f"all {len(those)} numbers" if len(those) > 1 else title[those[0]]
    elif word:
        text = f"{title[those[0]]}, {each[those[0]].text}"
        if word == DIFFERS and those[1:]:
            text += f"; and {counted(len(those) - 1, 'number')} more"
        bins = [name for name in those[1:] if each[name].worst_bin]
        if word == DIFFERS and bins:
            worst_of = max(bins, key=lambda name: each[name].errors)
            text += f", most of all {title[worst_of]}, {each[worst_of].worst_bin}"
    beside = [one.baseline for one in each.values() if one.baseline]
    against = ""
    if beside:
        parts = {kind: [name for name in each if each[name].baseline == kind] for kind in (BETTER, WORSE)}
        against = f"better than the baseline in {len(parts[BETTER])} of {len(beside)} numbers"
        if parts[WORSE]:
            against += f", worse in {len(parts[WORSE])}: {'; '.join(title[name] for name in parts[WORSE])}"
    return Verdict(word, text, beside=against)


def line(evaluation: Evaluation) -> str:
    """Write the overall verdict in one line."""
    one = overall(evaluation, verdicts(evaluation))
    texts = [f"{one.word}: {one.text}" if one.word else "", one.beside]
    return "; ".join(text for text in texts if text) or "nothing to compare the numbers with"


def _limits(families: Mapping[str, Sequence[Difference]]) -> dict[str, float]:
    """Return the chance below which each family of differences counts as seen, among all of them."""
    chances = [min(each.chance for each in parts) for parts in families.values()]
    return dict(zip(families, levels(chances), strict=True))


def _differences(evaluation: Evaluation, row: MetricRow) -> list[Part]:
    """Return what a number differs by, its bins where it is a table; empty: nothing to compare with."""
    difference, tables = _by_groups(evaluation), evaluation.record.tables or {}
    if row.name in tables:
        return [_of_bin(each, row, difference) for each in tables[row.name]]
    floor = next((kind for kind in FLOORS if kind in row.numbers), None)
    limit, unit = tolerance(row), _unit(row)
    if floor is not None:
        value, error = _difference(evaluation, row, floor)
        most = None
        if row.better == "low" and row.ideal is not None:
            number_of, known = row.numbers[MODEL]
            most, error = number_of - row.ideal, max(error, _or_nan(known))
        near, value = row.better == "near", -value if row.better == "high" else value
        one = difference(value, error, tolerance=limit, two_sided=near, most=most)
        return [("", f"{measured(value, error)}{unit} from the floor", one)] if row.better else []
    if row.better == "near" and row.ideal is not None:
        value, known = row.numbers[MODEL]
        one = difference(value - row.ideal, _or_nan(known), tolerance=limit, two_sided=True)
        return [("", f"{measured(one.value, known)}{unit} away from the ideal {row.ideal:g}", one)]
    return []


def _by_groups(evaluation: Evaluation) -> Callable[..., Difference]:
    """Return what makes a Difference that so many groups were looked at for."""
    record = evaluation.record
    groups = record.groups or record.events or 0
    return partial(Difference, groups=groups, effective=record.effective_groups)


def _of_bin(row: BinRow, metric: MetricRow, difference: Callable[..., Difference]) -> Part:
    value, error = (math.inf if each is None else each for each in (row.value, row.error))
    one = difference(value - row.ideal, error, tolerance=tolerance(metric), two_sided=True, p=row.p)
    text = f"{row.kind} {measured(value, error)}{_unit(metric)}"
    return row.bin, "none is real" if math.isinf(value) else text, one


def _unit(row: MetricRow) -> str:
    return f" {row.metric.unit}" if row.metric and row.metric.unit else ""


def _difference(evaluation: Evaluation, row: MetricRow, kind: str) -> tuple[float, float]:
    """Return the model's number less that of another column, with its error (nan: not known)."""
    known = (evaluation.record.differences or {}).get(kind, {})
    if row.name in known:
        return float(known[row.name]), _or_nan(known.get(row.name + ERROR))
    (value, error), (other, its) = row.numbers[MODEL], row.numbers[kind]
    return value - other, math.hypot(_or_nan(error), _or_nan(its))


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else float(value)


def tolerance(row: MetricRow) -> float:
    """Return the tolerance in the unit of the number; 0 where there is none."""
    if row.metric is None:
        return 0.0
    if not row.metric.relative:
        return row.metric.tolerance
    return row.metric.tolerance * abs(row.numbers[BASELINE][0]) if BASELINE in row.numbers else 0.0


def _judge(parts: list[Part], level: float) -> Verdict:
    """Judge one number; a table by the worst of its bins."""
    words = [one.word(level) for _, _, one in parts]
    word = worst(words)
    those = [part for part, its in zip(parts, words, strict=True) if its == word] or parts
    key, far, one = min(those, key=lambda part: (part[2].chance, -part[2].errors))
    text = _needed(one) if word == CANNOT_TELL else f"{far}, {_allowed(one)}"
    if key:
        text = f"{key}: {text}; {words.count(AGREES)} of {len(parts)} bins agree"
    return Verdict(
        word,
        text,
        worst_bin=f"{key}: {far}" if key else "",
        errors=one.errors,
        needed=one.needed if word == CANNOT_TELL else None,
        chance=min(one.chance for _, _, one in parts),
    )


def _allowed(one: Difference) -> str:
    return f"tolerance {one.tolerance:.2g}" if one.tolerance else "no tolerance declared"


def _needed(one: Difference) -> str:
    """Describe what the groups resolve, and how many would resolve the tolerance."""
    if not math.isfinite(one.resolves):
        return "its error is not known"
    text = f"{counted(one.groups, 'group')} resolve {one.reach:.2g}"
    return text if one.needed is None else f"{text}, {one.tolerance:.2g} needs {rounded(one.needed)}"


def rounded(count: int) -> str:
    """Write a count with two digits: it is an estimate."""
    step = 10 ** max(len(str(count)) - 2, 0)
    return number(-(-count // step) * step)


def _from_baseline(evaluation: Evaluation, row: MetricRow) -> Difference | None:
    """Return how much worse the model is than the baseline; None where that is not known."""
    if BASELINE not in row.numbers or not row.better:
        return None
    value, error = _difference(evaluation, row, BASELINE)
    if row.better == "near":
        if row.ideal is None:
            return None
        ours, theirs = (row.numbers[column] for column in (MODEL, BASELINE))
        value = abs(ours[0] - row.ideal) - abs(theirs[0] - row.ideal)
        sides = {
            math.copysign(abs(each - row.ideal) > ERRORS * _or_nan(its), each - row.ideal)
            for each, its in (ours, theirs)
        }
        if sides not in ({1.0}, {-1.0}):  # else both are surely on one side of the ideal
            error = math.hypot(_or_nan(ours[1]), _or_nan(theirs[1]))
    value = -value if row.better == "high" else value
    return _by_groups(evaluation)(value, error, tolerance=tolerance(row), two_sided=True)


def _beside(row: MetricRow, one: Difference, level: float) -> tuple[str, str]:
    """Describe how the model compares with the baseline."""
    word = one.word(level)
    if word in (DIFFERS, SMALL):
        kind = BETTER if one.value < 0 else WORSE
        return kind, f"{kind} the baseline by {measured(abs(one.value), one.error)}{_unit(row)}"
    if word == AGREES:
        return LIKE, "like the baseline"
    return CANNOT_TELL, f"cannot tell from the baseline: {_needed(one)}"
