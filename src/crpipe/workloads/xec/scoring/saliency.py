"""Which faces a prediction listens to: the share of |gradient x input| on each face."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from crpipe.report import figure_style as style
from crpipe.workloads.xec.sensors import FACE_IDS, FACES

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    Shares = Mapping[str, NDArray[np.floating[Any]]]


def face_shares(weight: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """Give the share of each face in what its sensors weigh, [N, 6]; NaN where all is 0.

    weight: [N, 4760], not negative, such as |gradient x input|.
    """
    sums = np.stack([weight[:, FACE_IDS[face]].sum(axis=1, dtype=np.float64) for face in FACES], axis=1)
    total = sums.sum(axis=1, keepdims=True)
    return sums / np.where(total > 0, total, np.nan)


def measure_saliency(shares: Shares) -> dict[str, float]:
    """Give the mean share of each face, ``saliency_TASK_FACE``, with its error; shares: {task: [N, 6]}."""
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
    """Give means and their errors over events, [6] each; events without a share are left out."""
    known = np.asarray(share, np.float64)
    known = known[np.isfinite(known).all(axis=1)]
    if not len(known):
        return np.full(len(FACES), np.nan), np.full(len(FACES), np.nan)
    return known.mean(axis=0), known.std(axis=0) / np.sqrt(len(known))
