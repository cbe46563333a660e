"""A sampler as two ONNX graphs that run without torch, and the check that they compute the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from crpipe.inference.onnx_graph import graph_difference, refuse_difference, write_graph

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray
    from torch import Tensor

    from crpipe.workloads.muons.models.sampling import SamplerGraphs

LAW = "multiplicity.onnx"
MUONS = "muons.onnx"
LAW_OUTPUTS = ("log_weight", "log_mean", "log_shape", "empty_logit")


def write_graphs(sampler: SamplerGraphs, primaries: NDArray[np.float32], folder: Path) -> None:
    """Write both graphs, traced with ``primaries`` [N, 4], for any number of events and muons."""
    inputs = _example(sampler, torch.from_numpy(primaries))
    rows = {"primaries": "events", "multiplicity": "events", "event": "muons"}
    rows |= {noise.name: noise.rows for noise in sampler.noise}
    write_graph(folder / LAW, sampler.multiplicity, {"primaries": inputs["primaries"]}, rows, LAW_OUTPUTS)
    write_graph(folder / MUONS, sampler.muons, inputs, rows, ("muons",))


def check_graphs(sampler: SamplerGraphs, primaries: NDArray[np.float32], folder: Path) -> float:
    """Run both graphs beside the model and return the worst difference, relative to 1 + the value.

    Raise CheckpointError when it is beyond the sampler's tolerance.
    """
    inputs = _example(sampler, torch.from_numpy(primaries))
    law = graph_difference(folder / LAW, sampler.multiplicity, {"primaries": inputs["primaries"]})
    worst = float(np.maximum(law, graph_difference(folder / MUONS, sampler.muons, inputs)))
    refuse_difference(folder, worst, sampler.tolerance)
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
