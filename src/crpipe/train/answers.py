"""What a workload returns, checked where it is returned: one sentence names class, method, expected, found.

A workload's own exception becomes such a sentence too (``WorkloadCall``, ``plugin_errors``).
"""

from __future__ import annotations

import difflib
import math
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn

from crpipe.core.causes import plugin_errors
from crpipe.core.errors import PluginError
from crpipe.core.text import counted
from crpipe.events.batch import Events, spelled
from crpipe.report.evaluations import ERROR
from crpipe.train.workload import Batch, Columns, Metrics, Phase, Workload, WorkloadCall, method_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from numpy.typing import NDArray

    from crpipe.events.layout import Layout, Metric

_TABLE = 2  # dimensions of a column that holds several numbers for each event


def refuse(method: str, expected: str, actual: str) -> NoReturn:
    """Raise PluginError; method: ``module:Class.method``."""
    raise PluginError(f"{method}: expected {expected}, found {actual}")


def phases_of(workload: Workload) -> list[Phase]:
    """Return the phases of a workload; raise PluginError for anything else than a list of them."""
    method = method_of(workload, "phases")
    with plugin_errors(f"train.workload: {method} failed"):
        phases: Any = workload.phases()
    if not isinstance(phases, list | tuple) or not phases:
        refuse(method, "a list of Phase", _kind(phases))
    for phase in phases:
        if not isinstance(phase, Phase):
            refuse(method, "a list of Phase", f"{_kind(phase)} in it")
    names = [phase.name for phase in phases]
    if len({*names}) != len(names):
        refuse(method, "a name of its own for each phase", ", ".join(names))
    return list(phases)


def model_of(workload: Workload) -> nn.Module:
    """Build the model of a workload; raise PluginError when there is none."""
    method = method_of(workload, "model")
    with plugin_errors(f"train.workload: {method} failed"):
        model: Any = workload.model()
    if not isinstance(model, nn.Module):
        refuse(method, "an nn.Module", _kind(model))
    return model


def params_of(phase: Phase, model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that a phase trains; raise PluginError when it fails."""
    with plugin_errors(f"phase {phase.name}: its params failed"):
        return list(phase.params(model))


def sizes_of(workload: Workload, events: Events) -> NDArray[np.integer[Any]]:
    """Return how many items each event puts into a batch: [N]; raise PluginError when the workload fails."""
    with WorkloadCall(workload, "size", events):
        return workload.size(events)


def collated(workload: Workload, events: Events, index: NDArray[Any], seed: tuple[int, ...]) -> Batch:
    """Collate the events at ``index``; raise PluginError unless it gives tensors on the CPU, by name."""
    with WorkloadCall(workload, "collate", events, index):
        batch: Any = workload.collate(events, index, seed)
    if not isinstance(batch, dict):
        refuse(method_of(workload, "collate"), "a dict of tensors", _kind(batch))
    for name, value in batch.items():
        if not isinstance(value, Tensor) or value.device.type != "cpu":
            refuse(method_of(workload, "collate"), f"{name!r} as a tensor on the CPU", _kind(value))
    return dict(batch)


class _LossCall(plugin_errors):
    """Turns an exception of a loss into a PluginError; not those that the engine itself has to judge."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave full memory of a GPU to the step, and bad gradients to the search for them."""
        if not isinstance(error, torch.OutOfMemoryError) and not torch.is_anomaly_enabled():
            super().__exit__(kind, error, trace)


def loss_of(
    workload: Workload, phase: Phase, model: nn.Module, batch: Batch, generator: torch.Generator
) -> tuple[Tensor, Metrics]:
    """Compute a phase's loss and metrics; raise PluginError unless all of them are scalar tensors.

    Shapes alone are looked at: a value would have to be waited for.
    """
    with _LossCall(f"{loss_name(workload, phase)} failed"):
        result: Any = phase.loss(model, batch, generator)
    pair = isinstance(result, tuple) and len(result) == len(("loss", "metrics"))
    loss, metrics = result if pair else (result, {})
    if not isinstance(loss, Tensor) or loss.shape != ():
        what = "a scalar tensor, the mean over the events, or (scalar, metrics)"
        refuse(loss_name(workload, phase), what, _kind(loss))
    if not isinstance(metrics, dict):
        refuse(loss_name(workload, phase), "a dict of metrics beside the scalar", _kind(metrics))
    for name, value in metrics.items():
        if not isinstance(value, Tensor) or value.shape != ():
            what = f"the metric {name} as a detached scalar tensor"
            refuse(loss_name(workload, phase), what, _kind(value))
    return loss, metrics


def loss_name(workload: object, phase: Phase) -> str:
    """Name the loss of a phase: ``module:Class: the loss of phase fit``."""
    return f"{method_of(workload, '').rstrip('.')}: the loss of phase {phase.name}"


def check_generated(events: Any, count: int, layout: Layout, method: str) -> None:
    """Raise PluginError unless there are ``count`` events of the layout's width and size."""
    if not isinstance(events, Events):
        refuse(method, f"Events, {count} of them", _kind(events))
    width = events.items.shape[1] if events.items.ndim > 1 else 0
    if len(events) != count or width != len(layout.items):
        expected = f"{counted(count, 'event')} with {counted(len(layout.items), 'item column')}"
        refuse(method, expected, f"{counted(len(events), 'event')} with {width}")
    if layout.fixed and (events.multiplicity != layout.fixed).any():
        other = events.multiplicity[events.multiplicity != layout.fixed][0]
        refuse(method, f"{layout.fixed} {layout.item} in each event", str(other))


def checked_columns(prediction: Any, count: int, method: str) -> Columns:
    """Return the columns as arrays [count] or [count, K]; raise PluginError when they are something else.

    A column of lists is an array of objects, each of them an array [any length] of the same type.
    """
    if not isinstance(prediction, dict):
        refuse(method, "Events or a dict of arrays", _kind(prediction))
    columns = {str(name): np.asarray(values) for name, values in prediction.items()}
    for name, values in columns.items():
        several = values.ndim == _TABLE and values.shape[1] > 0 and values.dtype != object
        if values.shape != (count,) and not (several and len(values) == count):
            raise PluginError(
                f"{method}: the column {name} has the shape {list(values.shape)}, expected [{count}]"
            )
        if values.dtype == object and count:
            _check_lists(values, f"{method}: the column {name}")
    return columns


def _check_lists(values: NDArray[Any], what: str) -> None:
    """Raise PluginError for a column that holds some arrays, unless all are flat and of one simple type."""
    kinds = {
        (str(each.dtype), each.ndim) if isinstance(each, np.ndarray) else (type(each).__name__, -1)
        for each in values
    }
    (name, dimensions), *others = sorted(kinds, key=lambda kind: (-kind[1], kind[0]))
    if dimensions < 0 or (dimensions == 1 and name != "object" and not others):
        return
    types = ", ".join(f"{name} {'[]' * max(dimensions, 0)}".rstrip() for name, dimensions in sorted(kinds))
    raise PluginError(
        f"{what} holds {types}; a column of lists needs one flat array for each event, all of the same type: "
        "an empty one is np.empty(0, np.float32); crpipe.events.batch.cut_lists makes such a column"
    )


def _kind(value: Any) -> str:
    """Name what was returned: its type, and its shape where it has one."""
    if isinstance(value, Tensor):
        where = "" if value.device.type == "cpu" else f" on {value.device.type}"
        return f"a tensor {list(value.shape)}{where}"
    return spelled(value)


def unmeasured(method: str, metrics: Sequence[Metric], given: Mapping[str, Any], groups: int) -> list[str]:
    """List why declared metrics, which ``score`` owed for so many groups of events, have no number.

    given: what ``score`` returned, a number or None where it is not finite. A metric that needs more is left
    to ``not_enough``.
    """
    declared = {metric.name for metric in metrics}
    others = [name for name in given if name not in declared and not name.endswith(ERROR)]
    sentences = []
    for metric in metrics:
        value = given.get(metric.name)
        if metric.groups > groups or (value is not None and math.isfinite(value)):
            continue
        is_given = metric.name in given
        near = [] if is_given else difflib.get_close_matches(metric.name, others, n=1)
        if metric.needs and not near:
            continue
        if is_given:
            actual = "one that is not finite"
        else:
            actual = f"{near[0]}; did you mean {metric.name}?" if near else ", ".join(others) or "nothing"
        what = f"a finite {metric.name}, which `metrics` declares"
        sentences.append(f"{method}: expected {what}, found {actual}")
    return sentences
