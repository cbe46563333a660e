"""A sampler as two ONNX graphs that run without torch, and the check that they compute the same."""

from __future__ import annotations

import contextlib
import logging
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from crpipe.core.errors import CheckpointError
from crpipe.core.extras import require
from crpipe.core.files import replacing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray
    from torch import Tensor, nn

    from crpipe.workloads.muons.models.sampling import SamplerGraphs

_WHY = "to export a model as ONNX graphs"
onnx = require("onnx", extra="export", why=_WHY)
onnxruntime = require("onnxruntime", extra="export", why=_WHY)
require("onnxscript", extra="export", why=_WHY)  # torch.onnx imports it

LAW = "multiplicity.onnx"
MUONS = "muons.onnx"
LAW_OUTPUTS = ("log_weight", "log_mean", "log_shape", "empty_logit")
OPSET = 20

_EXPORTERS = ("torch.onnx", "onnxscript", "onnx_ir")


def write_graphs(sampler: SamplerGraphs, primaries: NDArray[np.float32], folder: Path) -> None:
    """Write both graphs, traced with ``primaries`` [N, 4], for any number of events and muons."""
    inputs = _example(sampler, torch.from_numpy(primaries))
    rows = {"primaries": "events", "multiplicity": "events", "event": "muons"}
    rows |= {noise.name: noise.rows for noise in sampler.noise}
    _write(folder / LAW, sampler.multiplicity, {"primaries": inputs["primaries"]}, rows, LAW_OUTPUTS)
    _write(folder / MUONS, sampler.muons, inputs, rows, ("muons",))


def check_graphs(sampler: SamplerGraphs, primaries: NDArray[np.float32], folder: Path) -> float:
    """Run both graphs beside the model and return the worst difference, relative to 1 + the value.

    Raise CheckpointError when it is beyond the sampler's tolerance.
    """
    inputs = _example(sampler, torch.from_numpy(primaries))
    law = _difference(folder / LAW, sampler.multiplicity, {"primaries": inputs["primaries"]})
    worst = float(np.maximum(law, _difference(folder / MUONS, sampler.muons, inputs)))
    if not worst <= sampler.tolerance:  # so that NaN is refused
        raise CheckpointError(
            f"{folder}: the exported sampler differs from the model by {worst:.1e} (at most "
            f"{sampler.tolerance:g} is allowed); are the weights finite?"
        )
    return worst


def _example(sampler: SamplerGraphs, primaries: Tensor) -> dict[str, Tensor]:
    """Make inputs with bundles of 1 to 40 muons, and noise."""
    events = len(primaries)
    generator = torch.Generator().manual_seed(0)
    multiplicity = torch.randint(1, 41, (events,), generator=generator)
    event = torch.repeat_interleave(torch.arange(events), multiplicity)
    inputs = {"primaries": primaries, "multiplicity": multiplicity, "event": event}
    draw = {"normal": torch.randn, "uniform": torch.rand}
    for noise in sampler.noise:
        rows = events if noise.rows == "events" else len(event)
        inputs[noise.name] = draw[noise.law](rows, noise.columns, generator=generator)
    return inputs


def _write(
    path: Path, module: nn.Module, inputs: dict[str, Tensor], rows: dict[str, str], outputs: tuple[str, ...]
) -> None:
    dimensions = {name: torch.export.Dim(name) for name in ("events", "muons")}
    with _quiet(), torch.no_grad():
        program = torch.onnx.export(
            module.eval(),
            kwargs=inputs,
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
    with replacing(path) as part:
        part.write_bytes(model.SerializeToString(deterministic=True))


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
    loggers = [logging.getLogger(name) for name in _EXPORTERS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _difference(path: Path, module: nn.Module, inputs: dict[str, Tensor]) -> float:
    """Run a written graph beside its module; give the largest difference, relative to 1 + size."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    found = session.run(None, {name: value.numpy() for name, value in inputs.items()})
    with torch.no_grad():
        wanted: Any = module(**inputs)
    tensors = [wanted] if isinstance(wanted, torch.Tensor) else list(wanted)
    gaps = [
        np.max(np.abs(there - here.numpy()) / (1.0 + np.abs(here.numpy())))
        for there, here in zip(found, tensors, strict=True)
    ]
    return float(np.max(gaps))
