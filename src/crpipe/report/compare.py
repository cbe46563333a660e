"""``crpipe compare``: several runs side by side, from their files: keys, sizes, evaluations, curves."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from crpipe.campaign.code import used_code
from crpipe.campaign.records import Receipt, SkippedRange
from crpipe.config.loading import check_choice
from crpipe.config.plugins import called_now
from crpipe.core.causes import is_present
from crpipe.core.errors import ConfigError
from crpipe.core.files import read_json
from crpipe.core.journal import JOURNAL_BYTES, Row, tail
from crpipe.core.paths import BEST, Paths
from crpipe.core.records import skipped_names
from crpipe.core.text import Column, counted, measured, number, table
from crpipe.report.evaluations import MODEL, Evaluation, MetricRow, every_evaluation
from crpipe.report.figure_context import FigureContext, figures_of
from crpipe.report.figure_style import COLOURS, new_figure, note, save, style
from crpipe.report.series import VALIDATION, is_loss, pick, smoothed, smoothing, window_of
from crpipe.report.verdicts import tolerance
from crpipe.statistics.verdict import DIFFERS, SMALL, Difference, levels

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path


_WIDTH = 10_000  # no column is cut
_MOST_ROWS = 5000
_MOST_PANELS = 12
_PANEL, _LINE = 2.2, 0.25  # inches, of a panel and of a line of the legend
_LETTERS = 100  # of a line of the legend
_DASHES = ("-", "--", ":", "-.")  # of more runs than there are colours


@dataclass(frozen=True, slots=True)
class RunFiles:
    """What one run has left.

    keys: those of scope data and train. code: that of its workload. processes: of its newest job. receipts:
    of the finished links, by their steps. rows: its metrics.
    evaluation: the newest one; None without any. skipped: ranges of the data that stayed bad, in words.
    """

    name: str
    keys: Mapping[str, Any] = field(default_factory=dict)
    code: str = "-"
    processes: int | None = None
    receipts: tuple[Receipt, ...] = ()
    rows: tuple[Row, ...] = ()
    evaluation: Evaluation | None = None
    skipped: tuple[str, ...] = ()

    @classmethod
    def read(cls, paths: Paths) -> RunFiles:
        """Read the files of a run; raise ConfigError naming the existing runs when there is none."""
        if not is_present(paths.run_config()):
            names = sorted(path.parent.name for path in paths.runs.glob("*/campaign.json"))
            raise ConfigError(
                f"{paths.run}: no run of this name has begun training in {paths.runs}; there are: "
                f"{', '.join(names) or 'none'}"
            )
        files = paths.run_dir().glob("ranges/*.json")
        receipts = [Receipt.read(path) for path in files if not path.name.endswith(BEST)]
        return cls(
            paths.run,
            read_json(paths.run_config()),
            " ".join(str(code) for code in used_code(paths.run_code()).values()) or "-",
            _processes(paths),
            tuple(sorted(receipts, key=lambda receipt: receipt.step)),
            tuple(_rows(paths)),
            max(every_evaluation(paths), key=lambda one: one.record.step or 0, default=None),
            tuple(SkippedRange.read(paths.skipped(name)).describe() for name in sorted(skipped_names(paths))),
        )

    def total(self, kind: str) -> str:
        """Write how many steps, events or items were trained on, in unfinished links too."""
        counts = [getattr(receipt, kind) for receipt in self.receipts[-1:]]
        counts += [row[kind] for row in self.rows[-1:] if kind in row]
        return number(max(counts)) if counts else "-"

    def events_in_a_step(self) -> str:
        """Write how many events a step took in the mean."""
        steps, events = (
            sum(getattr(receipt, kind) for receipt in self.receipts[-1:]) for kind in ("step", "events")
        )
        return number(round(events / steps)) if steps else "-"

    def validation(self) -> dict[str, float]:
        """Return the last numbers of validation inside the training, by name."""
        metrics: dict[str, float] = {}
        for row in self.rows:
            metrics |= {name: value for name, value in row.items() if name.startswith(VALIDATION)}
        return metrics


def _processes(paths: Paths) -> int | None:
    """Return how many processes the newest job of training had; None where that is not known."""
    rows = tail(paths.train_journal(), JOURNAL_BYTES, b'"machine"')
    return next((row.get("ranks") for row in reversed(rows) if row.get("what") == "machine"), None)


def read_runs(paths: Paths, names: Sequence[str]) -> list[RunFiles]:
    """Read the runs to compare, each once; raise ConfigError when one does not exist."""
    return [RunFiles.read(Paths(paths.results, paths.runs, name)) for name in dict.fromkeys(names)]


@dataclass(frozen=True, slots=True)
class ComparedTable:
    """One table of a comparison: columns (empty where there is nothing to compare), and lines below it."""

    title: str
    columns: list[Column]
    notes: list[str]

    def lines(self) -> list[str]:
        """Lay it out for a terminal."""
        return [*(table(self.columns, _WIDTH) if self.columns else ()), *self.notes]


def compared_tables(runs: Sequence[RunFiles], by: str = "", usual: str = "") -> list[ComparedTable]:
    """Tabulate what differs between runs: rank, keys, sizes of the training, evaluations, validation."""
    return [
        ranking(runs, by, usual),
        ComparedTable("keys that differ", *_keys(runs)),
        ComparedTable("training", _sizes(runs), [f"skipped: {name}" for name in runs[0].skipped]),
        ComparedTable("newest evaluation", *_metrics(runs)),
        ComparedTable("last validation in training", *_validation(runs)),
    ]


def render_tables(tables: Iterable[ComparedTable]) -> str:
    """Write tables below each other."""
    lines = [line for each in tables for line in _section(each.title, each.lines())]
    return "\n".join(lines).rstrip()


def evaluation_folders(runs: Sequence[RunFiles]) -> dict[str, Path]:
    """Return the folder of each run's newest evaluation; raise ConfigError unless two or more have one."""
    for run in runs:
        if run.evaluation is None:
            raise ConfigError(f"{run.name}: not evaluated: crpipe evaluate")
    if len(runs) < 2:  # noqa: PLR2004
        raise ConfigError("--posterior needs two runs or more")
    return {run.name: run.evaluation.path.parent for run in runs if run.evaluation}


def plot_comparison(runs: Sequence[RunFiles], path: Path) -> Path:
    """Plot the losses of all runs over each other, a panel for each, with those of the validation."""
    curves = {run.name: {one.name: one for one in pick(run.rows, _is_curve)} for run in runs}
    names = sorted({name for series in curves.values() for name in series})[:_MOST_PANELS]
    if not names:
        raise ConfigError(f"none of the runs {', '.join(curves)} has metrics to plot; train them first")
    window = window_of([row for run in runs for row in run.rows])
    columns = max(1, min(6, _LETTERS // (6 + max(map(len, curves)))))
    context = f"runs {', '.join(curves)}" if len(curves) <= columns else counted(len(curves), "run")
    with style(), figures_of(FigureContext(context)):
        figure = new_figure(0.8 + _LINE * -(-len(curves) // columns) + _PANEL * len(names))
        axes = figure.subplots(len(names), sharex=True, squeeze=False)[:, 0]
        for axis, name in zip(axes, names, strict=True):
            for index, (run, series) in enumerate(curves.items()):
                if name not in series:
                    continue
                colour, dashes = COLOURS[index % len(COLOURS)], _DASHES[index // len(COLOURS) % len(_DASHES)]
                one = series[name]
                mean = one if name.startswith(VALIDATION) else smoothed(one, window)
                axis.plot(one.steps, one.values, color=colour, alpha=0.3, linewidth=0.7)
                axis.plot(mean.steps, mean.values, dashes, color=colour, label=run)
                note(figure, name, run, step=one.steps, value=one.values, mean=mean.values)
            axis.set_title(name, loc="left")
        lines = {line.get_label(): line for axis in axes for line in axis.get_lines()}
        seen = [run for run in curves if run in lines]
        figure.legend([lines[run] for run in seen], seen, loc="outside lower center", ncols=columns)
        axes[-1].set_xlabel(f"training step{smoothing(window)}")
        return save(figure, path)


def _is_curve(name: str) -> bool:
    return is_loss(name) or name.startswith(VALIDATION)


def _rows(paths: Paths) -> Iterator[Row]:
    """Yield the metrics of all links in the order of their steps, some of them when there are many."""
    rows = []
    for path in paths.run_dir().glob("store/*/metrics.jsonl"):
        rows += [row for row in tail(path, sys.maxsize) if type(row.get("step")) is int]
    rows.sort(key=lambda row: int(row["step"]))
    stride = max(1, len(rows) // _MOST_ROWS)
    for index, row in enumerate(rows):
        # Rows of validation are few, and all of them are shown.
        if index % stride == 0 or index == len(rows) - 1 or any(name.startswith(VALIDATION) for name in row):
            yield row


def _section(title: str, lines: Sequence[str]) -> list[str]:
    return [title, *(f"  {line}" for line in lines), ""]


_Parts = tuple[list[Column], list[str]]  # columns, and lines below them


def _keys(runs: Sequence[RunFiles]) -> _Parts:
    changed = _changed(runs)
    if not changed:
        return [], ["none"]
    columns = [Column(run.name, [_value(run.keys, name) for name in changed]) for run in runs]
    return [Column("key", list(map(called_now, changed))), *columns], []


def _changed(runs: Sequence[RunFiles]) -> list[str]:
    """List the keys in which runs differ."""
    names = sorted({name for run in runs for name in run.keys})
    return [name for name in names if len({_value(run.keys, name) for run in runs}) > 1]


def _value(keys: Mapping[str, Any], name: str) -> str:
    return json.dumps(keys[name]).strip('"') if name in keys else "-"


def _sizes(runs: Sequence[RunFiles]) -> list[Column]:
    kinds = {"steps": "step", "events": "events", "items": "items", "skipped steps": "skipped"}
    titles = ["links finished", "last link", *kinds, "events in a step", "processes", "code"]
    columns = []
    for run in runs:
        last = run.receipts[-1].range if run.receipts else "-"
        cells = [str(len(run.receipts)), last, *(run.total(kind) for kind in kinds.values())]
        cells += [run.events_in_a_step(), "-" if run.processes is None else str(run.processes), run.code]
        columns.append(Column(run.name, cells, right=True))
    return [Column("", titles), *columns]


def _metrics(runs: Sequence[RunFiles]) -> _Parts:
    rows_of = {run.name: run.evaluation.rows if run.evaluation else {} for run in runs}
    by_name = {row.name: row for run in runs if run.evaluation for row in run.evaluation.shown()}
    if not any(run.evaluation for run in runs):
        return [], ["none of them is evaluated"]
    columns = [
        Column(run, [rows[name].text(MODEL) if name in rows else "-" for name in by_name])
        for run, rows in rows_of.items()
    ]
    verdicts = [_better(row, runs) for row in by_name.values()]
    titles = [f"{row.title} ({row.direction})" if row.direction else row.title for row in by_name.values()]
    samples = [f"{run.name}: {_sample(run.evaluation)}" for run in runs]
    return [Column("metric", titles), *columns, Column("better", verdicts)], samples


def _sample(evaluation: Evaluation | None) -> str:
    """Write which checkpoint was evaluated, and on how many events."""
    if evaluation is None:
        return "not evaluated"
    record = evaluation.record
    part = f" of the {record.part} part" if record.part else ""
    events = "events not counted" if record.events is None else f"{counted(record.events, 'event')}{part}"
    return f"{evaluation.name}, {events}"


def _better(metric: MetricRow, runs: Sequence[RunFiles]) -> str:
    """Name the run with the best number, and say in a verdict's word how the next one differs from it."""
    scores = sorted(score for run in runs if (score := _score(run, metric.name)))
    if len(scores) < 2:  # noqa: PLR2004 - nothing to compare with
        return "-"
    word = _difference(scores[1], scores[0], tolerance(metric)).word()
    return scores[0].run if word == DIFFERS else f"{scores[0].run} ({word})" if word == SMALL else word


# Which run is best, by one number.


@dataclass(frozen=True, slots=True, order=True)
class _Score:
    """The number by which a run is ranked: cost is smaller for a better one; error is nan where not known."""

    cost: float
    run: str
    error: float
    groups: float
    text: str
    tolerance: float


def _score(run: RunFiles, name: str) -> _Score | None:
    """Return a run's number, of its newest evaluation or the best loss of its validations.

    None without a finite one, and for tables: their numbers are those of different bins.
    """
    row = run.evaluation.rows.get(name) if run.evaluation else None
    if row is not None and run.evaluation is not None and MODEL in row.numbers:
        value, error = row.numbers[MODEL]
        cost, record = row.distance(value), run.evaluation.record
        if cost is None or not math.isfinite(cost) or name in (record.tables or {}):
            return None
        groups = record.effective_groups or record.groups or record.events or 0
        error = math.nan if error is None else error
        return _Score(cost, run.name, error, groups, row.text(MODEL), tolerance(row))
    losses = [row[VALIDATION + name] for row in run.rows if VALIDATION + name in row]
    best = min(filter(math.isfinite, losses), default=math.inf)
    is_known = name.endswith("/loss") and math.isfinite(best)
    return _Score(best, run.name, math.nan, 0, measured(best), 0.0) if is_known else None


def _difference(one: _Score, best: _Score, limit: float) -> Difference:
    groups, error = min(one.groups, best.groups), math.hypot(one.error, best.error)
    return Difference(one.cost - best.cost, error, 0, limit, effective=groups)


def ranking(runs: Sequence[RunFiles], by: str = "", usual: str = "", *, keys: bool = False) -> ComparedTable:
    """Rank runs by one number, the best first; keys: with those in which they differ beside it.

    by: a metric of the evaluation, or a loss of the validation; empty: ``usual``, or the first that is there.
    Runs without the number are last. Raise ConfigError for a number that no run has.
    """
    shown = [row for run in runs if run.evaluation for row in run.evaluation.shown()]
    titles = {row.name: ", ".join(filter(None, (row.title, row.direction))) for row in shown}
    for name in sorted({name.removeprefix(VALIDATION) for run in runs for name in run.validation()}):
        titles.setdefault(name, f"best {VALIDATION}{name}, lower is better")
    legal = [name for name in titles if any(_score(run, name) for run in runs)]
    if by:
        check_choice("--by", by, legal)
    by = by or (usual if usual in legal else next(iter(legal), ""))
    scores = sorted(score for run in runs if (score := _score(run, by)))
    gaps = [_difference(each, scores[0], each.tolerance) for each in scores[1:]]
    limits = levels([gap.chance for gap in gaps])
    words = ["best", *(gap.word(limit) for gap, limit in zip(gaps, limits, strict=True))]
    costs = [each.cost for each in scores]
    cells = {
        each.run: (str(1 + costs.index(each.cost)), each.text, word)
        for each, word in zip(scores, words, strict=False)
    }
    order = [*cells, *(run.name for run in runs if run.name not in cells)]
    rows = sorted(runs, key=lambda run: order.index(run.name))
    ranks, texts, seen = zip(*(cells.get(run.name, ("-", "-", "-")) for run in rows), strict=True)
    measures = [Column(by, texts)] if by else []
    if any(math.isfinite(each.error) for each in scores):
        measures.append(Column("beside the best", seen))
    measures.append(Column("evaluated", [run.evaluation.name if run.evaluation else "-" for run in rows]))
    title = f"ranked by {titles[by]}" if by else "not ranked: no run has a number to rank it by"
    columns = [Column("", ranks, right=True), *_run_columns(rows, measures, keys=keys)]
    return ComparedTable(title, columns, [])


def runs_table(runs: Sequence[RunFiles], title: str) -> ComparedTable:
    """Tabulate runs with the keys in which they differ, one a line."""
    return ComparedTable(title, _run_columns(runs, keys=True), [])


def _run_columns(runs: Sequence[RunFiles], more: Iterable[Column] = (), *, keys: bool) -> list[Column]:
    links = Column("links", [str(len(run.receipts)) for run in runs], right=True)
    changed = _changed(runs) if keys else []
    values = [Column(called_now(name), [_value(run.keys, name) for run in runs]) for name in changed]
    return [Column("run", [run.name for run in runs]), *more, links, *values]


def _validation(runs: Sequence[RunFiles]) -> _Parts:
    numbers = [run.validation() for run in runs]
    names = sorted({name for found in numbers for name in found})
    if not names:
        return [], ["none of them has any (train.validate_every)"]
    columns = [
        Column(run.name, [measured(found[name]) if name in found else "-" for name in names], right=True)
        for run, found in zip(runs, numbers, strict=True)
    ]
    return [Column("", [name.removeprefix(VALIDATION) for name in names]), *columns], []
