"""A look at single events after an evaluation: the worst ones, and which faces a prediction depends on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from crpipe.report import figure_style as style
from crpipe.workloads.xec.layout import PHOTONS, PHOTONS_VALID, TIME, TRUTH
from crpipe.workloads.xec.models.features import sensors_of
from crpipe.workloads.xec.models.heads import UNITS, residual
from crpipe.workloads.xec.sensors import FACE_IDS, FACES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from crpipe.events.batch import Events
    from crpipe.train.workload import Columns
    from crpipe.workloads.xec.layout import Truth
    from crpipe.workloads.xec.models.heads import GammaModel

    Shares = Mapping[str, NDArray[np.floating[Any]]]

WORST = 6
SAMPLE = 128
_BLOCK = 32


def choose(truth: Events, prediction: Columns, tasks: Sequence[Truth]) -> NDArray[np.int64]:
    """Return the places of the worst events, worst first, then of a sample drawn with a fixed seed.

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
    """Return the length of the residual of each task, in units of the task: [N] each."""
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


# Which faces a prediction listens to: the share of |gradient x input| on each face.


def face_shares(weight: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """Return the share of each face in what its sensors weigh, [N, 6]; NaN where all is 0.

    weight: [N, 4760], not negative, such as |gradient x input|.
    """
    sums = np.stack([weight[:, FACE_IDS[face]].sum(axis=1, dtype=np.float64) for face in FACES], axis=1)
    total = sums.sum(axis=1, keepdims=True)
    return sums / np.where(total > 0, total, np.nan)


def measure_saliency(shares: Shares) -> dict[str, float]:
    """Return the mean share of each face, ``saliency_TASK_FACE``, with its error; shares: {task: [N, 6]}."""
    found: dict[str, float] = {}
    for task, share in shares.items():
        means, errors = _means(share)
        for face, mean, error in zip(FACES, means, errors, strict=True):
            found |= {f"saliency_{task}_{face}": float(mean), f"saliency_{task}_{face}_error": float(error)}
    return {name: value for name, value in found.items() if np.isfinite(value)}


def draw_saliency(path: Path, shares: Shares) -> Path:
    """Plot the mean share of each face for each task, with errors of the means; return the path."""
    with style.style():
        figure = style.new_figure(3.0)
        axis = figure.subplots()
        width = 0.8 / max(1, len(shares))
        for number, (task, share) in enumerate(shares.items()):
            means, errors = (100 * np.nan_to_num(each) for each in _means(share))
            style.note(figure, "by face", task, face=FACES, percent=means, error=errors)
            where = np.arange(len(FACES)) + (number - (len(shares) - 1) / 2) * width
            axis.bar(
                where,
                means,
                width,
                yerr=errors,
                color=style.COLOURS[number % 6],
                ecolor=style.REAL,
                label=task,
            )
        sensors = [100 * len(FACE_IDS[face]) / sum(map(len, FACE_IDS.values())) for face in FACES]
        axis.hlines(
            sensors,
            np.arange(6) - 0.45,
            np.arange(6) + 0.45,
            colors=style.REAL,
            linestyles="--",
            linewidth=1.0,
            label="share of the sensors",
        )
        axis.set_xticks(range(len(FACES)), FACES)
        axis.grid(visible=False, axis="x")
        axis.set(
            ylim=(0, None),
            ylabel="mean share of |gradient · input| [%]",
            title="what the predictions depend on, by face",
        )
        axis.legend(loc="upper right")
        return style.save(figure, path)


def _means(share: NDArray[np.floating[Any]]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return means and their errors over events, [6] each; events without a share are left out."""
    known = np.asarray(share, np.float64)
    known = known[np.isfinite(known).all(axis=1)]
    if not len(known):
        return np.full(len(FACES), np.nan), np.full(len(FACES), np.nan)
    return known.mean(axis=0), known.std(axis=0) / np.sqrt(len(known))
