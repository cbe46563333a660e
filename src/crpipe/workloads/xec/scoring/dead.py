"""Dead sensors side by side: the same events with more of them dead, and filled by each method."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from crpipe.core.causes import is_present
from crpipe.core.errors import CheckpointError, ConfigError
from crpipe.events.layout import Metric
from crpipe.statistics.groups import Statistic, of_events, value_and_error
from crpipe.workloads.xec.layout import PHOTONS, PHOTONS_VALID, Truth
from crpipe.workloads.xec.models.features import hidden_sensors
from crpipe.workloads.xec.reading.root import read_dead
from crpipe.workloads.xec.scoring import metrics
from crpipe.workloads.xec.scoring.baseline import neighbour_average, solid_angle_average

# ruff: noqa: PLC0415 - training needs no matplotlib, and no second checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from crpipe.campaign.records import Tables
    from crpipe.events.batch import Events
    from crpipe.workloads.xec.options import RegressorOptions

    Photons = Callable[[NDArray[np.float32], torch.device], NDArray[np.float32]]

METHODS = {
    "raw": "left dead",
    "neighbours": "mean of the neighbours",
    "solid_angle": "neighbours by solid angle",
    "inpainted": "inpainted",
}
_LISTED = "listed"  # the label of the sensors of model.dead_list
_DEPTHS = {
    "": "",
    "_shallow": f", w < {metrics.SHALLOW_CM:g} cm",
    "_deep": f", w ≥ {metrics.SHALLOW_CM:g} cm",
}
_NUMBERS: dict[str, tuple[Truth, str, str]] = {
    "energy_resolution": ("energy", "energy: half width of 68 %", "%"),
    "energy_bias": ("energy", "energy: median residual", "%"),
    "distance_resolution": ("position", "68 % of the distances to the true place", "cm"),
}


def labels(options: RegressorOptions) -> list[str]:
    """Name what is taken for dead: numbers of sensors, and the list."""
    return [*map(str, options.dead_sensors), *([_LISTED] if options.dead_list else [])]


def dead_of(
    events: Events, sensors: NDArray[np.float32], options: RegressorOptions, seed: int
) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """Yield each label with the sensors that are dead then, [N, 4760]; sensors: [N, 4760, 4].

    Those that are dead already are among them. The sensors of a smaller number are among those of a larger
    one: equal seeds give equal ones.
    """
    dead = sensors[..., PHOTONS_VALID] == 0
    alive = (~dead).sum(axis=1)
    for number in options.dead_sensors:
        more = hidden_sensors(sensors, number / np.maximum(alive, 1), (seed,)) if number else dead
        yield str(number), dead | more
    if options.dead_list:
        if not is_present(Path(options.dead_list)):
            raise ConfigError(
                f"model.dead_list: {options.dead_list}: no such file; name a list of dead sensors"
            )
        yield _LISTED, dead | read_dead(Path(options.dead_list)).of(events.columns["run"])


def filled(
    sensors: NDArray[np.float32],
    dead: NDArray[np.bool_],
    places: NDArray[np.float64],
    find: Photons | None,
    device: torch.device,
) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Yield each method with the sensors that the model gets, [N, 4760, 4]: with photons, without a time.

    find: what an inpainter finds for all sensors, [N, 4760]; None without one.
    """
    left = np.where(dead[..., None], np.float32(0), sensors)
    yield "raw", left
    photons, valid = left[..., PHOTONS], left[..., PHOTONS_VALID]
    for name, average in (("neighbours", neighbour_average), ("solid_angle", solid_angle_average)):
        yield name, _with(left, dead, average(photons, valid, dead, places))
    if find is not None:
        yield "inpainted", _with(left, dead, find(left, device)[dead])


def _with(
    left: NDArray[np.float32], dead: NDArray[np.bool_], photons: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Copy sensors with ``photons``, in the order of ``np.nonzero(dead)``, in the dead ones."""
    copy = left.copy()
    copy[dead, PHOTONS], copy[dead, PHOTONS_VALID] = photons, 1
    return copy


def open_inpainter(path: Path, tables: Tables, places: NDArray[np.float64]) -> Photons:
    """Load what finds the photons of all sensors from those that are valid.

    Raise ConfigError for the checkpoint of another workload, CheckpointError for other places of sensors.
    """
    from crpipe.inference.checkpoints import open_checkpoint
    from crpipe.workloads.xec.models.masked import MaskedWorkload

    trained = open_checkpoint(path, tables=tables)
    if not isinstance(trained.workload, MaskedWorkload):
        raise ConfigError(
            f"model.dead_inpainter: {path} is a checkpoint of {trained.name}; name one of an Inpainter"
        )
    if not np.array_equal(trained.workload.places, places):
        raise CheckpointError(f"model.dead_inpainter: {path}: trained with other places of the sensors")

    def find(sensors: NDArray[np.float32], device: torch.device) -> NDArray[np.float32]:
        estimate = trained.model.to(device)(torch.from_numpy(sensors).to(device))
        photons: NDArray[np.float32] = estimate.photons.float().cpu().numpy()
        return photons

    return find


def column(label: str, method: str, name: str) -> str:
    """Name the predicted column ``name`` with dead sensors filled by a method."""
    return f"dead_{label}_{method}_{name}"


def declared(options: RegressorOptions, tasks: Collection[Truth]) -> tuple[Metric, ...]:
    """Declare the numbers of ``measure`` at any depth, by number of dead sensors and method."""
    methods = [name for name in METHODS if name != "inpainted" or options.dead_inpainter]
    return tuple(
        Metric(
            f"{number}_dead_{label}_{method}",
            f"{title}, {f'{label} more' if label != _LISTED else 'listed sensors'} dead: {METHODS[method]}",
            unit,
            better="near" if number == "energy_bias" else "low",
        )
        for number, (task, title, unit) in _NUMBERS.items()
        if task in tasks
        for label in labels(options)
        for method in methods
    )


def measure(
    truth: Mapping[str, Any], prediction: Mapping[str, Any], tasks: Collection[Truth]
) -> dict[str, Statistic]:
    """Measure energy and place with dead sensors, also near the inner face and behind.

    Nothing where the prediction has no such columns.
    """
    measured: dict[str, Statistic] = {}
    for label, method, predicted in _cases(prediction):
        for depth in _DEPTHS:
            for number, statistic in _numbers(truth, predicted, depth, tasks).items():
                measured[f"{number}{depth}_dead_{label}_{method}"] = statistic
    return measured


def _cases(prediction: Mapping[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield each label and method with the predicted columns of both, by their plain names."""
    for name in prediction:
        parts = name.split("_")
        if len(parts) == 2 and parts[0] == "dead":  # noqa: PLR2004 - dead_LABEL: how many are
            for method in METHODS:
                prefix = column(parts[1], method, "")
                mine = {
                    key.removeprefix(prefix): prediction[key] for key in prediction if key.startswith(prefix)
                }
                if mine:
                    yield parts[1], method, mine


def _numbers(
    truth: Mapping[str, Any], predicted: Mapping[str, Any], depth: str, tasks: Collection[Truth]
) -> dict[str, Statistic]:
    index = np.arange(len(next(iter(predicted.values()))))
    if depth:
        if "position" not in tasks or "w_cm" not in truth:
            return {}
        w = np.asarray(truth["w_cm"], np.float64)  # nan where the place is unknown: in neither part
        index = np.flatnonzero(w >= metrics.SHALLOW_CM if depth == "_deep" else w < metrics.SHALLOW_CM)
    if not len(index):
        return {}
    part = {name: values[index] for name, values in predicted.items()}
    known = {name: np.asarray(values)[index] for name, values in truth.items()}
    measured = metrics.measure(known, part, [task for task in ("energy", "position") if task in tasks])
    return {name: of_events(measured[name], index) for name in _NUMBERS if name in measured}


_MARKERS = ("o", "s", "^", "D")


def draw(
    truth: Mapping[str, Any], prediction: Mapping[str, Any], tasks: Collection[Truth], folder: Path
) -> None:
    """Plot energy and place against the number of dead sensors, near the inner face and behind."""
    from crpipe.workloads.common.figures import save_all

    if any(True for _ in _cases(prediction)):
        save_all({"dead_sensors": lambda: _figure(truth, prediction, tasks)}, folder)


def _figure(truth: Mapping[str, Any], prediction: Mapping[str, Any], tasks: Collection[Truth]) -> Figure:
    from crpipe.report import figure_style as style

    panels = [
        (number, depth)
        for number, (task, _, _) in _NUMBERS.items()
        if task in tasks
        for depth in (("_shallow", "_deep") if "position" in tasks else ("",))
    ]
    columns = 2 if "position" in tasks else 1
    figure = style.new_figure(2.4 * len(panels) / columns + 0.6)
    axes = figure.subplots(len(panels) // columns, columns, squeeze=False, sharex=True)
    cases = list(_cases(prediction))
    for axis, (number, depth) in zip(axes.flat, panels, strict=True):
        _, title, unit = _NUMBERS[number]
        for index, method in enumerate(METHODS):
            points = []
            for label, _, predicted in (each for each in cases if each[1] == method):
                statistic = _numbers(truth, predicted, depth, tasks).get(number)
                if statistic is not None:
                    many = np.asarray(prediction[f"dead_{label}"])
                    points.append((many.mean(), *value_and_error(statistic, np.arange(len(many)))))
            if points:
                dead, value, error = np.array(sorted(points)).T
                line = {"marker": _MARKERS[index], "markersize": 4, "color": style.COLOURS[index]}
                axis.errorbar(dead, value, np.nan_to_num(error), label=METHODS[method], **line)
                style.note(figure, f"{title}{_DEPTHS[depth]}", method, dead=dead, value=value, error=error)
        axis.set(title=f"{title}{_DEPTHS[depth]}", ylabel=unit)
    for axis in axes[-1]:
        axis.set_xlabel("dead sensors")
    figure.legend(*axes.flat[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure
