"""``crpipe compare``: several runs side by side, from their files: keys, sizes, evaluations, curves."""

from __future__ import annotations

import contextlib
import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from crpipe.campaign.code import used_code
from crpipe.campaign.records import Receipt, SkippedRange
from crpipe.config.plugins import called_now
from crpipe.core.causes import is_present
from crpipe.core.errors import ConfigError
from crpipe.core.files import read_json
from crpipe.core.journal import JOURNAL_BYTES, tail
from crpipe.core.paths import BEST, Paths
from crpipe.core.records import skipped_names
from crpipe.core.text import Column, measured, number, table
from crpipe.report.evaluations import MODEL, every_evaluation
from crpipe.report.figure_context import FigureContext, figures_of
from crpipe.report.figure_style import COLOURS, new_figure, note, save, style
from crpipe.report.series import VALIDATION, is_loss, pick, smoothed, smoothing, window_of
from crpipe.report.verdicts import tolerance
from crpipe.statistics.verdict import DIFFERS, SMALL, Difference

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from crpipe.core.journal import Row
    from crpipe.report.evaluations import Evaluation, MetricRow

_WIDTH = 160
_MOST_ROWS = 5000
_MOST_PANELS = 12
_PANEL = 2.2  # inches


@dataclass(frozen=True, slots=True)
class RunFiles:
    """What one run has left.

    keys: those of scope data and train. code: that of its workload. processes: of its newest job. receipts:
    of the finished links, by their steps. rows: its metrics.
    evaluation: the newest one; None without any. skipped: ranges of the data that stayed bad, in words.
    """

    name: str
    keys: Mapping[str, Any]
    code: str
    processes: int | None
    receipts: tuple[Receipt, ...]
    rows: tuple[Row, ...]
    evaluation: Evaluation | None
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


def compared_tables(runs: Sequence[RunFiles]) -> list[ComparedTable]:
    """Tabulate what differs between runs: keys, sizes of the training, evaluations, validation."""
    return [
        ComparedTable("keys that differ", *_keys(runs)),
        ComparedTable("training", _sizes(runs), [f"skipped: {name}" for name in runs[0].skipped]),
        ComparedTable("newest evaluation", *_metrics(runs)),
        ComparedTable("last validation in training", *_validation(runs)),
    ]


def render_comparison(runs: Sequence[RunFiles]) -> str:
    """Write what differs between runs."""
    lines = [line for each in compared_tables(runs) for line in _section(each.title, each.lines())]
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
    with style(), figures_of(FigureContext(f"runs {', '.join(curves)}")):
        figure = new_figure(0.8 + _PANEL * len(names))
        axes = figure.subplots(len(names), sharex=True, squeeze=False)[:, 0]
        for axis, name in zip(axes, names, strict=True):
            for (run, series), colour in zip(curves.items(), COLOURS * len(curves), strict=False):
                if name not in series:
                    continue
                one = series[name]
                mean = one if name.startswith(VALIDATION) else smoothed(one, window)
                axis.plot(one.steps, one.values, color=colour, alpha=0.3, linewidth=0.7)
                axis.plot(mean.steps, mean.values, color=colour, label=run)
                note(figure, name, run, step=one.steps, value=one.values, mean=mean.values)
            axis.set_title(name, loc="left")
        axes[0].legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=6, borderaxespad=0.2)
        axes[-1].set_xlabel(f"training step{smoothing(window)}")
        return save(figure, path)


def _is_curve(name: str) -> bool:
    return is_loss(name) or name.startswith(VALIDATION)


def _rows(paths: Paths) -> Iterator[Row]:
    """Yield the metrics of all links in the order of their steps, some of them when there are many."""
    rows = []
    for path in paths.run_dir().glob("store/*/metrics.jsonl"):
        for line in path.read_bytes().splitlines():
            with contextlib.suppress(ValueError, RecursionError):  # cut by a crash
                rows.append(json.loads(line))
    rows = [row for row in rows if isinstance(row, dict) and type(row.get("step")) is int]
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
    names = sorted({name for run in runs for name in run.keys})
    changed = [name for name in names if len({_value(run.keys, name) for run in runs}) > 1]
    if not changed:
        return [], ["none"]
    columns = [Column(run.name, [_value(run.keys, name) for name in changed]) for run in runs]
    return [Column("key", list(map(called_now, changed))), *columns], []


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
    events = "events not counted" if record.events is None else f"{number(record.events)} events{part}"
    return f"{evaluation.name}, {events}"


def _better(metric: MetricRow, runs: Sequence[RunFiles]) -> str:
    """Name the run with the best number, and say in a verdict's word how the next one differs from it.

    Not of tables: their numbers are those of different bins.
    """
    evaluated = [run.evaluation for run in runs if run.evaluation]
    if any(metric.name in (one.record.tables or {}) for one in evaluated):
        return "-"
    ranked = []
    for run in runs:
        row = run.evaluation.rows.get(metric.name) if run.evaluation else None
        if row is not None and MODEL in row.numbers:
            value, error = row.numbers[MODEL]
            distance = metric.distance(value)
            if distance is not None and math.isfinite(distance):
                assert run.evaluation is not None
                groups = run.evaluation.record.groups or run.evaluation.record.events or 0
                ranked.append((distance, run.name, math.nan if error is None else error, groups))
    if len(ranked) < 2:  # noqa: PLR2004 - nothing to compare with
        return "-"
    (best, name, error, groups), (second, _, other, its) = sorted(ranked)[:2]
    gap = Difference(second - best, math.hypot(error, other), min(groups, its), tolerance(metric))
    word = gap.word()
    return name if word == DIFFERS else f"{name} ({word})" if word == SMALL else word


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
