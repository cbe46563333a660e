"""Writes a module as an ONNX graph that runs without torch, and compares the two.

For the workloads that are Exportable.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from crpipe.core.errors import CheckpointError, require
from crpipe.core.files import atomic_write

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray
    from torch import Tensor, nn

_WHY = "to export a model as ONNX graphs"
onnx = require("onnx", extra="export", why=_WHY)
onnxruntime = require("onnxruntime", extra="export", why=_WHY)
require("onnxscript", extra="export", why=_WHY)  # torch.onnx imports it

OPSET = 20


def write_graph(
    path: Path,
    module: nn.Module,
    inputs: Mapping[str, Tensor],
    rows: Mapping[str, str],
    outputs: Sequence[str],
) -> None:
    """Trace ``module`` with ``inputs`` and write the graph, with equal bytes for equal weights.

    inputs: keyword arguments of the module's forward; the names of the graph's inputs too. rows: the name of
    the first dimension of each input, which may have any length; inputs that share a name share the length.
    """
    dimensions = {name: torch.export.Dim(name) for name in rows.values()}
    with _quiet(), torch.no_grad():
        program = torch.onnx.export(
            module.eval(),
            kwargs=dict(inputs),
            dynamo=True,
            dynamic_shapes={name: {0: dimensions[rows[name]]} for name in inputs},
            input_names=list(inputs),
            output_names=list(outputs),
            opset_version=OPSET,
            verbose=False,
        )
    assert program is not None
    model = program.model_proto
    _strip(model)
    with atomic_write(path) as part:
        part.write_bytes(model.SerializeToString(deterministic=True))


def graph_difference(path: Path, module: nn.Module, inputs: Mapping[str, Tensor]) -> float:
    """Run a written graph beside its module; give the largest difference, relative to 1 + the value."""
    with torch.no_grad():
        wanted: Any = module(**inputs)
    tensors = [wanted] if isinstance(wanted, torch.Tensor) else list(wanted)
    return largest_difference(run_graph(path, inputs), [tensor.numpy() for tensor in tensors])


def run_graph(path: Path, inputs: Mapping[str, Tensor]) -> list[NDArray[Any]]:
    """Run a written graph without torch; give its outputs in their order."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    found: list[NDArray[Any]] = session.run(None, {name: value.numpy() for name, value in inputs.items()})
    return found


def largest_difference(found: Iterable[NDArray[Any]], wanted: Iterable[NDArray[Any]]) -> float:
    """Compare arrays pair by pair; give the largest difference, relative to 1 + the value, or NaN."""
    pairs = zip(found, wanted, strict=True)
    return float(np.max([np.max(np.abs(one - other) / (1.0 + np.abs(other))) for one, other in pairs]))


def refuse_difference(path: Path, worst: float, most: float) -> None:
    """Raise CheckpointError when a graph differs from its model by more than ``most``, or by NaN."""
    if not worst <= most:
        raise CheckpointError(
            f"{path}: the exported graph differs from the model by {worst:.1e} (at most {most:g} is "
            "allowed); are the weights finite?"
        )


def _strip(model: Any) -> None:
    """Drop what the exporter notes about where it ran: paths of this machine in every node."""
    checker = require("onnx.checker", extra="export", why=_WHY)

    graph = model.graph
    nodes = [*graph.node, *(node for function in model.functions for node in function.node)]
    for item in [model, graph, *nodes, *graph.value_info, *graph.input, *graph.output, *graph.initializer]:
        del item.metadata_props[:]
        item.doc_string = ""
    checker.check_model(model)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress what the exporter prints for its developers: deprecations in torch, missing torchvision."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
