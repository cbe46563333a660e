"""Held-out evaluation: a checkpoint's predictions for events that it never saw, and their scores.

Writes metrics.json, predictions.parquet (one row for each event) and the workload's figures.
"""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from crpipe.campaign.raw_files import read_manifest
from crpipe.campaign.records import EvaluationRecord
from crpipe.campaign.simulators import open_simulator
from crpipe.core.causes import is_present, plugin_errors
from crpipe.core.errors import ConfigError, DataError, PluginError
from crpipe.core.files import (
    atomic_write,
    disk_errors,
    make_folder,
)
from crpipe.core.journal import Journal
from crpipe.core.paths import HELD_OUT, Part, Paths
from crpipe.core.text import counted
from crpipe.events.batch import Events, cuts
from crpipe.events.layout import SOURCE_FILE, SOURCE_ROW, WEIGHT, not_enough
from crpipe.events.shard_reader import no_events
from crpipe.inference.checkpoints import LoadedModel, find_checkpoint, refuse_other_events, use_key
from crpipe.inference.event_displays import show_events
from crpipe.inference.fresh import FRESH, fresh_events
from crpipe.inference.kept_results import keep_results, restore_results
from crpipe.inference.measured import Measurement, measure
from crpipe.inference.predictor import Predictor, predicted_columns, table_of
from crpipe.loading.loader import RangeShards, count_held_out, held_out
from crpipe.report.evaluations import Evaluation, score_table
from crpipe.report.figure_context import FORMATS, FigureContext, figures_of
from crpipe.report.posterior import write_rows
from crpipe.statistics.groups import effective_groups, group_numbers, halves
from crpipe.train.answers import checked_columns, unmeasured
from crpipe.train.event_file import EventFile
from crpipe.train.step import LESS_AT_ONCE, named_out_of_memory
from crpipe.train.workload import Baseline, Columns, ScoresGiven, ShowsEvents, WorkloadCall, weighed

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from crpipe.campaign.campaign import Campaign
    from crpipe.config.loading import Config
    from crpipe.core.text import Progress

_SPARE = 8  # an eighth more than needed: so the buffer is seldom enlarged


class JoinedBlocks:
    """Blocks of whole events, or of columns of one value per event, joined end to end."""

    def __init__(self) -> None:
        self._columns: list[Columns] = []
        self._multiplicity: list[NDArray[np.uint32]] = []
        self._items = np.empty((0, 0), np.float32)
        self._filled = 0

    def add(self, block: Events | Columns) -> None:
        """Add a copy of one block; all blocks have the same columns.

        A view would hold the window that a loader cut the block out of: tens of thousands of events for each
        range, however few of them are compared.
        """
        columns = block.columns if isinstance(block, Events) else block
        self._columns.append({name: values.copy() for name, values in columns.items()})
        if isinstance(block, Events):
            self._multiplicity.append(block.multiplicity.copy())
            self._add_items(block.items)

    def _add_items(self, items: NDArray[np.float32]) -> None:
        width, end = items.shape[1], self._filled + len(items)
        if self._items.shape[1] != width:
            self._items = np.empty((0, width), np.float32)
        if end > len(self._items):
            # The system enlarges a large buffer in place, without a copy beside the old one.
            self._items.resize((end + end // _SPARE, width), refcheck=False)
        self._items[self._filled : end] = items
        self._filled = end

    def columns(self) -> Columns:
        """Join the columns of at least one block."""
        return {name: np.concatenate([block[name] for block in self._columns]) for name in self._columns[0]}

    def events(self) -> Events:
        """Join whole events."""
        return Events(self.columns(), np.concatenate(self._multiplicity), self._items[: self._filled])


_MORE_FRESH = "raise evaluate.fresh_groups"
_MORE = "raise split.validation_fraction or split.test_fraction, in a new results directory and run"


@dataclass(frozen=True, slots=True)
class _Evaluation:
    """What is evaluated: a checkpoint, on a held-out part of some ranges.

    label: name of the link or checkpoint, and of the folder of the results. part: also ``fresh``, where
    ``fresh`` holds events that were simulated for it.
    """

    campaign: Campaign
    label: str
    predictor: Predictor
    part: str
    ranges: tuple[str, ...]
    fresh: Events | None = None

    @property
    def trained(self) -> LoadedModel:
        """The checkpoint, and what it names."""
        return self.predictor.trained

    @property
    def folder(self) -> Path:
        """Where the results go."""
        return self.campaign.paths.evaluation(self.label)

    def sample(self) -> Generator[tuple[int, Events]]:
        """Yield the events to compare in blocks, each with the number of its range; always the same ones."""
        config, paths = self.campaign.config, self.campaign.paths
        limits = config.evaluate.batch_events, config.load.max_items
        if self.fresh is not None:
            for first, last in cuts(self.fresh.multiplicity, *limits):
                yield 0, self.fresh.part(first, last)
            return
        yield from held_out(
            [RangeShards.of(paths, name) for name in self.ranges],
            self.part,  # type: ignore[arg-type]
            events=config.evaluate.events,
            batch_events=limits[0],
            budget_items=limits[1],
            seed=config.seed,
        )


@dataclass(frozen=True, slots=True)
class _Compared:
    """Everything that ``score`` gets; truth has items only where the predictions are whole events.

    given: events generated with the true multiplicities. group: of each event, [N].
    """

    truth: Events
    prediction: Events | Columns
    baseline: Columns | None
    given: Events | None
    group: NDArray[np.int64]

    @property
    def weight(self) -> NDArray[Any] | None:
        """The weight of each event, [N]; None where all count alike."""
        return self.truth.columns.get(WEIGHT)

    def size(self) -> dict[str, int]:
        """Count events and groups."""
        return {"events": len(self.truth), "groups": int(self.group.max(initial=-1)) + 1}


def evaluate_link(campaign: Campaign, name: str, progress: Progress, *, checkpoint: str = "") -> None:
    """Score a checkpoint on the held-out events of all ranges up to a link.

    Its baseline and a second simulation are scored, too, where there are any.
    name: the link; empty: that of the checkpoint. checkpoint: as ``--checkpoint``; empty: the one that
    evaluate.checkpoint chooses; results of any other one have a folder of their own.
    Raise ConfigError when the link is not known.
    """
    config, paths = campaign.config, campaign.paths
    link, label, path = checkpoint_to_evaluate(campaign, name, checkpoint)
    folder, seen = paths.evaluation(label), campaign.chain.ranges_trained_by(campaign.chain.named(link))
    settings = _settings(config, seen)
    journal = Journal(paths.train_journal())
    with journal.attempt("evaluate", label), named_out_of_memory(LESS_AT_ONCE):
        if restore_results(path, folder, settings):
            progress.message(f"{folder}: evaluated before; its checkpoint is gone: the results stay")
            return
        predictor = Predictor.open(campaign, path, config.train.device)
        refuse_other_events(predictor.trained, campaign.layout)
        with disk_errors(folder):
            make_folder(folder)
        key = settings | {"checkpoint": predictor.trained.sha256}
        if config.evaluate.fresh_groups:
            config.check_fresh()
            events = fresh_events(campaign, seen, folder, progress)
            _evaluate(_Evaluation(campaign, label, predictor, FRESH, (FRESH,), events), progress)
            keep_results(folder, key)
            return
        part, ranges = judged_on(paths, seen)
        if not ranges:
            _write_without_events(_Evaluation(campaign, label, predictor, part, seen), progress)
            keep_results(folder, key)
            return
        if part != "test" and (config.split.test_fraction or config.split.test_files):
            progress.message(
                f"warning: no test events up to {label} (split.test_fraction, split.test_files): "
                f"{part} events judge it"
            )
        _evaluate(_Evaluation(campaign, label, predictor, part, ranges), progress)
        keep_results(folder, key)


def checkpoint_to_evaluate(campaign: Campaign, name: str, checkpoint: str) -> tuple[str, str, Path]:
    """Return the link, the name of the folder of its results, and the receipt or checkpoint."""
    paths = campaign.paths
    if checkpoint in ("best", "latest") and name:
        checkpoint = name if checkpoint == "latest" else f"{name}.best"
    if not checkpoint:
        return name, name, campaign.receipt_to_evaluate(name)
    path = find_checkpoint(checkpoint, paths, lambda: campaign.chain.names)
    label = path.stem
    is_receipt = path.suffix == ".json" and path.parent == paths.receipt("x").parent
    link = name or (label.removesuffix(".best") if is_receipt else path.parent.name)
    if campaign.chain.find(link) is None:
        raise ConfigError(
            f"{path}: not of a link of this campaign; name the link up to whose ranges it is judged: "
            f"crpipe evaluate LINK --checkpoint {path}"
        )
    return link, label, path


def _settings(config: Config, ranges: Sequence[str]) -> dict[str, Any]:
    """Return what the results depend on besides the checkpoint."""
    simulates = config.simulates()
    settings: dict[str, Any] = {
        "events": config.evaluate.events,
        "batch_events": config.evaluate.batch_events,
        "budget_items": config.load.max_items,
        "seed": config.seed,
        "use_options": use_key(config.use_options()),
        "simulator": config.source.simulator if simulates else "",
        "simulator_options": config.options("simulator") if simulates else None,
        "ranges": ranges,
    }
    if config.evaluate.fresh_groups:  # younger than results that were made without it
        settings["fresh_groups"] = config.evaluate.fresh_groups
        del settings["events"]
    as_recorded: dict[str, Any] = json.loads(json.dumps(settings, default=str))
    return as_recorded


def judged_on(paths: Paths, ranges: Sequence[str]) -> tuple[Part, tuple[str, ...]]:
    """Choose the part that judges a checkpoint, and the ranges that hold some of it: none without any.

    The test part where any range has test events, else the validation part.
    """
    for part in reversed(HELD_OUT):
        holding = tuple(name for name in ranges if count_held_out(RangeShards.of(paths, name), part))
        if holding:
            return part, holding
    return HELD_OUT[0], ()


def _evaluate(evaluation: _Evaluation, progress: Progress) -> None:
    """Predict for the sample, score the predictions, and write both."""
    trained = evaluation.trained
    compared = _predict_all(evaluation, progress)
    size, scores = compared.size(), _scores(evaluation, compared)
    declared = trained.workload.metrics
    values = scores["values"]
    for sentence in unmeasured(f"{trained.name}.score", declared, values.given(), size["groups"]):
        progress.message(f"warning: {sentence}")
    few = [each for each in declared if each.groups > size["groups"] or each.needs]
    missing = [(each.title, each.need) for each in few if each.name not in values.numbers]
    if missing:
        reason = not_enough(missing, **size)
        more = f"raise evaluate.events, or {_MORE}" if evaluation.fresh is None else _MORE_FRESH
        progress.message(f"not enough for all numbers, {reason}; {more}")
    effective = None if compared.weight is None else effective_groups(compared.group, compared.weight)
    _write(evaluation, size, scores, effective)


def _scores(evaluation: _Evaluation, compared: _Compared) -> dict[str, Measurement]:
    """Score the model, and what it is compared with without figures; the floor first: figures name it."""
    campaign, trained, folder = evaluation.campaign, evaluation.trained, evaluation.folder
    size, step = compared.size(), trained.checkpoint["counters"]["step"]
    about = f"run {folder.parents[1].name}, {evaluation.label}, step {step:,}"
    about += f"; {size['events']:,} {evaluation.part} events in {size['groups']:,} groups"
    scores = {}
    floor = _floor(campaign.config, compared)
    if floor is not None:
        kind, other = floor
        with figures_of(FigureContext(formats=())):
            scores[kind] = _score(trained, other, folder / kind)
    before = {path: _version(path) for path in folder.glob("*") if path.suffix in FORMATS}
    numbers = scores[floor[0]].numbers if floor else {}
    formats = [f".{each}" for each in ("svg", "csv", *campaign.config.evaluate.formats)]
    with figures_of(FigureContext(about, tuple(formats), numbers)):
        values = _score(trained, compared, folder)
        if isinstance(trained.workload, ShowsEvents):
            pair, weight = (compared.truth, compared.prediction), campaign.layout.weight
            with contextlib.closing(evaluation.sample()) as sample:
                events = (block for _, block in sample)
                shown = show_events(trained, pair, events, weight, folder, values.numbers)
            values = replace(values, numbers=values.numbers | shown)
    _remove_unchanged(before)
    if compared.baseline is not None:
        baseline = replace(compared, prediction=compared.baseline)
        with figures_of(FigureContext(formats=())):
            scores["baseline"] = _score(trained, baseline, folder / "baseline")
    return {"values": values, **scores}


def _version(figure: Path) -> tuple[int, int]:
    """Return what differs where a figure was written again, in place of the old one or into it."""
    status = figure.stat()
    return status.st_ino, status.st_mtime_ns


def _remove_unchanged(figures: Mapping[Path, tuple[int, int]]) -> None:
    """Remove the figures that are still what they were: not plotted again, they show other numbers."""
    for path, version in figures.items():
        with disk_errors(path):
            if _version(path) == version:
                path.unlink()


def _floor(config: Config, compared: _Compared) -> tuple[str, _Compared] | None:
    """Return what a perfect generator would reach: its name, and what ``score`` compares.

    The same events simulated again; without a simulator, one half of the true groups in place of the
    generated ones, and the other half as the truth. None where the predictions are no whole events.
    """
    if not isinstance(compared.prediction, Events):
        return None
    again = _simulate_again(config, compared)
    if again is not None:
        return "again", replace(compared, prediction=again, given=again)
    first, second, group = halves(compared.group)
    if not len(group):
        return None
    truth, other = compared.truth.take(first), compared.truth.take(second)
    return "halves", _Compared(truth, other, None, other, group)


def _write_without_events(evaluation: _Evaluation, progress: Progress) -> None:
    """Write files without any number: a finished training must not fail because no event was held out."""
    progress.message(f"no held-out events: nothing to compare with; for numbers, {_MORE}")
    with _prediction_file(evaluation) as write:
        write(evaluation.ranges[0], no_events(evaluation.campaign.layout), {})
    _write(evaluation, {"events": 0, "groups": 0}, {"values": Measurement()})


def _predict_all(evaluation: _Evaluation, progress: Progress) -> _Compared:
    campaign, predictor, ranges = evaluation.campaign, evaluation.predictor, evaluation.ranges
    layout, seed, most = campaign.layout, campaign.config.seed, campaign.config.evaluate.events
    workload = predictor.trained.workload
    truth, predicted, baseline, given = JoinedBlocks(), JoinedBlocks(), JoinedBlocks(), JoinedBlocks()
    done, is_events = 0, False
    with _prediction_file(evaluation) as write:
        for number, block in evaluation.sample():
            prediction = predictor.predict(block, seed + done, layout)
            is_events = isinstance(prediction, Events)
            truth.add(block if is_events else replace(block, items=np.empty((0, 0), np.float32)))
            predicted.add(prediction)
            if isinstance(workload, Baseline):
                baseline.add(_baseline(workload, predictor.trained.name, block))
            if isinstance(workload, ScoresGiven):
                given.add(predictor.generate_given(block, seed + done, layout))
            write(ranges[number], block, prediction)
            done += len(block)
            progress.update("predict", done, len(evaluation.fresh) if evaluation.fresh else most)
        if not done:
            raise DataError(f"{campaign.paths.shards(ranges[0])}: no {evaluation.part} events")
    progress.update("predict", done, done)
    events = weighed(truth.events(), layout.weight)
    return _Compared(
        events,
        predicted.events() if is_events else predicted.columns(),
        baseline.columns() if isinstance(workload, Baseline) else None,
        given.events() if isinstance(workload, ScoresGiven) else None,
        group_numbers([events.columns[name] for name in layout.group]),
    )


def _baseline(workload: Baseline, name: str, block: Events) -> Columns:
    with WorkloadCall(workload, "baseline", block):
        columns = workload.baseline(block)
    return checked_columns(columns, len(block), f"{name}.baseline")


@contextlib.contextmanager
def _prediction_file(evaluation: _Evaluation) -> Iterator[Callable[[str, Events, Events | Columns], None]]:
    """Yield what appends a block of a range to predictions.parquet.

    Its columns: range, source file and row, path, the layout's key, and what was predicted.
    """
    key, paths = evaluation.campaign.layout.key, evaluation.campaign.paths
    names: dict[str, pa.Array] = {}
    writers: list[pq.ParquetWriter] = []

    def write(name: str, block: Events, prediction: Events | Columns) -> None:
        if name not in names:
            names[name] = _raw_names(paths.manifest(name))
        known = {column: block.columns[column] for column in (SOURCE_FILE, SOURCE_ROW, *key)}
        table = table_of(known, predicted_columns(block, prediction))
        table = table.add_column(0, "range", pa.array([name] * len(block)).dictionary_encode())
        table = table.add_column(3, "path", _source_paths(names[name], block.columns[SOURCE_FILE]))
        if not writers:
            writers.append(stack.enter_context(pq.ParquetWriter(part, table.schema, compression="zstd")))
        (writer,) = writers
        if table.schema != writer.schema:
            raise PluginError(
                f"predict gave other columns than before: {table.schema.names}, {writer.schema.names}"
            )
        writer.write_table(table)

    with atomic_write(evaluation.folder / "predictions.parquet") as part, contextlib.ExitStack() as stack:
        yield write


def _raw_names(manifest: Path) -> pa.Array:
    """Return the paths of the raw files of a range; none where the list of them is gone."""
    entries = read_manifest(manifest) if is_present(manifest) else []
    return pa.array([entry.path for entry in entries], pa.string())


def _source_paths(names: pa.Array, file: NDArray[Any]) -> pa.Array:
    """Name the source file of each event; null where it is not known."""
    index = pa.array(file, pa.int32(), mask=file >= len(names))
    return pa.DictionaryArray.from_arrays(index, names).cast(pa.string()).dictionary_encode()


def _score(trained: LoadedModel, compared: _Compared, folder: Path) -> Measurement:
    workload, truth = trained.workload, compared.truth
    with WorkloadCall(workload, "score", truth), disk_errors(folder):
        make_folder(folder)
        scores = dict(workload.score(truth, compared.prediction, folder))
        if isinstance(workload, ScoresGiven) and compared.given is not None:
            scores |= workload.score_given(truth, compared.given, folder)
        measurement = measure(scores, compared.group, f"{trained.name}.score", weight=compared.weight)
    groups = compared.size()["groups"]
    measurement = measurement.without({each.name for each in workload.metrics if each.groups > groups})
    with contextlib.suppress(OSError):
        folder.rmdir()  # only where no figure was written
    return measurement


def _simulate_again(config: Config, compared: _Compared) -> Events | None:
    """Simulate the same events a second time: what a perfect generator would reach."""
    if not config.simulates() or not isinstance(compared.prediction, Events):
        return None
    name = config.source.simulator
    simulator = open_simulator(name, config.options("simulator"))
    if not hasattr(simulator, "again"):
        return None
    with plugin_errors(f"source.simulator: {name}.again failed on {counted(len(compared.truth), 'event')}"):
        return simulator.again(compared.truth.columns, config.seed + 1)


def _write(
    evaluation: _Evaluation,
    size: Mapping[str, int],
    scores: dict[str, Measurement],
    effective: float | None = None,
) -> None:
    trained, values = evaluation.trained, scores["values"]
    step = trained.checkpoint["counters"]["step"]
    numbers = {kind: each.numbers for kind, each in scores.items()}
    record = EvaluationRecord(
        checkpoint=trained.sha256,
        step=step,
        part=evaluation.part,
        events=size["events"],
        groups=size["groups"],
        effective_groups=effective,
        metrics=tuple(metric.describe() for metric in trained.workload.metrics),
        **numbers,
        differences={
            kind: values.less(other, effective or size["groups"], paired=kind != "halves")
            for kind, other in scores.items()
            if kind != "values"
        },
        tables=values.tables,
    )
    path = evaluation.folder / "metrics.json"
    described = Evaluation.of(record, path)
    log = EventFile(evaluation.campaign.paths.tensorboard(), f"evaluation.{evaluation.label}", -1)
    now = time.time()
    for kind, each in numbers.items():
        tag = "evaluation" if kind == "values" else f"evaluation/{kind}"
        log.scalars(step, now, {f"{tag}/{name}": value for name, value in each.items()})
    rows = described.rows.values()
    log.text(step, now, "evaluation", "\n".join(score_table(described.columns, rows, corner="metric")))
    log.close()
    if values.rows:
        write_rows(evaluation.folder, values.rows)
    record.write(path)
