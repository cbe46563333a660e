"""The workload protocol: everything that the engine knows about a model and how it is trained.

A workload is named in the configuration as ``module:Name`` and built from the pydantic model of its options,
``NameOptions`` (crpipe.config.plugins). Nothing is registered or subclassed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from crpipe.config.plugins import build
from crpipe.core.causes import plugin_errors
from crpipe.core.errors import ConfigError, PluginError
from crpipe.core.text import counted
from crpipe.events.batch import Events
from crpipe.events.layout import SOURCE_FILE, SOURCE_ROW, WEIGHT, Layout, Metric
from crpipe.statistics.classifier import LabelledRows
from crpipe.statistics.groups import Statistic
from crpipe.statistics.ratios import Bins
from crpipe.train.optimizers import OptimizerSpec as OptimizerSpec  # noqa: PLC0414, TC001 - for workloads

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    import pyarrow as pa
    from numpy.typing import NDArray

    from crpipe.campaign.records import Tables
    from crpipe.events.histograms import Histogram
    from crpipe.train.schedule import Schedule

Batch = dict[str, Tensor]
Metrics = dict[str, Tensor]
Columns = dict[str, "NDArray[Any]"]
Measured = float | Statistic | Bins | LabelledRows  # of a name, by ``score``
Loss = Callable[[nn.Module, Batch, torch.Generator], Tensor | tuple[Tensor, Metrics]]


@dataclass(frozen=True, slots=True)
class Throttle:
    """Permanently lowers a phase's learning rate while its metric exceeds a limit.

    Decides every 20 steps: a mean of ``metric`` (one that the phase's loss gives) beyond
    ``above`` multiplies the rate by ``factor``, down to the share ``least`` of the full rate.
    """

    metric: str
    above: float
    factor: float
    least: float


@dataclass(frozen=True, slots=True)
class Phase:
    """One optimizer step for one group of parameters, such as a generator or a critic.

    loss: ``(model, batch, generator) -> scalar``, or ``(scalar, metrics)``. The scalar is a mean over the
        batch's events, so that micro-batches weighted by their events add up to the whole (with
        ``batch["weight"]``: a weighted mean); metrics are detached scalars of the same kind, by name. Every
        random number comes from ``generator``.
    repeat: optimizer steps of this phase within one training step, one batch each (train.fresh_batches).
    average: whether this phase's parameters enter the averaged (EMA) weights.
    smoothed: metrics that are also logged as a moving average over 500 steps.
    watched_metric: metric compared with train.stop_loss, where the loss itself may be
        large for good reasons.
    schedule: course of this phase's learning rate; None: that of section train.schedule.
    frozen: some of ``params`` that do not change in the first ``frozen_steps`` steps of the training. A phase
        whose parameters are all frozen is left out until then.
    """

    name: str
    params: Callable[[nn.Module], Iterable[nn.Parameter]]
    loss: Loss
    optimizer: OptimizerSpec
    repeat: int = 1
    average: bool = False
    smoothed: tuple[str, ...] = ()
    throttle: Throttle | None = None
    watched_metric: str = "loss"
    schedule: Schedule | None = None
    frozen: Callable[[nn.Module], Iterable[nn.Parameter]] | None = None
    frozen_steps: int = 0


class Workload(Protocol):
    """What a workload provides; built as ``Name(options)`` with an instance of its ``NameOptions``.

    metrics: the numbers of ``score`` that reports show, in their order; without any, all are shown.
    event_columns, item_columns: what it reads, compared with the reader's layout before any job. Items are
        read by position: ``item_columns`` are the first item columns of the layout, in this order.
    """

    metrics: tuple[Metric, ...]
    event_columns: tuple[str, ...]
    item_columns: tuple[str, ...]

    # Optional, ``weighted = True``: losses, metrics and scores are means weighted by ``batch["weight"]``
    # and ``truth.columns["weight"]``, which are there where the layout names a weight. Without it a
    # layout with a weight is refused.

    def size(self, events: Events) -> NDArray[np.integer[Any]]:
        """Items that each event puts into a batch, [N]; what load.max_items counts."""

    def collate(self, events: Events, index: NDArray[np.integer[Any]], seed: tuple[int, ...]) -> Batch:
        """Turn the events at ``index`` into tensors on the CPU; ``seed`` feeds any random choice.

        Several threads call it at the same time, beside the training (load.collate_workers): it changes
        nothing that it shares with another call, and uses no random generator of the process.
        All phases of a step share the result: no loss changes it in place. Where the layout names a weight,
        the engine adds ``weight`` [N] float32, in the order of ``index``.
        """

    def model(self) -> nn.Module:
        """Build the whole model, initialised from torch's global generator."""

    def phases(self) -> list[Phase]:
        """The phases of one training step, in order."""

    def predict(self, model: nn.Module, events: Events, generator: torch.Generator) -> Events | Columns:
        """Predict for ``events``: whole events, or one array [N] for each predicted column.

        Called with blocks of at most evaluate.batch_events events and load.max_items items (a larger event
        is a block of its own), without gradients. Whole events have the item columns of the layout, and one
        event for each event that came in. A column may be objects, each a flat array: lists of any length.
        """

    def score(self, truth: Events, prediction: Events | Columns, folder: Path) -> Mapping[str, Measured]:
        """Compare the prediction for all events with the truth; return what was measured, by name.

        A statistic (crpipe.statistics.groups) is a function of how often each event counts, [N] -> number:
        the engine takes its value, its error by group, and that of its difference to baseline and floor.
        Bins (crpipe.statistics.ratios) are a table of real and generated numbers. LabelledRows
        (crpipe.statistics.classifier) are what classifiers looked at; they are kept, and `crpipe compare
        --posterior` asks with them which of several runs is most like the truth. Of a plain number,
        ``NAME_error`` is the error. Also called with a second simulation, and with halves of the truth, as
        the prediction: its events have other columns. May write figures (SVG) into ``folder``, which exists.
        Where the prediction is columns, ``truth`` has its columns and multiplicities, but no items (``items``
        is empty): what a figure needs of the items must be a predicted column. Where the layout names a
        weight, ``truth.columns["weight"]`` holds it.
        """


@runtime_checkable
class UsesTables(Protocol):
    """A workload that reads side tables, such as a geometry."""

    needs: tuple[str, ...]

    def use(self, tables: Tables) -> None:
        """Read the tables in ``needs``; called once, before ``model``."""


@runtime_checkable
class UsesHistograms(Protocol):
    """A workload that uses how often values of event columns occur among the training events.

    An attribute ``wanted_histograms`` names the columns that it needs in split.histograms.
    """

    def use_histograms(self, histograms: Mapping[str, Histogram]) -> None:
        """Use the histograms, by column, of all ranges that the link trains on; called before ``model``.

        Called in training alone: what an evaluation or a prediction needs of them belongs into the model.
        """


@runtime_checkable
class Baseline(Protocol):
    """A workload with a simple method to compare the model with; ``score`` judges both alike."""

    def baseline(self, events: Events) -> Columns:
        """Predict without the network: one array [N] for each predicted column.

        Called after ``model``: a method that is fitted (``Fits``) uses the one of the model that was built
        last.
        """


@runtime_checkable
class Fits(Protocol):
    """A workload whose model holds a simple method that is fitted to training events.

    It may be the baseline, from which the network begins. fit_events: events that it needs, at most.
    """

    fit_events: int

    def fit(self, model: nn.Module, blocks: Iterable[Events]) -> None:
        """Fit the method to training events, a random sample in blocks; keep the result in buffers.

        Called once in a chain, before the first step; all ranks get the result of the first one.
        """


@runtime_checkable
class Calibrates(Protocol):
    """A workload that corrects its uncertainties by what they are in held-out events.

    calibration_events: events that it needs, at most; 0: it corrects nothing.
    """

    calibration_events: int

    def deviations(self, model: nn.Module, events: Events, generator: torch.Generator) -> Columns:
        """Compare predictions with the truth: arrays [N], from predictions without any correction.

        Called as ``validate`` is, on validation events.
        """

    def calibrate(self, model: nn.Module, deviations: Columns) -> None:
        """Set the corrections, which are buffers of the model that only ``predict`` and an export use.

        deviations: of all events of the sample, in their order; some may be NaN. Called for each checkpoint
        of train.monitor and at the end of a link, where there are validation events.
        """


@runtime_checkable
class Histograms(Protocol):
    """A workload that shows distributions in TensorBoard."""

    def histograms(
        self, model: nn.Module, events: Events, generator: torch.Generator
    ) -> dict[str, NDArray[np.floating[Any]]]:
        """Return named arrays of a batch: conditions, features, predictions."""


@runtime_checkable
class Validates(Protocol):
    """A workload with numbers of its own for the validations inside training (train.validate_every).

    validation_metrics: what ``validate`` measures; train.monitor may name one of them, or PHASE/loss.
    """

    validation_metrics: tuple[Metric, ...]

    def validate(self, model: nn.Module, events: Events, generator: torch.Generator) -> Columns:
        """Measure the model on held-out events: one array [N] for each of ``validation_metrics``.

        Training logs the mean over all events of its sample. Called without gradients, in blocks of at most
        256 events, with the averaged weights and the model in its mode for evaluation; cheap enough for
        every few hundred steps. A proper score (one that the true distribution minimises) is best.
        """


@runtime_checkable
class WritesTable(Protocol):
    """A workload whose predictions have a file format of their own."""

    def table(self, events: Events, prediction: Events | Columns) -> pa.Table:
        """Return the rows of ``crpipe predict`` for a block of events."""


@runtime_checkable
class ShowsEvents(Protocol):
    """A workload that looks at single events after an evaluation, with their items."""

    def shown(self, truth: Events, prediction: Events | Columns) -> NDArray[np.integer[Any]]:
        """Choose at most 1,000 events by their places in ``truth``, after ``score`` and from what it got."""

    def show(
        self, model: nn.Module, events: Events, prediction: Events | Columns, folder: Path
    ) -> dict[str, float]:
        """Show the chosen events, in the order in which they were chosen; return further named numbers.

        ``prediction`` holds their predictions alone. The model is in its mode for evaluation and gradients
        are off; ``torch.enable_grad()`` allows them. May write figures (SVG) into ``folder``, beside those of
        ``score``.
        """


@runtime_checkable
class Generates(Protocol):
    """A workload that makes whole events for given event columns (``crpipe generate``)."""

    def multiplicities(
        self, model: nn.Module, events: Events, generator: torch.Generator
    ) -> NDArray[np.int64]:
        """Draw the number of items of each event: [N]."""

    def generate(
        self, model: nn.Module, events: Events, multiplicity: NDArray[np.int64], generator: torch.Generator
    ) -> Events:
        """Generate events of the given columns and numbers of items; the items of ``events`` are not read."""


@runtime_checkable
class ScoresGiven(Generates, Protocol):
    """A generator that is also judged with the true multiplicities."""

    def score_given(self, truth: Events, prediction: Events, folder: Path) -> Mapping[str, Measured]:
        """Compare events generated with the true multiplicities, as ``score`` does, under other names."""


WORKLOAD_MEMBERS = (
    *Workload.__annotations__,
    *(name for name in vars(Workload) if not name.startswith("_")),
)


def build_workload(name: str, options: Mapping[str, Any]) -> Workload:
    """Build the workload ``module:Name`` from its options; raise ConfigError when it is none."""
    workload: Workload = build("train.workload", name, options, WORKLOAD_MEMBERS)
    return workload


def open_workload(name: str, options: Mapping[str, Any], tables: Tables) -> Workload:
    """Build a workload with the side tables that it needs; raise ConfigError when one is missing."""
    workload = build_workload(name, options)
    if isinstance(workload, UsesTables):
        for needed in workload.needs:
            if needed not in tables:
                raise ConfigError(
                    f"train.workload: {name} needs the side table {needed}, which is not among the copies of "
                    f"this campaign ({', '.join(tables) or 'there are none'}); name it in source.tables, for "
                    f"example source.tables: {{{needed}: /data/{needed}.csv}}"
                )
        with plugin_errors(f"train.workload: {name}.use failed"):
            workload.use(tables)
    return workload


def wanted_histograms(workload: Workload) -> tuple[str, ...]:
    """Name the columns whose histograms a workload needs."""
    return tuple(getattr(workload, "wanted_histograms", ()))


def give_histograms(workload: Workload, name: str, histograms: Mapping[str, Histogram]) -> None:
    """Pass the histograms to a workload that uses them."""
    if isinstance(workload, UsesHistograms):
        with plugin_errors(f"train.workload: {name}.use_histograms failed"):
            workload.use_histograms(histograms)


def method_of(workload: object, method: str) -> str:
    """Name a method of a workload as ``module:Class.method``."""
    kind = type(workload)
    return f"{kind.__module__}:{kind.__qualname__}.{method}"


class WorkloadCall(plugin_errors):
    """A guarded call of a workload's method: an exception inside becomes a PluginError naming the events.

    index: the events that the method looks at; None: all.
    """

    def __init__(
        self, workload: object, method: str, events: Events, index: NDArray[Any] | None = None
    ) -> None:
        super().__init__(method)
        self._workload, self._method, self._events, self._index = workload, method, events, index

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Raise PluginError in place of the block's exception; full memory of a GPU is nobody's error."""
        if isinstance(error, torch.OutOfMemoryError):
            return
        if error is not None:  # there is one call for each batch: spell it out only where it failed
            self._what = self._describe()
        super().__exit__(kind, error, trace)

    def _describe(self) -> str:
        method, columns = method_of(self._workload, self._method), self._events.columns
        count = len(self._events if self._index is None else self._index)
        if not count or SOURCE_FILE not in columns:
            return f"{method} failed on {counted(count, 'event')}"
        first = 0 if self._index is None else int(self._index[0])
        file, row = columns[SOURCE_FILE][first], columns[SOURCE_ROW][first]
        return f"{method} failed on {counted(count, 'event')}, the first from file {file} row {row}"


def check_weighted(workload: Workload, name: str, layout: Layout) -> None:
    """Raise ConfigError when events have weights which the workload does not use."""
    if layout.weight and not getattr(workload, "weighted", False):
        raise ConfigError(
            f"train.workload: {name} lacks `weighted = True`, but events have the weight {layout.weight}; "
            'weigh its losses by batch["weight"] and its scores by truth.columns["weight"] and set it, or '
            "name a reader without a weight"
        )


def with_weights(batch: Batch, events: Events, index: NDArray[np.integer[Any]], weight: str) -> Batch:
    """Add the weights of the events at ``index`` to their batch, from the column ``weight``, if there is one.

    Raise PluginError when collate made a tensor of that name.
    """
    if not weight:
        return batch
    if WEIGHT in batch:
        raise PluginError(
            f"collate gave a tensor {WEIGHT!r}, which the engine adds from the column {weight}; rename it"
        )
    return {**batch, WEIGHT: torch.from_numpy(events.columns[weight][index].astype(np.float32))}


def weighed(events: Events, weight: str) -> Events:
    """Return events to score, with their weights as the column ``weight``, whatever the layout calls it."""
    if not weight:
        return events
    columns = {**events.columns, WEIGHT: events.columns[weight]}
    return Events(columns, events.multiplicity, events.items)
