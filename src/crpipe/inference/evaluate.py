"""Held-out evaluation: a checkpoint's predictions for events that it never saw, and their scores.

Writes metrics.json, predictions.parquet (one row for each event) and the workload's figures.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from crpipe.campaign.raw_files import read_manifest
from crpipe.campaign.records import EvaluationRecord
from crpipe.campaign.simulators import open_simulator
from crpipe.core.causes import Foreign, is_present
from crpipe.core.errors import DataError, ForeignError
from crpipe.core.files import make_folder, replacing, writing
from crpipe.core.journal import Journal
from crpipe.core.paths import HELD_OUT
from crpipe.events.batch import Events
from crpipe.events.layout import SOURCE_FILE, SOURCE_ROW, not_enough
from crpipe.inference.checkpoints import open_checkpoint
from crpipe.inference.event_displays import show_events
from crpipe.inference.output_file import keep_results, restore_results
from crpipe.inference.predict import checked_columns, predict_block, predicted_columns, table_of
from crpipe.loading.loader import count_held_out, held_out
from crpipe.report.evaluations import score_table
from crpipe.report.figure_context import FigureContext, figures_of
from crpipe.split.hashing import identities
from crpipe.train.metrics_log import EventFile
from crpipe.train.ranks import find_device, use_threads
from crpipe.train.step import LESS_AT_ONCE, named_out_of_memory
from crpipe.train.workload import Baseline, ShowsEvents, WorkloadCall, weighed

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

    from numpy.typing import NDArray

    from crpipe.campaign.ledger import Tables
    from crpipe.core.paths import Part
    from crpipe.core.text import Progress
    from crpipe.events.layout import Layout
    from crpipe.inference.checkpoints import LoadedModel
    from crpipe.loading.loader import RangeShards
    from crpipe.train.workload import Columns

# Blocks joined end to end, without a second copy of their items.


_SPARE = 8  # an eighth more than needed: so the buffer is seldom enlarged


class GatheredColumns:
    """Columns of all blocks."""

    def __init__(self) -> None:
        self._blocks: list[Columns] = []

    def add(self, block: Columns) -> None:
        """Add a copy of the columns of one block; all blocks have the same names.

        A view would hold the window that a loader cut the block out of: tens of thousands of events for each
        range, however few of them are compared.
        """
        self._blocks.append({name: values.copy() for name, values in block.items()})

    def columns(self) -> Columns:
        """Join them."""
        names = self._blocks[0] if self._blocks else {}
        return {name: np.concatenate([block[name] for block in self._blocks]) for name in names}


class GatheredEvents:
    """Events of all blocks; with ``items`` false their items are left out."""

    def __init__(self, *, items: bool) -> None:
        self._keeps_items = items
        self._columns = GatheredColumns()
        self._multiplicity: list[np.ndarray[tuple[int], np.dtype[np.uint32]]] = []
        self._items = np.empty((0, 0), np.float32)
        self._filled = 0

    def add(self, block: Events) -> None:
        """Add one block."""
        self._columns.add(block.columns)
        self._multiplicity.append(block.multiplicity.copy())
        width = block.items.shape[1]
        if self._items.shape[1] != width:
            self._items = np.empty((0, width), np.float32)
        if self._keeps_items:
            end = self._filled + len(block.items)
            if end > len(self._items):
                # The system enlarges a large buffer in place, without a copy beside the old one.
                self._items.resize((end + end // _SPARE, width), refcheck=False)
            self._items[self._filled : end] = block.items
            self._filled = end

    def events(self) -> Events:
        """Join them."""
        items = self._items[: self._filled] if self._keeps_items else np.empty((0, 0), np.float32)
        return Events(self._columns.columns(), np.concatenate(self._multiplicity), items)


Numbers = dict[str, float]
_MORE = "raise split.validation_fraction or split.test_fraction, in a new results directory and run"


@dataclass(frozen=True, slots=True)
class ValidationShards:
    """The held-out events of one range: its name, where its shards are, the list of its raw files."""

    name: str
    folders: RangeShards
    manifest: Path


@dataclass(frozen=True, slots=True)
class EvaluateJob:
    """One evaluation.

    shards: those of all ranges that the checkpoint was trained on. folder: where the results go.
    events: most events to compare; batch_events, budget_items: most events and items of one block.
    simulator, simulator_options: empty where the raw files come from elsewhere.
    tests: whether the campaign keeps a test part. use_options: of the workload, those that no checkpoint
    depends on. named: what the checkpoint may name besides what crpipe includes.
    """

    name: str
    receipt: Path
    shards: tuple[ValidationShards, ...]
    folder: Path
    journal: Path
    tensorboard: Path
    layout: Layout
    tables: Tables
    table_keys: Mapping[str, Any]
    events: int
    batch_events: int
    budget_items: int
    seed: int
    device: str
    threads: int
    use_options: Mapping[str, Any] = field(default_factory=dict)
    simulator: str = ""
    simulator_options: Mapping[str, Any] | None = None
    tests: bool = False
    named: Collection[str] = ()

    def key(self) -> dict[str, Any]:
        """Give what the results depend on besides the checkpoint."""
        names = ("events", "batch_events", "budget_items", "seed", "use_options", "simulator")
        values = {name: getattr(self, name) for name in (*names, "simulator_options")}
        key: dict[str, Any] = json.loads(json.dumps(values, default=str))
        return key | {"ranges": [each.name for each in self.shards]}


@dataclass(frozen=True, slots=True)
class _Compared:
    """Everything that ``score`` gets; truth has items only where the predictions are whole events."""

    truth: Events
    prediction: Events | Columns
    baseline: Columns | None


def evaluate_link(job: EvaluateJob, progress: Progress) -> None:
    """Score the checkpoint of one link, its baseline, and a second simulation, where there are any."""
    with Journal(job.journal).attempt("evaluate", job.name), named_out_of_memory(LESS_AT_ONCE):
        if restore_results(job.receipt, job.folder, job.key()):
            progress.say(f"{job.folder}: evaluated before; its checkpoint is gone: the results stay")
            return
        use_threads(job.threads)
        device = find_device(job.device)
        trained = open_checkpoint(job.receipt, device, job.tables, job.table_keys, job.use_options, job.named)
        with writing(job.folder):
            make_folder(job.folder)
        part, shards = judged_on(job.shards)
        key = job.key() | {"checkpoint": trained.sha256}
        if not shards:
            _write_without_events(job, trained, part, progress)
            keep_results(job.folder, key)
            return
        if job.tests and part != "test":
            progress.say(
                f"warning: no test events up to {job.name} (split.test_fraction, split.test_files): "
                f"{part} events judge it"
            )
        job = replace(job, shards=shards)
        compared = _predict_all(job, part, trained, device, progress)
        truth = weighed(compared.truth, job.layout.weight)
        size = {"events": len(truth), "groups": _count_groups(truth, job.layout)}
        scores = _scores(job, part, trained, replace(compared, truth=truth), size)
        declared = trained.workload.metrics
        missing = [(each.title, each.need) for each in declared if each.name not in scores["values"]]
        if missing:
            found = not_enough(missing, **size)
            progress.say(f"not enough for all numbers, {found}; raise evaluate.events, or {_MORE}")
        _write(job, trained, part, size, scores)
        keep_results(job.folder, key)


def _scores(
    job: EvaluateJob, part: Part, trained: LoadedModel, compared: _Compared, size: Mapping[str, int]
) -> dict[str, Numbers]:
    """Score the model and what it is compared with; the floor first, because figures show it, too."""
    about = f"run {job.folder.parents[1].name}, {job.name}, step {trained.checkpoint['counters']['step']:,}"
    about += f"; {size['events']:,} {part} events in {size['groups']:,} groups"
    truth, again = compared.truth, _simulate_again(job, compared)
    floor: Numbers = {}
    if again is not None:
        with figures_of(FigureContext(f"simulated again: {about}", copies=False)):
            floor = _score(trained, truth, again, job.folder / "again")
    with figures_of(FigureContext(about, floor=floor)):
        values = _score(trained, truth, compared.prediction, job.folder)
        if isinstance(trained.workload, ShowsEvents):
            own = truth, compared.prediction
            with contextlib.closing(_sample(job, part)) as sample:
                events = (block for _, block in sample)
                values |= show_events(trained, own, events, job.layout.weight, job.folder, values)
    scores = {"values": values}
    if compared.baseline is not None:
        with figures_of(FigureContext(f"baseline: {about}", copies=False)):
            scores["baseline"] = _score(trained, truth, compared.baseline, job.folder / "baseline")
    return scores | ({"again": floor} if again is not None else {})


def judged_on(shards: Sequence[ValidationShards]) -> tuple[Part, tuple[ValidationShards, ...]]:
    """Choose the part that judges a checkpoint, and the ranges that hold some of it: none without any.

    The test part where any range has test events, else the validation part.
    """
    for part in reversed(HELD_OUT):
        holding = tuple(each for each in shards if count_held_out(each.folders, part))
        if holding:
            return part, holding
    return HELD_OUT[0], ()


def _write_without_events(job: EvaluateJob, trained: LoadedModel, part: Part, progress: Progress) -> None:
    """Write files without any number: a finished training must not fail because no event was held out."""
    progress.say(f"no held-out events: nothing to compare with; for numbers, {_MORE}")
    fields = job.layout.events
    columns: Columns = {name: np.zeros(0, np.uint32) for name in (SOURCE_FILE, SOURCE_ROW)}
    columns |= {field.name: np.zeros(0, field.dtype) for field in fields}
    block = Events(columns, np.zeros(0, np.uint32), np.zeros((0, len(job.layout.items)), np.float32))
    with _PredictionFile(job.folder / "predictions.parquet", job.layout) as file:
        file.add(job.shards[0], block, {})
    _write(job, trained, part, {"events": 0, "groups": 0}, {"values": {}})


def _sample(job: EvaluateJob, part: Part) -> Generator[tuple[int, Events]]:
    """Yield the events to compare in blocks, each with the place of its range; always the same ones."""
    return held_out(
        [shards.folders for shards in job.shards],
        part,
        events=job.events,
        batch_events=job.batch_events,
        budget_items=job.budget_items,
        seed=job.seed,
    )


def _predict_all(
    job: EvaluateJob, part: Part, trained: LoadedModel, device: torch.device, progress: Progress
) -> _Compared:
    truth: GatheredEvents | None = None
    events: GatheredEvents | None = None
    columns, baseline = GatheredColumns(), GatheredColumns()
    done = 0
    with _PredictionFile(job.folder / "predictions.parquet", job.layout) as file:
        for number, block in _sample(job, part):
            shards = job.shards[number]
            generator = torch.Generator(device).manual_seed(job.seed + done)
            with torch.no_grad():
                found = predict_block(trained, block, job.layout, generator)
            whole = isinstance(found, Events)
            truth = truth or GatheredEvents(items=whole)
            truth.add(block)
            if isinstance(found, Events):
                events = events or GatheredEvents(items=True)
                events.add(found)
            else:
                columns.add(found)
            if isinstance(trained.workload, Baseline):
                baseline.add(_baseline(trained.workload, trained.name, block))
            file.add(shards, block, found)
            done += len(block)
            progress.advance("predict", done, job.events)
        if truth is None:
            raise DataError(f"{job.shards[0].folders.bulk}: no {part} events")
    progress.advance("predict", done, done)
    return _Compared(
        truth.events(),
        columns.columns() if events is None else events.events(),
        baseline.columns() if isinstance(trained.workload, Baseline) else None,
    )


def _baseline(workload: Baseline, name: str, block: Events) -> Columns:
    with WorkloadCall(workload, "baseline", block):
        found = workload.baseline(block)
    return checked_columns(found, len(block), f"{name}.baseline")


class _PredictionFile:
    """predictions.parquet: range, source file and row, its path, the layout's key, and what was predicted."""

    def __init__(self, path: Path, layout: Layout) -> None:
        self._path = path
        self._key = layout.key
        self._names: dict[str, pa.Array] = {}
        self._writer: pq.ParquetWriter | None = None
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self._part = self._stack.enter_context(replacing(self._path))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writer is not None:
            self._writer.close()
        self._stack.__exit__(kind, error, trace)

    def add(self, shards: ValidationShards, block: Events, prediction: Events | Columns) -> None:
        """Append one block."""
        file = block.columns[SOURCE_FILE]
        known = {SOURCE_FILE: file, SOURCE_ROW: block.columns[SOURCE_ROW]}
        known |= {name: block.columns[name] for name in self._key}
        table = table_of(known, predicted_columns(block, prediction))
        table = table.add_column(0, "range", pa.array([shards.name] * len(block)).dictionary_encode())
        table = table.add_column(3, "path", self._paths(shards, file))
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._part, table.schema, compression="zstd")
        if table.schema != self._writer.schema:
            raise ForeignError(
                f"predict gave other columns than before: {table.schema.names}, {self._writer.schema.names}"
            )
        self._writer.write_table(table)

    def _paths(self, shards: ValidationShards, file: NDArray[Any]) -> pa.Array:
        """Name the source files; null where the list of raw files is gone."""
        if shards.name not in self._names:
            entries = read_manifest(shards.manifest) if is_present(shards.manifest) else []
            self._names[shards.name] = pa.array([entry.path for entry in entries], pa.string())
        names = self._names[shards.name]
        found = pa.array(file, pa.int32(), mask=file >= len(names))
        return pa.DictionaryArray.from_arrays(found, names).cast(pa.string()).dictionary_encode()


def _score(trained: LoadedModel, truth: Events, prediction: Events | Columns, folder: Path) -> Numbers:
    with WorkloadCall(trained.workload, "score", truth), writing(folder):
        make_folder(folder)
        found = trained.workload.score(truth, prediction, folder)
        numbers = {str(name): float(value) for name, value in found.items()}
    with contextlib.suppress(OSError):
        folder.rmdir()  # only where no figure was written
    return {name: value for name, value in numbers.items() if math.isfinite(value)}


def _count_groups(truth: Events, layout: Layout) -> int:
    return len(np.unique(identities([truth.columns[name] for name in layout.group])))


def _simulate_again(job: EvaluateJob, compared: _Compared) -> Events | None:
    """Simulate the same events a second time: what a perfect generator would reach."""
    if not job.simulator or not isinstance(compared.prediction, Events):
        return None
    simulator = open_simulator(job.simulator, job.simulator_options or {})
    if not hasattr(simulator, "again"):
        return None
    with Foreign(f"source.simulator: {job.simulator}.again failed on {len(compared.truth)} events"):
        return simulator.again(compared.truth.columns, job.seed + 1)


def _write(
    job: EvaluateJob, trained: LoadedModel, part: Part, size: Mapping[str, int], scores: dict[str, Numbers]
) -> None:
    step = trained.checkpoint["counters"]["step"]
    declared = [metric.describe() for metric in trained.workload.metrics]
    tags = {"values": "evaluation", "baseline": "evaluation/baseline", "again": "evaluation/again"}
    log = EventFile(job.tensorboard, f"evaluation.{job.name}", -1)
    now = time.time()
    for kind, numbers in scores.items():
        log.scalars(step, now, {f"{tags[kind]}/{name}": value for name, value in numbers.items()})
    log.text(step, now, "evaluation", score_table(trained.workload.metrics, scores))
    log.close()
    record = EvaluationRecord(
        checkpoint=trained.sha256,
        step=step,
        part=part,
        events=size["events"],
        groups=size["groups"],
        metrics=tuple(declared),
        values=scores.get("values"),
        baseline=scores.get("baseline"),
        again=scores.get("again"),
    )
    record.write(job.folder / "metrics.json")
