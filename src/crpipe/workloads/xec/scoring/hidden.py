"""Sensors that were hidden and found again: what each method found, and how far that is from the truth."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from crpipe.events.layout import Metric
from crpipe.statistics.groups import Statistic, derived, ratio, value_and_error
from crpipe.workloads.xec.layout import PHOTONS, PHOTONS_VALID, Face
from crpipe.workloads.xec.sensors import FACES, face_of

# ruff: noqa: PLC0415 - numbers alone need no matplotlib

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Numbers = NDArray[np.int64]
    from pathlib import Path

    from matplotlib.axes import Axes

    from crpipe.events.batch import Events

# What a method's numbers begin with, and the list column of its photons.
METHODS = {"photons": "photons", "neighbours": "neighbours_photons", "solid_angle": "solid_angle_photons"}
TITLES = {
    "photons": "network",
    "neighbours": "mean of the neighbours",
    "solid_angle": "neighbours by solid angle",
}
HIDDEN, DEAD = 0, 1  # kinds of a found sensor


@dataclass(frozen=True, slots=True)
class HiddenSensors:
    """The hidden sensors of all events end to end: [H] each; photons: what each method found, [H]."""

    events: int
    event: Numbers
    face: Numbers
    true: Floats
    photons: dict[str, Floats]


def hidden_sensors(prediction: Mapping[str, Any]) -> HiddenSensors:
    """Join the lists of all events; dead sensors, whose photons nobody knows, are left out."""
    ids, kind, true = (_joined(prediction[name]) for name in ("sensor_id", "kind", "true_photons"))
    selected = (kind == HIDDEN) & np.isfinite(true)
    counts = np.array([len(each) for each in prediction["sensor_id"]], np.int64)
    return HiddenSensors(
        events=len(counts),
        event=np.repeat(np.arange(len(counts)), counts)[selected],
        face=face_of()[ids[selected].astype(np.int64)],
        true=true[selected],
        photons={
            name: _joined(prediction[column])[selected]
            for name, column in METHODS.items()
            if column in prediction
        },
    )


def statistics(hidden: HiddenSensors, method: str, group: Numbers, groups: int) -> dict[str, list[Statistic]]:
    """Measure one method in groups of sensors: mae, bias and rms, [G] each; group: [H], its number.

    They are statistics of whole events: the sensors of one event share its light.
    """
    residual = hidden.photons[method] - hidden.true
    cell = hidden.event * groups + group
    count, absolute, plain, square = (
        np.bincount(cell, weight, hidden.events * groups).reshape(hidden.events, groups).T
        for weight in (np.ones_like(residual), np.abs(residual), residual, residual**2)
    )
    means = {
        name: [ratio(*each) for each in zip(over, count, strict=True)]
        for name, over in (("mae", absolute), ("bias", plain), ("rms", square))
    }
    return means | {"rms": [derived(math.sqrt, each) for each in means["rms"]]}


def errors(hidden: HiddenSensors, method: str, group: Numbers, groups: int) -> dict[str, Floats]:
    """Return values of ``statistics`` and their bootstrap errors, [2, G] each; NaN for an empty group."""
    every = np.arange(hidden.events)
    return {
        name: np.array([value_and_error(each, every) for each in some]).reshape(-1, 2).T
        for name, some in statistics(hidden, method, group, groups).items()
    }


def _joined(lists: Any) -> Floats:
    return np.concatenate([np.zeros(0), *(np.asarray(each, np.float64) for each in lists)])


# How well hidden sensors are found again, beside averages of the sensors around them.

METRICS = tuple(
    metric
    for name, title in TITLES.items()
    for metric in (
        Metric(f"{name}_mae", f"{title}: mean absolute error of hidden sensors", "photons", ideal=0.0),
        Metric(f"{name}_bias", f"{title}: mean error", "photons", better="near", ideal=0.0, tolerance=0.5),
        Metric(f"{name}_rms", f"{title}: root of the mean squared error", "photons", ideal=0.0),
    )
)


def by_face(faces: Sequence[Face]) -> tuple[Metric, ...]:
    """Declare the errors of these faces: for each of them, one method beside the other."""
    return tuple(
        Metric(f"{name}_mae_{face}", f"{face}: {title}: mean absolute error", "photons", ideal=0.0)
        for face in faces
        for name, title in TITLES.items()
    )


def score(_truth: Events, prediction: Mapping[str, Any], folder: Path) -> dict[str, Statistic]:
    """Compare what was found with what the hidden sensors saw; plot a figure into ``folder``.

    prediction: list columns [N] as ``Inpainter.predict`` gives them. Numbers of all hidden sensors, and of
    each face (``photons_mae_inner``).
    """
    hidden = hidden_sensors(prediction)
    if not len(hidden.true):
        return {}

    draw(hidden, folder / "hidden_sensors.svg")
    measured: dict[str, Statistic] = {}
    every = np.zeros_like(hidden.face)
    for method in hidden.photons:
        for group, endings in ((every, ("",)), (hidden.face, [f"_{face}" for face in FACES])):
            for kind, those in statistics(hidden, method, group, len(endings)).items():
                named = zip(endings, those, strict=True)
                measured |= {f"{method}_{kind}{ending}": each for ending, each in named}
    return measured


# The figure of sensors that were hidden and found again: by face, and by the photons that they saw.

_EDGES = np.array([1, 3, 10, 30, 100, 300, 1000, 3000, 10_000, 30_000], np.float64)
_FEWEST = 20  # sensors in a bin
_FROM = 10  # photons from which a bias is a share of them
_POISSON_MAE = np.sqrt(2 / np.pi)  # of counts about their mean, in square roots of the mean
_MARKERS = ("o", "s", "^")


def draw(hidden: HiddenSensors, path: Path) -> Path:
    """Plot the error by face, and error and bias by the photons of the hidden sensor; return the path."""
    from crpipe.report import figure_style as style

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
    from crpipe.report import figure_style as style

    width = 0.8 / len(hidden.photons)
    for number, method in enumerate(hidden.photons):
        scores = errors(hidden, method, hidden.face, len(FACES))
        mae, error = scores["mae"]
        finite = np.isfinite(mae)
        where = np.arange(len(FACES)) + (number - (len(hidden.photons) - 1) / 2) * width
        by_face: dict[str, Any] = {
            "face": [FACES[place] for place in np.flatnonzero(finite)],
            "sensors": np.bincount(hidden.face, minlength=len(FACES))[finite],
            "value": mae[finite],
            "error": error[finite],
            "bias": scores["bias"][0, finite],
            "rms": scores["rms"][0, finite],
        }
        style.note(axis.figure, "mean absolute error by face", TITLES[method], **by_face)
        spread: dict[str, Any] = {"yerr": np.nan_to_num(error[finite]), "ecolor": style.REAL}
        axis.bar(where[finite], mae[finite], width, color=style.COLOURS[number], **spread)
    axis.set_xticks(range(len(FACES)), FACES)
    axis.grid(visible=False, axis="x")
    axis.set(title="by face", ylabel="mean absolute error [photons]")


def _by_photons(sizes: Axes, biases: Axes, hidden: HiddenSensors) -> None:
    from crpipe.report import figure_style as style
    from crpipe.workloads.common.figures import set_decimal_ticks

    number = np.searchsorted(_EDGES, hidden.true, side="right")
    count = np.bincount(number, minlength=len(_EDGES) + 1)
    light = np.bincount(number, hidden.true, len(count)) / np.maximum(count, 1)
    shown = (count >= _FEWEST) & (np.arange(len(count)) > 0)
    for index, method in enumerate(hidden.photons):
        scores = errors(hidden, method, number, len(count))
        (mae, mae_error), (bias, bias_error) = scores["mae"], scores["bias"]
        line: dict[str, Any] = {
            "fmt": f"{_MARKERS[index]}-",
            "markersize": 3.5,
            "color": style.COLOURS[index],
            "label": TITLES[method],
        }
        by_light = {"photons": light[shown], "value": mae[shown], "bias": bias[shown]}
        style.note(sizes.figure, "mean absolute error by light", TITLES[method], **by_light)
        sizes.errorbar(light[shown], mae[shown], np.nan_to_num(mae_error[shown]), **line)
        bright = shown & (light >= _FROM)
        share, spread = (100 * each[bright] / light[bright] for each in (bias, np.nan_to_num(bias_error)))
        biases.errorbar(light[bright], share, spread, **line)
    ends = light[shown]
    if len(ends):
        limit = _POISSON_MAE * np.sqrt(ends)
        sizes.plot(ends, limit, "--", color=style.REAL, linewidth=1.0, label="Poisson noise of the sensor")
        sizes.set(xscale="log", yscale="log")
        biases.set(xscale="log")
        set_decimal_ticks(biases, "x", biases.get_xlim(), (1, 3))
    biases.axhline(0.0, linestyle="--", color=style.REAL, linewidth=1.0)
    sizes.set(title="by light", xlabel="photons of the hidden sensor", ylabel="mean absolute error [photons]")
    biases.set(
        title="bias by light", xlabel="photons of the hidden sensor", ylabel="mean error [% of photons]"
    )


# The events whose hidden sensors were found worst, on the unfolded detector.

WORST = 3
_CIRCLED = 10  # hidden sensors of each


def worst(prediction: Mapping[str, Any]) -> Numbers:
    """Return the places of the worst events, worst first: mean error over the root of the mean photons."""
    hidden = hidden_sensors(prediction)
    off = np.abs(hidden.photons["photons"] - hidden.true)
    sums = [np.bincount(hidden.event, each, hidden.events) for each in (off, np.abs(hidden.true), off > -1)]
    judged = np.flatnonzero(sums[2])
    off_by, light, count = (each[judged] for each in sums)
    return judged[np.argsort(-off_by / np.sqrt(count * np.maximum(light, 1)), kind="stable")[:WORST]]


def draw_worst(events: Events, prediction: Mapping[str, Any], folder: Path) -> None:
    """Draw each event as it was seen, and below with what was found for hidden and dead sensors.

    The hidden sensors that were found worst have a circle.
    """
    from crpipe.workloads.xec.scoring.display import draw_events

    sensors = events.items.reshape(len(events), -1, events.items.shape[1])
    seen, with_found = sensors[..., PHOTONS], sensors[..., PHOTONS].copy()
    titles, circled = [], []
    for at, ids in enumerate(prediction["sensor_id"]):
        with_found[at, ids] = prediction["photons"][at]
        hidden = prediction["kind"][at] == HIDDEN
        off = np.abs(prediction["photons"][at] - prediction["true_photons"][at])[hidden]
        name = f"run {events.columns['run'][at]}, event {events.columns['event'][at]}"
        titles.append(f"{name}\n{hidden.sum()} hidden, mean error {off.mean():.3g} photons")
        circled.append(ids[hidden][np.argsort(-off, kind="stable")[:_CIRCLED]])
    titles += [f"{title.partition(chr(10))[0]}\nas found" for title in titles]
    valid = np.concatenate([sensors[..., PHOTONS_VALID], np.ones(seen.shape)])
    values = np.concatenate([seen, with_found])
    draw_events(folder / "found_sensors.svg", values, valid, titles, circled=circled * 2)
