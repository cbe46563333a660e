"""A look at single events after an evaluation: the worst ones, and which faces a prediction depends on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from crpipe.workloads.xec.layout import PHOTONS, PHOTONS_VALID, TIME, TRUTH
from crpipe.workloads.xec.models.batches import sensors_of
from crpipe.workloads.xec.models.heads import UNITS, residual

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from crpipe.events.batch import Events
    from crpipe.train.workload import Columns
    from crpipe.workloads.xec.layout import Truth
    from crpipe.workloads.xec.models.heads import GammaModel

WORST = 6
SAMPLE = 128
_BLOCK = 32


def choose(truth: Events, prediction: Columns, tasks: Sequence[Truth]) -> NDArray[np.int64]:
    """Give the places of the worst events, worst first, then of a sample drawn with a fixed seed.

    The worst have the largest sum over tasks of the residual, each over its 68 % half width.
    """
    off = sum(
        each / max(float(np.quantile(each, 0.68)), 1e-12)
        for each in distances(truth, prediction, tasks).values()
    )
    worst = np.argsort(-np.nan_to_num(np.asarray(off)), kind="stable")[:WORST]
    sample = np.random.default_rng(0).permutation(len(truth))[:SAMPLE]
    return np.concatenate([worst, sample]).astype(np.int64)


def _worst_of(events: Events) -> int:
    """Count the worst among the chosen events: of fewer than WORST, all are both worst and sample."""
    return min(WORST, len(events) // 2)


def distances(truth: Events, prediction: Columns, tasks: Sequence[Truth]) -> dict[Truth, NDArray[np.float64]]:
    """Give the length of the residual of each task, in units of the task: [N] each."""
    found = {}
    for task in tasks:
        names = [field.name for field in TRUTH[task]]
        pair = [
            torch.from_numpy(np.stack([columns[name] for name in names], axis=1).astype(np.float64))
            for columns in (prediction, truth.columns)
        ]
        found[task] = residual(task, pair[0], pair[1], log=False).square().sum(dim=1).sqrt().numpy()
    return found


def draw_worst(events: Events, prediction: Columns, tasks: Sequence[Truth], folder: Path) -> None:
    """Draw the first events, which are the worst: the photons of all sensors on the unfolded detector."""
    from crpipe.workloads.xec.scoring import display  # noqa: PLC0415 - training must not load matplotlib

    count = _worst_of(events)
    sensors = sensors_of(events)[:count]
    titles = [_title(events, prediction, tasks, at) for at in range(count)]
    display.draw_events(
        folder / "worst_events.svg", sensors[..., PHOTONS], sensors[..., PHOTONS_VALID], titles
    )


def _title(events: Events, prediction: Columns, tasks: Sequence[Truth], at: int) -> str:
    lines = [f"run {events.columns['run'][at]}, event {events.columns['event'][at]}"]
    for field in (field for task in tasks for field in TRUTH[task]):
        scale, unit = (1000.0, "MeV") if field.unit == "GeV" else (1.0, field.unit)
        name = field.name.rpartition("_")[0].replace("_", " ")
        true, found = (float(columns[field.name][at]) * scale for columns in (events.columns, prediction))
        lines.append(f"{name} {found:.3g} {unit}, true {true:.3g}")
    return "\n".join(lines)


def saliency(model: GammaModel, events: Events, folder: Path) -> dict[str, float]:
    """Measure and draw which faces each task depends on: |gradient x input| of photons and times."""
    from crpipe.workloads.xec.scoring.saliency import (  # noqa: PLC0415 - matplotlib
        draw_saliency,
        face_shares,
        measure_saliency,
    )

    device = next(model.parameters()).device
    sensors = sensors_of(events)[_worst_of(events) :]
    found: dict[str, list[NDArray[Any]]] = {name: [] for name in model.heads}
    for first in range(0, len(sensors), _BLOCK):
        items = torch.tensor(sensors[first : first + _BLOCK], device=device, requires_grad=True)
        with torch.enable_grad():
            for name, (value, _) in model(items).items():
                units = value.new_tensor(UNITS[name])
                (slope,) = torch.autograd.grad((value / units).sum(), items, retain_graph=True)
                weight = (slope * items).abs()[..., [PHOTONS, TIME]].sum(dim=2)
                found[name].append(weight.detach().cpu().numpy())
    shares = {name: face_shares(np.concatenate(each)) for name, each in found.items() if each}
    if shares:
        draw_saliency(folder / "saliency.svg", shares)
    return measure_saliency(shares)
