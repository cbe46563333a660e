"""The figure of sensors that were hidden and found again: by face, and by the photons that they saw."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from crpipe.report import figure_style as style
from crpipe.workloads.xec.scoring.hidden import TITLES, errors
from crpipe.workloads.xec.sensors import FACES

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes

    from crpipe.workloads.xec.scoring.hidden import HiddenSensors

_EDGES = np.array([1, 3, 10, 30, 100, 300, 1000, 3000, 10_000, 30_000], np.float64)
_FEWEST = 20  # sensors in a bin
_FROM = 10  # photons from which a bias is a share of them
_POISSON_MAE = np.sqrt(2 / np.pi)  # of counts about their mean, in square roots of the mean
_MARKERS = ("o", "s", "^")


def draw(hidden: HiddenSensors, path: Path) -> Path:
    """Plot the error by face, and error and bias by the photons of the hidden sensor; return the path."""
    with style.style():
        figure = style.new_figure(3.6)
        faces, sizes, biases = figure.subplots(1, 3, width_ratios=(1.5, 1, 1))
        _by_face(faces, hidden)
        _by_photons(sizes, biases, hidden)
        handles, labels = sizes.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4)
        figure.suptitle(
            f"{len(hidden.true):,} hidden sensors of {hidden.events:,} held-out events", fontsize=9
        )
        return style.save(figure, path)


def _by_face(axis: Axes, hidden: HiddenSensors) -> None:
    width = 0.8 / len(hidden.photons)
    for number, method in enumerate(hidden.photons):
        found = errors(hidden, method, hidden.face, len(FACES))
        known = np.isfinite(found.mae)
        where = np.arange(len(FACES)) + (number - (len(hidden.photons) - 1) / 2) * width
        by_face: dict[str, Any] = {
            "face": [FACES[place] for place in np.flatnonzero(known)],
            "value": found.mae[known],
        }
        style.note(axis.figure, "mean absolute error by face", TITLES[method], **by_face)
        spread: dict[str, Any] = {"yerr": np.nan_to_num(found.error["mae"][known]), "ecolor": style.REAL}
        axis.bar(where[known], found.mae[known], width, color=style.COLOURS[number], **spread)
    axis.set_xticks(range(len(FACES)), FACES)
    axis.grid(visible=False, axis="x")
    axis.set(title="by face", ylabel="mean absolute error [photons]")


def _by_photons(sizes: Axes, biases: Axes, hidden: HiddenSensors) -> None:
    number = np.searchsorted(_EDGES, hidden.true, side="right")
    count = np.bincount(number, minlength=len(_EDGES) + 1)
    light = np.bincount(number, hidden.true, len(count)) / np.maximum(count, 1)
    shown = (count >= _FEWEST) & (np.arange(len(count)) > 0)
    for place, method in enumerate(hidden.photons):
        found = errors(hidden, method, number, len(count))
        line: dict[str, Any] = {
            "fmt": f"{_MARKERS[place]}-",
            "markersize": 3.5,
            "color": style.COLOURS[place],
            "label": TITLES[method],
        }
        by_light = {"photons": light[shown], "value": found.mae[shown], "bias": found.bias[shown]}
        style.note(sizes.figure, "mean absolute error by light", TITLES[method], **by_light)
        sizes.errorbar(light[shown], found.mae[shown], np.nan_to_num(found.error["mae"][shown]), **line)
        bright = shown & (light >= _FROM)
        share, spread = (
            100 * each[bright] / light[bright] for each in (found.bias, np.nan_to_num(found.error["bias"]))
        )
        biases.errorbar(light[bright], share, spread, **line)
    ends = light[shown]
    if len(ends):
        limit = _POISSON_MAE * np.sqrt(ends)
        sizes.plot(ends, limit, "--", color=style.REAL, linewidth=1.0, label="Poisson noise of the sensor")
        sizes.set(xscale="log", yscale="log")
        biases.set(xscale="log")
    biases.axhline(0.0, linestyle="--", color=style.REAL, linewidth=1.0)
    sizes.set(title="by light", xlabel="photons of the hidden sensor", ylabel="mean absolute error [photons]")
    biases.set(
        title="bias by light", xlabel="photons of the hidden sensor", ylabel="mean error [% of photons]"
    )
