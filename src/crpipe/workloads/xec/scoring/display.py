"""Single events after an evaluation: the worst ones, unfolded, and which faces a prediction depends on.

The inner face is in the middle, u to the right and v upwards, as from behind the detector. The faces us and
ds fold out to its sides, top and bottom above and below it; the outer face is on the right.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
import pyarrow as pa
import pyarrow.csv
import torch
from matplotlib.collections import PolyCollection
from matplotlib.colors import AsinhNorm, Normalize
from matplotlib.transforms import AffineDeltaTransform

from crpipe.core.files import atomic_write
from crpipe.report import figure_style as style
from crpipe.workloads.common import elementary
from crpipe.workloads.xec.layout import PHOTONS, PHOTONS_VALID, TIME, TRUTH, Truth
from crpipe.workloads.xec.models.features import sensors_of
from crpipe.workloads.xec.models.heads import UNITS, GammaModel, difference
from crpipe.workloads.xec.sensors import FACE_IDS, FACES, INNER, INNER_RADIUS, face_of, sensor_map

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from numpy.typing import NDArray

    from crpipe.events.batch import Events
    from crpipe.train.workload import Columns

    Floats = NDArray[np.float64]
    Shares = Mapping[str, NDArray[np.floating[Any]]]

_INVALID = "#b4bac4"
_LINEAR = 10.0  # photons up to which the scale is linear; then logarithmic
_COLUMNS = 3
_LINE = 0.15  # inches of one more line of a title
# Where the faces are in the figure, in cm: the inner face reaches from -33 to 33 and from -71 to 71.
_HALF = (33.2, 71.0)
_SIDES_FROM, _ENDS_FROM, _OUTER_AT = 40.0, 85.0, 133.0
_TUBE = 5.6  # of the square or hexagon of a photomultiplier, whose neighbours are at 5.9 cm or more
_LABELS = {
    "inner": (0.0, 76.0),
    "us": (-57.0, 76.0),
    "ds": (57.0, 76.0),
    "top": (0.0, 129.0),
    "bottom": (0.0, -129.0),
    "outer": (_OUTER_AT, 120.0),
}
_SQUARE = np.array([(-1, -1), (1, -1), (1, 1), (-1, 1)]) * _TUBE / 2
_TURN = np.radians(np.arange(30, 390, 60))
_HEXAGON = np.stack([np.cos(_TURN), np.sin(_TURN)], axis=1) * _TUBE / np.sqrt(3)


def draw_event(
    axis: Axes, values: NDArray[Any], valid: NDArray[Any], title: str, norm: Normalize | None = None
) -> ScalarMappable:
    """Draw one event on ``axis``; give what a colour bar needs.

    values: [4760], such as photons; valid: [4760], 0 where a sensor is grey. norm: of the colours, see
    ``colour_scale``, which is used without it.
    """
    shown = _masked(values, valid)
    colours: dict[str, Any] = {
        "norm": norm or colour_scale(values, valid),
        "cmap": mpl.colormaps["viridis"].with_extremes(bad=_INVALID),
    }
    extent = (-_HALF[0], _HALF[0], -_HALF[1], _HALF[1])
    axis.imshow(shown[INNER.ids], extent=extent, interpolation="none", **colours)
    for outline, ids, centres in _tubes():
        # The outline is in cm, as the axes are: the file has it once, and each sensor refers to it.
        tubes = PolyCollection(
            [outline],
            offsets=centres,
            offset_transform=axis.transData,
            linewidths=0,
            clip_on=False,
            **colours,
        )
        tubes.set_transform(AffineDeltaTransform(axis.transData))  # type: ignore[arg-type]
        tubes.set_array(shown[ids])
        axis.add_collection(tubes)
    for name, (x, y) in _LABELS.items():
        axis.text(x, y, name, ha="center", va="center", fontsize=6, color=style.REAL)
    axis.set(xlim=(-80, 180), ylim=(-133, 133), aspect="equal", title=title)
    axis.set_axis_off()
    return tubes


def draw_events(
    path: Path,
    values: NDArray[Any],
    valid: NDArray[Any],
    titles: Sequence[str],
    label: str = "photons",
    circled: Sequence[NDArray[Any]] = (),
) -> Path:
    """Draw events beside each other with one colour scale, as SVG; return the path.

    values, valid: [N, 4760], of a few events; titles: [N], of one or more lines; label: what the values are.
    circled: ids of a few sensors of each event.
    """
    columns = min(_COLUMNS, len(titles))
    rows = -(-len(titles) // columns)
    with style.style():
        lines = max(title.count("\n") for title in titles)
        figure = style.new_figure((7.8 / columns + 0.4 + _LINE * lines) * rows + 0.7)
        axes = figure.subplots(rows, columns, squeeze=False)
        norm = colour_scale(values, valid)
        for axis in axes.flat[len(titles) :]:
            axis.set_visible(False)
        drawn = [
            draw_event(axis, each, good, title, norm)
            for axis, each, good, title in zip(axes.flat, values, valid, titles, strict=False)
        ]
        for axis, ids in zip(axes.flat, circled, strict=False):
            ring = {"facecolors": "none", "edgecolors": style.COLOURS[1], "linewidths": 0.8}
            axis.scatter(*centres()[ids].T, s=16, clip_on=False, **ring)
        for title, event_values, good in zip(titles, values, valid, strict=True):
            seen = np.flatnonzero((np.asarray(good) != 0) & (np.asarray(event_values) > 0))
            style.note(figure, title, label, sensor=seen, value=np.asarray(event_values, np.float64)[seen])
        bar = figure.colorbar(drawn[0], ax=axes, location="bottom", fraction=0.03, aspect=50, pad=0.02)
        ticks = [0.0, *10.0 ** np.arange(1, float(elementary.log10(norm.vmax or 1.0)) + 1e-9)]
        bar.set_ticks(ticks, labels=[f"{tick:,.0f}" for tick in ticks])
        bar.minorticks_off()
        bar.set_label(f"{label} (grey: not valid)")
        return style.save(figure, path)


def colour_scale(values: NDArray[Any], valid: NDArray[Any]) -> Normalize:
    """Return colours from 0 to the largest valid value: linear up to 10, then logarithmic."""
    largest = _masked(values, valid).max()
    return AsinhNorm(_LINEAR, vmin=0.0, vmax=_LINEAR if np.ma.is_masked(largest) else max(_LINEAR, largest))


def _masked(values: NDArray[Any], valid: NDArray[Any]) -> Any:
    return np.ma.masked_where(np.asarray(valid) == 0, np.asarray(values, np.float64))


@lru_cache(maxsize=1)
def _tubes() -> list[tuple[Floats, NDArray[np.int64], Floats]]:
    """Return photomultipliers by shape: outline [4 or 6, 2], ids [n], centres in the figure [n, 2]; cm."""
    places, names = sensor_map(), np.array(FACES)[face_of()]
    x, y, z = places[:, :3].T
    radius, angle = np.hypot(x, y), elementary.arctan2(y, -x)
    tubes = []
    for outline, faces in ((_SQUARE, ("us", "ds", "outer")), (_HEXAGON, ("top", "bottom"))):
        ids = np.flatnonzero(np.isin(names, faces))
        name, around, along = names[ids], angle[ids], z[ids]
        out = radius[ids] - radius[ids].min()
        outer, end = name == "outer", np.isin(name, ("top", "bottom"))
        across = np.select([outer, end], [_OUTER_AT + along, along], np.sign(along) * (_SIDES_FROM + out))
        upwards = np.select(
            [outer, end], [radius[ids] * around, np.sign(around) * (_ENDS_FROM + out)], INNER_RADIUS * around
        )
        tubes.append((outline, ids, np.stack([across, upwards], axis=1)))
    return tubes


def centres() -> Floats:
    """Return the centres of all sensors in the figure, [4760, 2] in cm."""
    all_centres = np.empty((face_of().size, 2))
    row, column = np.indices(INNER.ids.shape) + 0.5
    rows, columns = INNER.ids.shape
    all_centres[INNER.ids, 0] = _HALF[0] * (2 * column / columns - 1)
    all_centres[INNER.ids, 1] = _HALF[1] * (1 - 2 * row / rows)
    for _, ids, places in _tubes():
        all_centres[ids] = places
    return all_centres


# Which events of an evaluation are shown: the worst ones, and a sample for the saliency.

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
    lengths = {}
    for task in tasks:
        names = [field.name for field in TRUTH[task]]
        pair = [
            torch.from_numpy(np.stack([columns[name] for name in names], axis=1).astype(np.float64))
            for columns in (prediction, truth.columns)
        ]
        off = difference(task, pair[0], pair[1], log=False) / pair[0].new_tensor(UNITS[task])
        lengths[task] = off.square().sum(dim=1).sqrt().numpy()
    return lengths


def draw_worst(events: Events, prediction: Columns, tasks: Sequence[Truth], folder: Path) -> None:
    """Draw the first events, which are the worst: the photons of all sensors on the unfolded detector."""
    count = _worst_of(events)
    sensors = sensors_of(events)[:count]
    titles = [_title(events, prediction, tasks, at) for at in range(count)]
    draw_events(folder / "worst_events.svg", sensors[..., PHOTONS], sensors[..., PHOTONS_VALID], titles)
    names = [field.name for task in tasks for field in TRUTH[task]]
    columns = {name: events.columns[name] for name in ("run", "event")}
    for name in names:
        columns |= {f"true_{name}": events.columns[name], name: prediction[name]}
    listed = {name: np.asarray(values)[:count] for name, values in columns.items()}
    with atomic_write(folder / "worst_list.csv") as part:
        pyarrow.csv.write_csv(pa.table(listed), part)


def _title(events: Events, prediction: Columns, tasks: Sequence[Truth], at: int) -> str:
    lines = [f"run {events.columns['run'][at]}, event {events.columns['event'][at]}"]
    for field in (field for task in tasks for field in TRUTH[task]):
        scale, unit = (1000.0, "MeV") if field.unit == "GeV" else (1.0, field.unit)
        name = field.name.rpartition("_")[0].replace("_", " ")
        true, predicted = (float(columns[field.name][at]) * scale for columns in (events.columns, prediction))
        lines.append(f"{name} {predicted:.3g} {unit}, true {true:.3g}")
    return "\n".join(lines)


def saliency(model: GammaModel, events: Events, folder: Path) -> dict[str, float]:
    """Measure and draw which faces and sensors each task depends on: |gradient x input| of both inputs."""
    device = next(model.parameters()).device
    sensors = sensors_of(events)[_worst_of(events) :]
    weights: dict[str, list[NDArray[Any]]] = {name: [] for name in model.heads}
    for first in range(0, len(sensors), _BLOCK):
        items = torch.tensor(sensors[first : first + _BLOCK], device=device, requires_grad=True)
        with torch.enable_grad():
            for name, (value, _) in model(items).items():
                units = value.new_tensor(UNITS[name])
                (slope,) = torch.autograd.grad((value / units).sum(), items, retain_graph=True)
                weight = (slope * items).abs()[..., [PHOTONS, TIME]].sum(dim=2)
                weights[name].append(weight.detach().cpu().numpy())
    joined = {name: np.concatenate(each) for name, each in weights.items() if each}
    shares = {name: face_shares(each) for name, each in joined.items()}
    if shares:
        draw_saliency(folder / "saliency.svg", shares)
        by_sensor = np.stack([each.mean(axis=0, dtype=np.float64) for each in joined.values()])
        ppm = 1e6 * by_sensor / np.maximum(by_sensor.sum(axis=1, keepdims=True), np.finfo(float).tiny)
        label = "mean |gradient · input| [millionths of all sensors']"
        draw_events(folder / "saliency_sensors.svg", ppm, np.ones(ppm.shape), list(shares), label)
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
    numbers: dict[str, float] = {}
    for task, share in shares.items():
        means, errors = _means(share)
        for face, mean, error in zip(FACES, means, errors, strict=True):
            numbers |= {f"saliency_{task}_{face}": float(mean), f"saliency_{task}_{face}_error": float(error)}
    return {name: value for name, value in numbers.items() if np.isfinite(value)}


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
    finite = np.asarray(share, np.float64)
    finite = finite[np.isfinite(finite).all(axis=1)]
    if not len(finite):
        return np.full(len(FACES), np.nan), np.full(len(FACES), np.nan)
    return finite.mean(axis=0), finite.std(axis=0) / np.sqrt(len(finite))
