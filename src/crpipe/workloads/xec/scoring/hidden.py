"""Sensors that were hidden and found again: what each method found, and how far that is from the truth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from crpipe.workloads.xec.sensors import face_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Numbers = NDArray[np.int64]

# What a method's numbers begin with, and the list column of its photons.
METHODS = {
    "photons": "photons",
    "neighbours": "neighbours_photons",
    "solid_angle": "solid_angle_photons",
}
TITLES = {
    "photons": "network",
    "neighbours": "mean of the neighbours",
    "solid_angle": "neighbours by solid angle",
}
_HIDDEN = 0  # kind of a sensor that was hidden, not dead
_SEED = 0
_RESAMPLES = 200


@dataclass(frozen=True, slots=True)
class HiddenSensors:
    """The hidden sensors of all events end to end: [H] each; photons: what each method found, [H]."""

    events: int
    event: Numbers
    face: Numbers
    true: Floats
    photons: dict[str, Floats]


@dataclass(frozen=True, slots=True)
class HiddenErrors:
    """Mean absolute error, bias and rms of groups of sensors in photons, [G] each; NaN for an empty group.

    error: the bootstrap error of each, by the same name.
    """

    mae: Floats
    bias: Floats
    rms: Floats
    error: dict[str, Floats]


def hidden_sensors(prediction: Mapping[str, Any]) -> HiddenSensors:
    """Join the lists of all events; dead sensors, whose photons nobody knows, are left out."""
    ids, kind, true = (_joined(prediction[name]) for name in ("sensor_id", "kind", "true_photons"))
    chosen = (kind == _HIDDEN) & np.isfinite(true)
    counts = np.array([len(each) for each in prediction["sensor_id"]], np.int64)
    return HiddenSensors(
        events=len(counts),
        event=np.repeat(np.arange(len(counts)), counts)[chosen],
        face=face_of()[ids[chosen].astype(np.int64)],
        true=true[chosen],
        photons={
            name: _joined(prediction[column])[chosen]
            for name, column in METHODS.items()
            if column in prediction
        },
    )


def errors(hidden: HiddenSensors, method: str, group: Numbers, groups: int) -> HiddenErrors:
    """Measure one method in groups of sensors; group: [H], its number for each sensor.

    The errors come from resamples of whole events: the sensors of one event share its light.
    """
    residual = hidden.photons[method] - hidden.true
    cell = hidden.event * groups + group
    sums = np.stack(
        [
            np.bincount(cell, weight, hidden.events * groups)
            for weight in (np.ones_like(residual), np.abs(residual), residual, residual**2)
        ]
    ).reshape(4, hidden.events, groups)
    rng = np.random.default_rng(_SEED)
    again = []
    for _ in range(_RESAMPLES if hidden.events > 1 else 0):
        drawn = np.bincount(rng.integers(hidden.events, size=hidden.events), minlength=hidden.events)
        again.append(_means(np.einsum("n,kng->kg", drawn.astype(np.float64), sums)))
    spread = _spread(np.array(again).reshape(-1, 3, groups))
    mae, bias, rms = _means(sums.sum(axis=1))
    return HiddenErrors(mae, bias, rms, dict(zip(("mae", "bias", "rms"), spread, strict=True)))


def _means(sums: Floats) -> Floats:
    """Turn count and sums, [4, G], into mae, bias, rms: [3, G]."""
    means = sums[1:] / np.where(sums[0] > 0, sums[0], np.nan)
    return np.stack([means[0], means[1], np.sqrt(means[2])])


def _spread(again: Floats) -> Floats:
    """Give the standard deviation over resamples, [3, G]; those in which a group is empty do not count."""
    known = np.isfinite(again)
    count = np.maximum(known.sum(axis=0), 1)
    mean = np.where(known, again, 0.0).sum(axis=0) / count
    square = np.where(known, (again - mean) ** 2, 0.0).sum(axis=0) / count
    return np.where(known.sum(axis=0) > 1, np.sqrt(square), np.nan)


def _joined(lists: Any) -> Floats:
    return np.concatenate([np.zeros(0), *(np.asarray(each, np.float64) for each in lists)])
