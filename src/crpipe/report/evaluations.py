"""The evaluations of a run: metrics.json of each evaluated checkpoint, whatever its workload measures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from crpipe.core.errors import ConfigError, DataError
from crpipe.core.files import read_json_if_any
from crpipe.core.text import measured
from crpipe.events.layout import Metric

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from crpipe.campaign.campaign import Campaign

ERROR = "_error"  # after a name: the error of that number
# The columns of metrics.json, and their headings: the model, then what it is compared with.
COLUMNS = {"values": "model", "again": "simulated again", "baseline": "baseline"}
_DIRECTIONS = {"low": "lower is better{0}", "high": "higher is better{0}", "near": "best near {1}"}


@dataclass(frozen=True, slots=True)
class Measure:
    """How one number is shown; ``direction`` is empty for a number that the workload does not declare.

    need: what the evaluation needs to measure it, in words.
    """

    name: str
    title: str
    direction: str = ""
    ideal: float | None = None
    better: str = ""
    need: str = ""

    def distance(self, value: float) -> float | None:
        """Return a number that is smaller for a better value; None where no direction is declared."""
        if self.better == "near":
            return None if self.ideal is None else abs(value - self.ideal)
        return {"low": value, "high": -value}.get(self.better)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The numbers of one checkpoint.

    link: its place in the chain, from 1; name: the link's name; path: of its metrics.json.
    declared: the metrics that the workload declares, in its order.
    part: which held-out events it was judged on: test or validation.
    columns: for each key of COLUMNS that the file holds, its numbers by name.
    events, groups: how many judged it; None where the file does not say.
    """

    link: int
    name: str
    path: Path
    declared: tuple[Measure, ...]
    columns: Mapping[str, Mapping[str, float]]
    part: str = "validation"
    events: int | None = None
    groups: int | None = None

    def measures(self) -> list[Measure]:
        """List what a person is shown: the declared metrics, or every number when none is declared."""
        return list(self.declared) or self.undeclared()

    def missing(self) -> list[Measure]:
        """List the declared metrics of which no column has a number."""
        return [each for each in self.declared if not any(self.number(key, each.name) for key in COLUMNS)]

    def undeclared(self) -> list[Measure]:
        """List the numbers that no metric declares, under their own names."""
        names = list(dict.fromkeys(name for column in self.columns.values() for name in column))
        errors = {name + ERROR for name in names}
        declared = {measure.name for measure in self.declared}
        return [Measure(name, name) for name in names if name not in errors | declared]

    def number(self, column: str, name: str) -> tuple[float, float | None] | None:
        """Return one number of a column with its error, ``None`` when the column lacks it."""
        numbers = self.columns.get(column, {})
        return (numbers[name], numbers.get(name + ERROR)) if name in numbers else None

    def text(self, column: str, name: str) -> str:
        """Write one number of a column with its error, ``-`` when the column lacks it."""
        found = self.number(column, name)
        return "-" if found is None else measured(*found)


def evaluations(campaign: Campaign) -> Iterator[Evaluation]:
    """Read the existing evaluations, newest link first; raise DataError when one is damaged."""
    links = campaign.chain.names
    for place in range(len(links), 0, -1):
        name = links[place - 1]
        path = campaign.paths.evaluation(name) / "metrics.json"
        tree = read_json_if_any(path)
        if tree is not None:
            yield read_evaluation(place, name, path, tree)


def read_evaluation(link: int, name: str, path: Path, tree: Mapping[str, Any]) -> Evaluation:
    """Check the content of a metrics.json; leave out values that are no numbers."""
    try:
        declared = tuple(_measure(Metric(**row)) for row in tree.get("metrics", ()))
        columns = {key: _numbers(tree[key]) for key in COLUMNS if tree.get(key)}
    except (ConfigError, TypeError, KeyError, AttributeError) as error:
        raise DataError(f"{path}: damaged ({error!r}); delete it and evaluate again") from error
    sizes = (tree.get(key) for key in ("events", "groups"))
    events, groups = (size if isinstance(size, int) else None for size in sizes)
    part = str(tree.get("part", "validation"))
    return Evaluation(link, name, path, declared, columns, part, events, groups)


def measures_of(found: Iterable[Evaluation]) -> list[Measure]:
    """List what is shown of several evaluations: each measure once, those of the first evaluation first."""
    return list({measure.name: measure for one in found for measure in one.measures()}.values())


def _measure(metric: Metric) -> Measure:
    title = f"{metric.title} ({metric.unit})" if metric.unit else metric.title
    ideal = "" if metric.ideal is None else f"{metric.ideal:g}"
    text = _DIRECTIONS[metric.better].format(f", ideal {ideal}" if ideal else "", ideal or "its ideal")
    return Measure(metric.name, title, text, metric.ideal, metric.better, metric.need)


def _numbers(column: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in column.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


# The numbers of an evaluation as a Markdown table, with the titles that the workload declares.


_TITLES = {"values": "model", "baseline": "baseline", "again": "simulated again"}


def score_table(metrics: Iterable[Metric], scores: Mapping[str, Mapping[str, float]]) -> str:
    """Lay out the values beside those of the baseline and of a second simulation, where there are any.

    Declared metrics come first, in their order; the others follow under their own names.
    """
    kinds = [kind for kind in _TITLES if kind in scores]
    lines = [
        f"| metric | {' | '.join(_TITLES[kind] for kind in kinds)} |",
        "|---" * (len(kinds) + 1) + "|",
    ]
    for name, title in _rows(metrics, scores["values"]):
        lines.append(f"| {title} | {' | '.join(_cell(scores[kind], name) for kind in kinds)} |")
    return "\n".join(lines)


def _rows(metrics: Iterable[Metric], values: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    declared = {metric.name: metric for metric in metrics}
    for name, metric in declared.items():
        if name in values:
            yield name, f"{metric.title}, in {metric.unit}" if metric.unit else metric.title
    for name in values:
        if name not in declared and not name.endswith(ERROR):
            yield name, name


def _cell(values: Mapping[str, float], name: str) -> str:
    if name not in values:
        return ""
    error = values.get(name + ERROR)
    return f"{values[name]:.4g}" + ("" if error is None else f" ± {error:.2g}")
