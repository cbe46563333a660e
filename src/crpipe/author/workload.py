"""A base for workloads: the author writes batches, loss, outputs and values of events; the rest follows.

What the engine asks for (crpipe.train.workload) is filled in from these; a member that is written in the
class itself is used as it is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from crpipe.core.errors import PluginError
from crpipe.events.batch import Events
from crpipe.events.layout import WEIGHT, Metric
from crpipe.statistics.groups import mean
from crpipe.train.workload import Batch, Columns, Measured, OptimizerSpec, Phase

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    from crpipe.inference.card import Provenance
    from crpipe.inference.export import Graphs
    from crpipe.inference.onnx_graph import Graph

_GRAPH = "model.onnx"
# What an author may write beside what is required, and which members of the engine follow from it.
_FOLLOW = {"graph": ("graphs", "card"), "generate": ("multiplicities",)}


class BaseWorkload(ABC):
    """What a model learns from, and how good it is.

    Required: ``event_columns``, ``item_columns``, ``model``, ``batch`` (or ``collate``), ``optimizer`` and
    ``loss`` (or ``phases``), and either ``outputs`` (a prediction for each event) or ``generate`` (whole
    events). Optional: ``each``, ``measures``, ``figures``, ``baseline``, ``graph``, and every optional member
    of the engine.

    metrics: the numbers that reports show. monitored: those of ``each`` that are validated inside the
    training. optimizer: of all parameters. fixed: of a generator whose events all have as many items.
    """

    metrics: tuple[Metric, ...] = ()
    event_columns: tuple[str, ...]
    item_columns: tuple[str, ...]
    monitored: ClassVar[tuple[str, ...]] = ()
    fixed: ClassVar[int] = 0
    optimizer: OptimizerSpec

    def __init__(self, options: Any) -> None:
        self.options = options

    def __init_subclass__(cls) -> None:
        """Add the optional members of the engine that follow from what the author wrote."""
        super().__init_subclass__()
        for name, members in _FOLLOW.items():
            for member in members if hasattr(cls, name) else ():
                if not hasattr(cls, member):
                    setattr(cls, member, getattr(_Following, member))
        if cls.monitored:
            known = {metric.name: metric for metric in cls.metrics}
            lacking = [name for name in cls.monitored if name not in known]
            if lacking:
                raise PluginError(f"{cls.__name__}.monitored: {lacking[0]} is none of its metrics")
            cls.validation_metrics = tuple(known[name] for name in cls.monitored)  # type: ignore[attr-defined]
            cls.validate = _Following.validate  # type: ignore[attr-defined]

    # Written by the author.

    @abstractmethod
    def model(self) -> nn.Module:
        """Build the whole model, initialised from torch's global generator."""

    def batch(self, events: Events, rng: np.random.Generator) -> Mapping[str, NDArray[Any] | Tensor]:
        """Turn events into what the model gets; a function of its arguments: events are read-only."""
        raise NotImplementedError(f"{type(self).__name__} has neither batch nor collate")

    def loss(self, model: nn.Module, batch: Batch, generator: torch.Generator) -> Any:
        """Return the mean loss of a batch, or (loss, further numbers by name); see crpipe.train.workload."""
        raise NotImplementedError(f"{type(self).__name__} has neither loss nor phases")

    def outputs(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor | NDArray[Any]]:
        """Predict for a batch on the device: an array [N] or [N, K] for each predicted quantity."""
        raise NotImplementedError(f"{type(self).__name__} has neither outputs nor generate")

    def measures(self, truth: Events, predicted: Any) -> Mapping[str, Measured]:  # noqa: ARG002
        """Measure what is no mean over events; see ``score`` of crpipe.train.workload."""
        return {}

    def figures(  # noqa: B027 - most have none
        self, truth: Events, predicted: Any, new: Callable[[str, float], Axes]
    ) -> None:
        """Draw figures: ``new(name, height in inches)`` gives axes; they are saved where this returns."""

    def events(self, given: Events, counts: NDArray[Any], items: NDArray[Any]) -> Events:
        """Make generated events: the columns of the given ones, and items [M, K], event after event."""
        items = np.ascontiguousarray(items, np.float32)
        return Events(given.columns, np.asarray(counts).astype(np.uint32), items)

    # What the engine asks for.

    def size(self, events: Events) -> NDArray[np.integer[Any]]:
        """Count the items that each event puts into a batch."""
        return events.multiplicity

    def collate(self, events: Events, index: NDArray[np.integer[Any]], seed: tuple[int, ...]) -> Batch:
        """Turn the events at ``index`` into tensors on the CPU."""
        arrays = self.batch(_read_only(events.take(index)), np.random.default_rng([0, *seed]))
        return {
            name: each if isinstance(each, Tensor) else torch.from_numpy(_own(each))
            for name, each in arrays.items()
        }

    def phases(self) -> list[Phase]:
        """Return one phase of all parameters with the optimizer."""
        return [Phase("fit", lambda model: model.parameters(), self.loss, self.optimizer, average=True)]

    def predict(self, model: nn.Module, events: Events, generator: torch.Generator) -> Events | Columns:
        """Predict for events: the outputs of the model, or generated events."""
        if hasattr(self, "generate"):
            counts = self.multiplicities(model, events, generator)  # type: ignore[attr-defined]
            generated: Events = self.generate(model, events, counts, generator)
            return generated
        return self._outputs(model, events)

    def on_device(self, model: nn.Module, events: Events, seed: tuple[int, ...] = ()) -> Batch:
        """Collate all events, and move them to the device of the model."""
        batch, device = self.collate(events, np.arange(len(events)), seed), next(model.parameters()).device
        return {name: each.to(device) for name, each in batch.items()}

    def _outputs(self, model: nn.Module, events: Events) -> Columns:
        outputs = self.outputs(model, self.on_device(model, events))
        return {name: _array(each) for name, each in outputs.items()}

    def score(self, truth: Events, prediction: Any, folder: Path) -> Mapping[str, Measured]:
        """Average the values of ``each``, add ``measures``, and draw."""
        numbers: dict[str, Measured] = {}
        if hasattr(self, "each"):
            weight = truth.columns.get(WEIGHT)
            numbers = {name: mean(each, weight) for name, each in _each(self, truth, prediction).items()}
        self._draw(truth, prediction, folder)
        return {**numbers, **self.measures(truth, prediction)}

    def _draw(self, truth: Events, predicted: Any, folder: Path) -> None:
        from crpipe.report import figure_style as style  # noqa: PLC0415 - training needs no matplotlib

        drawn = {}

        def new(name: str, height: float) -> Axes:
            drawn[name] = style.new_figure(height)
            return drawn[name].subplots()

        with style.style():
            self.figures(truth, predicted, new)
            for name, figure in drawn.items():
                style.save(figure, folder / f"{name}.svg")


class _Following:
    """Members of the engine that a workload has where its author wrote what they follow from."""

    def validate(self: Any, model: nn.Module, events: Events, generator: torch.Generator) -> Columns:  # noqa: ARG002
        """Return the monitored values of events."""
        values = _each(self, events, self._outputs(model, events))
        return {name: values[name] for name in self.monitored}

    def multiplicities(
        self: Any,
        model: nn.Module,  # noqa: ARG002
        events: Events,
        generator: torch.Generator,  # noqa: ARG002
    ) -> NDArray[np.int64]:
        """Return the number of items that all events have."""
        if not self.fixed:
            raise PluginError(
                f"{type(self).__name__}: generate needs multiplicities(model, events, generator), or "
                "`fixed`, the items of every event"
            )
        return np.full(len(events), self.fixed, np.int64)

    def graphs(self: Any, model: nn.Module, made: Provenance, folder: Path) -> Graphs:
        """Write the graph, and compare it with the model."""
        from crpipe.inference.export import Graphs  # noqa: PLC0415 - training needs no onnx

        graph: Graph = self.graph(model, made.layout)
        apart = graph.export(folder / _GRAPH)
        described = {"inputs": list(graph.example), "outputs": list(graph.outputs), "difference": apart}
        return Graphs((_GRAPH,), {_GRAPH: described})

    def card(self: Any, made: Provenance, graphs: Graphs) -> Mapping[str, Sequence[str]]:  # noqa: ARG002
        """Describe how the graph is used."""
        graph = graphs.description[_GRAPH]
        inputs = ", ".join(f"{name!r}: …" for name in graph["inputs"])
        return {
            "Use": [
                "Needs `pip install numpy onnxruntime`; neither crpipe nor torch.",
                "",
                "```python",
                "import onnxruntime",
                "",
                f'session = onnxruntime.InferenceSession("{_GRAPH}")',
                f"[{', '.join(graph['outputs'])}] = session.run(None, {{{inputs}}})",
                "```",
                "",
                f"It differs from the checkpoint by at most {graph['difference']:.0e} of 1 + the value.",
            ]
        }


def _each(workload: Any, truth: Events, predicted: Any) -> Columns:
    """Return the values of ``each``; raise PluginError unless there is one for each event."""
    values = {name: np.asarray(value) for name, value in workload.each(truth, predicted).items()}
    for name, value in values.items():
        if value.shape != (len(truth),):
            raise PluginError(
                f"{type(workload).__name__}.each: {name} has the shape {list(value.shape)}, expected "
                f"[{len(truth)}]: one number for each event"
            )
    return values


def _read_only(events: Events) -> Events:
    """View events whose arrays cannot be changed: they are shared."""

    def locked(values: NDArray[Any]) -> NDArray[Any]:
        view = values.view()
        view.flags.writeable = False
        return view

    columns = {name: locked(each) for name, each in events.columns.items()}
    return Events(columns, locked(events.multiplicity), locked(events.items))


def _own(values: NDArray[Any]) -> NDArray[Any]:
    """Return an array that a tensor can share: writeable, and in C order."""
    values = np.ascontiguousarray(values)
    return values if values.flags.writeable else values.copy()


def _array(values: Tensor | NDArray[Any]) -> NDArray[Any]:
    return values.detach().float().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
