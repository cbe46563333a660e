"""The evaluations of a run: a row for each number, with what it is, and its values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from crpipe.campaign.records import BinRow, EvaluationRecord
from crpipe.core.errors import ConfigError, DataError
from crpipe.core.text import counted, measured
from crpipe.events.layout import Metric

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from crpipe.campaign.campaign import Campaign
    from crpipe.core.paths import Paths

Number = tuple[float, float | None]  # a value and its error, None where that is not known
ERROR = "_error"  # after a name: the error of that number
# The columns of metrics.json, and their headings: the model, then what it is compared with.
MODEL, AGAIN, HALVES, BASELINE = "values", "again", "halves", "baseline"
COLUMNS = {MODEL: "model", AGAIN: "simulated again", HALVES: "half of the truth", BASELINE: "baseline"}
FLOORS = (AGAIN, HALVES)
_DIRECTIONS = {"low": "lower is better{0}", "high": "higher is better{0}", "near": "best near {1}"}


@dataclass(frozen=True, slots=True)
class MetricRow:
    """One number of an evaluation.

    metric: what the workload declares of it; None for a number that it does not declare.
    numbers: by column; a column without this number is not there.
    """

    name: str
    metric: Metric | None
    numbers: Mapping[str, Number]

    @property
    def title(self) -> str:
        """What the number is called, with its unit."""
        return self.titled("{} ({})")

    def titled(self, form: str) -> str:
        """Write title and unit, where there is one, in some form."""
        if self.metric is None:
            return self.name
        return form.format(self.metric.title, self.metric.unit) if self.metric.unit else self.metric.title

    @property
    def better(self) -> str:
        """Which direction is better: low, high or near; empty for a number that is not declared."""
        return self.metric.better if self.metric else ""

    @property
    def ideal(self) -> float | None:
        """The best possible value, where there is one."""
        return self.metric.ideal if self.metric else None

    @property
    def need(self) -> str:
        """What the evaluation needs to measure it, in words."""
        return self.metric.need if self.metric else ""

    @property
    def direction(self) -> str:
        """Which direction is better, in words; empty for a number that is not declared."""
        if self.metric is None:
            return ""
        ideal = "" if self.ideal is None else f"{self.ideal:g}"
        return _DIRECTIONS[self.better].format(f", ideal {ideal}" if ideal else "", ideal or "its ideal")

    def text(self, column: str, write: Callable[[float, float | None], str] = measured) -> str:
        """Write the number of one column with its error, ``-`` when the column lacks it."""
        return write(*self.numbers[column]) if column in self.numbers else "-"

    def distance(self, value: float) -> float | None:
        """Return a number that is smaller for a better value; None where no direction is declared."""
        if self.better == "near":
            return None if self.ideal is None else abs(value - self.ideal)
        return {"low": value, "high": -value}.get(self.better)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The numbers of one checkpoint.

    record: the content of metrics.json; path: that file. name: the link's name; link: its place in the chain,
    from 1, or 0. rows: by the names of their numbers, those that the workload declares first, in its order.
    """

    record: EvaluationRecord
    path: Path
    name: str
    link: int
    rows: Mapping[str, MetricRow]

    @classmethod
    def of(cls, record: EvaluationRecord, path: Path, link: int = 0) -> Evaluation:
        """Describe the numbers of a record; leave out values that are no numbers."""
        try:
            declared = {metric.name: metric for metric in (Metric(**row) for row in record.metrics or ())}
        except (ConfigError, TypeError) as error:
            raise DataError(f"{path}: damaged ({error!r}); delete it and evaluate again") from error
        columns = {column: _finite(getattr(record, column) or {}) for column in COLUMNS}
        keys = dict.fromkeys(name for numbers in columns.values() for name in numbers)
        names = [*declared, *(name for name in keys if name not in declared and not _is_error(name, keys))]
        rows = {
            name: MetricRow(
                name,
                declared.get(name),
                {
                    column: (numbers[name], numbers.get(name + ERROR))
                    for column, numbers in columns.items()
                    if name in numbers
                },
            )
            for name in names
        }
        return cls(record, path, path.parent.name, link, rows)

    @property
    def part(self) -> str:
        """Which held-out events judged it: test or validation."""
        return self.record.part or "validation"

    @property
    def columns(self) -> list[str]:
        """The columns that the file holds."""
        return [column for column in COLUMNS if getattr(self.record, column)]

    def shown(self) -> list[MetricRow]:
        """List what a person is shown: the declared metrics, or every number when none is declared."""
        declared = [row for row in self.rows.values() if row.metric is not None]
        return declared or list(self.rows.values())

    def others(self) -> list[MetricRow]:
        """List the numbers that are not shown."""
        shown = self.shown()
        return [row for row in self.rows.values() if row not in shown]

    def tables(self) -> list[tuple[str, tuple[BinRow, ...]]]:
        """List the numbers that come from tables, with the rows of these."""
        tables = self.record.tables or {}
        return [(row.title, tables[row.name]) for row in self.shown() if tables.get(row.name)]

    def missing(self) -> list[MetricRow]:
        """List the declared metrics of which no column has a number."""
        return [row for row in self.rows.values() if not row.numbers]

    def too_few_for(self) -> list[MetricRow]:
        """List the missing ones that may need more groups than were held out."""
        groups = self.record.groups
        return [
            row
            for row in self.missing()
            if row.metric is not None and (row.metric.needs or not groups or row.metric.groups > groups)
        ]

    def sample(self) -> str:
        """Describe how many held-out groups judged it, or events where groups are not known."""
        if self.record.groups:
            return counted(self.record.groups, "group")
        return counted(self.record.events, "event") if self.record.events else "these events"


def _finite(column: Mapping[str, object]) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in column.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def _is_error(name: str, names: Iterable[str]) -> bool:
    return name.endswith(ERROR) and name.removesuffix(ERROR) in names


def evaluations(campaign: Campaign) -> Iterator[Evaluation]:
    """Read the evaluations of the chain, newest link first; raise DataError when one is damaged."""
    links = campaign.chain.names
    for number in range(len(links), 0, -1):
        path = metrics_file(campaign.paths, links[number - 1])
        record = EvaluationRecord.read_if_any(path)
        if record is not None:
            yield Evaluation.of(record, path, number)


def every_evaluation(paths: Paths) -> list[Evaluation]:
    """Read all evaluations of a run by name, those of best checkpoints and of other chains too."""
    files = sorted(metrics_file(paths, "x").parent.parent.glob("*/metrics.json"))
    return [Evaluation.of(EvaluationRecord.read(path), path) for path in files]


def metrics_file(paths: Paths, name: str) -> Path:
    """Return where the numbers of a link's evaluation are."""
    return paths.evaluation(name) / "metrics.json"


def score_table(
    columns: Sequence[str],
    rows: Iterable[MetricRow],
    model: str = "model",
    *,
    digits: tuple[str, str] = (".4g", ".2g"),
    corner: str = "",
    best: bool = False,
) -> Iterator[str]:
    """Yield the lines of a table in Markdown, with the rows of which the model has a number.

    columns: of the evaluation. model: the heading of its own numbers. digits: how a value and how an error is
    written. best: whether the last column is the best possible value, or which direction is better.
    """

    def write(value: float, error: float | None) -> str:
        return f"{value:{digits[0]}}" + ("" if error is None else f" ± {error:{digits[1]}}")

    headings = COLUMNS | {MODEL: model}
    present = [column for column in (MODEL, BASELINE, *FLOORS) if column in columns]
    heads = [corner, *(headings[column] for column in present), *(["best"] if best else [])]
    yield "| ".join(["", *(f"{head} " if head else "" for head in heads)]) + "|"
    yield "|---" * len(heads) + "|"
    for row in rows:
        if MODEL in row.numbers:
            cells = [row.titled("{}, in {}")]
            cells += [row.text(column, write) if column in row.numbers else "" for column in present]
            cells += [row.better if row.ideal is None else f"{row.ideal:g}"] if best else []
            yield f"| {' | '.join(cells)} |"


def terms_of(evaluation: Evaluation) -> list[str]:
    """List what the workload explains of the shown metrics, each text once."""
    meanings = [row.metric.meaning for row in evaluation.shown() if row.metric is not None]
    return [*dict.fromkeys(text for text in meanings if text)]


def compared_with(evaluation: Evaluation) -> list[str]:
    """Explain the columns that an evaluation has besides the model."""
    meanings = {
        AGAIN: f"{COLUMNS[AGAIN]} (the floor): the same events simulated with other random numbers; a "
        "perfect model differs from the truth by as much.",
        HALVES: f"{COLUMNS[HALVES]} (the floor): one half of the groups in place of generated events, judged "
        "by the other half; a perfect model differs from the truth by as much.",
        BASELINE: f"{COLUMNS[BASELINE]}: a simple estimate without a network, which a model has to beat.",
    }
    return [text for column, text in meanings.items() if column in evaluation.columns]
