"""Writes a module as an ONNX graph that runs without torch, and compares the two.

For the workloads that are Exportable.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from crpipe.core.errors import CheckpointError, require
from crpipe.core.files import atomic_write

if TYPE_CHECKING:
    from pathlib import Path

_WHY = "to export a model as ONNX graphs"

OPSET = 20


Inputs = Mapping[str, Tensor]


@dataclass(frozen=True)
class Graph:
    """One graph of a model, and what it has to agree with.

    module: what is traced; called with the inputs by their names. rows: the name of the first dimension of
    each input, which may have any length; inputs that share a name share the length. outputs: their names.
    example: inputs to trace it with. tolerance: of the difference, relative to 1 + the value. checks: inputs
    for which both are compared; none: the example. compared: turns outputs into the values to compare.
    expected: gives these values for the inputs of a check, where they are not those of the module.
    """

    module: nn.Module
    rows: Mapping[str, str]
    outputs: Sequence[str]
    example: Inputs
    tolerance: float
    checks: Sequence[Inputs] = ()
    compared: Callable[[Sequence[Tensor]], Sequence[Tensor]] = list
    expected: Callable[[Inputs], Sequence[Tensor]] | None = None

    def export(self, path: Path) -> float:
        """Write the graph, with equal bytes for equal weights, and check it; return the difference."""
        for library in ("onnx", "onnxscript", "onnxruntime"):  # torch.onnx imports the first two
            require(library, extra="export", why=_WHY)
        dimensions = {name: torch.export.Dim(name) for name in self.rows.values()}
        with _quiet(), torch.no_grad():
            program = torch.onnx.export(
                self.module.eval(),
                kwargs=dict(self.example),
                dynamo=True,
                dynamic_shapes={name: {0: dimensions[self.rows[name]]} for name in self.example},
                input_names=list(self.example),
                output_names=list(self.outputs),
                opset_version=OPSET,
                verbose=False,
            )
        assert program is not None
        model = program.model_proto
        _strip(model)
        with atomic_write(path) as part:
            part.write_bytes(model.SerializeToString(deterministic=True))
        return self.check(path)

    def check(self, path: Path) -> float:
        """Compare a written graph, run without torch, with what it has to compute.

        Return the largest difference, relative to 1 + the value; raise CheckpointError when it is beyond the
        tolerance, or no number.
        """
        onnxruntime = require("onnxruntime", extra="export", why=_WHY)
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        worst = float(np.max([self._difference(session, inputs) for inputs in self.checks or [self.example]]))
        if not worst <= self.tolerance:
            raise CheckpointError(
                f"{path}: the exported graph differs from the model by {worst:.1e} (at most "
                f"{self.tolerance:g} is allowed); are the weights finite?"
            )
        return worst

    def _difference(self, session: Any, inputs: Inputs) -> float:
        arrays = session.run(None, {name: value.numpy() for name, value in inputs.items()})
        with torch.no_grad():
            values = self.compared([torch.from_numpy(array) for array in arrays])
            expected = self.expected(inputs) if self.expected else self.compared(self._outputs(inputs))
        pairs = [(one.numpy(), other.numpy()) for one, other in zip(values, expected, strict=True)]
        return float(np.max([np.max(np.abs(one - other) / (1.0 + np.abs(other))) for one, other in pairs]))

    def _outputs(self, inputs: Inputs) -> list[Tensor]:
        outputs = self.module.eval()(**inputs)
        return [outputs] if isinstance(outputs, Tensor) else list(outputs)


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
