"""How far predicted directions are from the true ones, as named numbers with errors.

A random direction is 90° away on average. Means are dominated by events that cannot be reconstructed: the
quantiles show the others.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from crpipe.events.layout import Metric
from crpipe.workloads.common import elementary
from crpipe.workloads.common.errors import resamples, spread
from crpipe.workloads.direction.layout import opening_angle, unit_vectors

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import ArrayLike, NDArray

    Floats = NDArray[np.float64]

METRICS = (
    Metric("angle_mean_deg", "mean opening angle to the true direction", "°", ideal=0.0),
    Metric("angle_median_deg", "median opening angle", "°", ideal=0.0),
    Metric("angle_p10_deg", "10 % quantile of the opening angle", "°", ideal=0.0),
    Metric("angle_p25_deg", "25 % quantile of the opening angle", "°", ideal=0.0),
    Metric("angle_p75_deg", "75 % quantile of the opening angle", "°", ideal=0.0),
    Metric("angle_p90_deg", "90 % quantile of the opening angle", "°", ideal=0.0),
    Metric("angle_mean_bright_deg", "mean opening angle, half with most pulses", "°", ideal=0.0, groups=2),
    Metric("angle_mean_faint_deg", "mean opening angle, half with fewest pulses", "°", ideal=0.0, groups=2),
    Metric("z_bias", "mean of the predicted minus the true z component", better="near", ideal=0.0),
    Metric(
        "collapse", "length of the mean predicted vector minus that of the true", better="near", ideal=0.0
    ),
)
KAPPA_METRICS = (
    Metric("kappa_coverage_68", "events inside their own 68 % circle, from kappa", better="near", ideal=0.68),
    Metric(
        "kappa_coverage_68_quarter_4",
        "events inside their own 68 % circle, quarter with the largest kappa",
        better="near",
        ideal=0.68,
        groups=4,
    ),
)
COVERAGE = 0.68
_QUANTILES = {"p10": 0.1, "p25": 0.25, "median": 0.5, "p75": 0.75, "p90": 0.9}
_RESAMPLES = 200
_DRAWN = 20_000  # events in one resample: of more, the error of so few is scaled down
_KAPPA = (1e-6, 1e12)  # beyond, formulas with kappa lose their digits; an event is as uncertain as at all


def measure(
    truth: Mapping[str, Any], prediction: Mapping[str, Any], pulses: ArrayLike | None = None
) -> dict[str, float]:
    """Measure everything: ``name``, and ``name_error`` from a bootstrap where there are two events or more.

    truth: azimuth, zenith and, where the files know it, cascade (1 or 0); prediction: azimuth, zenith and, if
    the model has it, kappa; pulses: of each event; [N] each.
    """
    true, predicted = (unit_vectors(side["azimuth"], side["zenith"]) for side in (truth, prediction))
    angle = opening_angle(true, predicted)
    inside = None
    if "kappa" in prediction:
        inside = shares_inside(angle, prediction["kappa"]) < COVERAGE
    numbers = _numbers(true, predicted, angle, inside)
    of_parts = _measure_parts(angle, inside, _parts(truth, prediction, pulses))
    if len(angle) < 2:  # noqa: PLR2004 - one event has no spread
        return numbers | of_parts
    replicas = []
    for index in resamples(len(angle), _RESAMPLES, _DRAWN):
        again = None if inside is None else inside[index]
        replicas.append(list(_numbers(true[index], predicted[index], angle[index], again).values()))
    errors = spread(replicas, len(angle), _DRAWN)
    numbers |= {f"{name}_error": float(error) for name, error in zip(numbers, errors, strict=True)}
    return numbers | of_parts


def _parts(
    truth: Mapping[str, Any], prediction: Mapping[str, Any], pulses: ArrayLike | None
) -> dict[str, NDArray[np.bool_]]:
    """Divide the events by what decides how well they are known: name of each part, [N] which are in it.

    Tracks and cascades where the truth says so; halves by their pulses; quarters by kappa.
    """
    parts: dict[str, NDArray[np.bool_]] = {}
    if "cascade" in truth:
        cascade = np.asarray(truth["cascade"]) > 0
        parts |= {"tracks": ~cascade, "cascades": cascade}
    if pulses is not None:
        rank = _ranks(pulses)
        parts |= {"bright": 2 * rank >= len(rank), "faint": 2 * rank < len(rank)}
    if "kappa" in prediction:
        rank = _ranks(prediction["kappa"])
        parts |= {f"quarter_{part + 1}": 4 * rank // len(rank) == part for part in range(4)}
    return parts


def _ranks(values: ArrayLike) -> NDArray[np.int64]:
    return np.argsort(np.argsort(np.asarray(values), kind="stable"), kind="stable")


def _measure_parts(
    angle: Floats, inside: NDArray[np.bool_] | None, parts: Mapping[str, NDArray[np.bool_]]
) -> dict[str, float]:
    """Measure mean angle and coverage of each part that has events, with errors of the means."""
    numbers = {}
    for name, mine in parts.items():
        columns = {f"angle_mean_{name}_deg": np.rad2deg(angle)}
        if inside is not None:
            columns[f"kappa_coverage_68_{name}"] = inside.astype(np.float64)
        count = int(np.count_nonzero(mine))
        for column, values in columns.items() if count else ():
            numbers[column] = float(values[mine].mean())
            if count > 1:
                numbers[f"{column}_error"] = float(values[mine].std(ddof=1) / np.sqrt(count))
    return numbers


def shares_inside(angle: ArrayLike, kappa: ArrayLike) -> Floats:
    """Return the probability of a smaller angle (in rad) by a von Mises-Fisher density with this kappa: [N].

    It is (1 - exp(-kappa (1 - cos angle))) / (1 - exp(-2 kappa)).
    Where kappa is right, it is uniform between 0 and 1.
    """
    kappa = np.clip(np.asarray(kappa, np.float64), *_KAPPA)
    height = 2 * np.sin(np.asarray(angle, np.float64) / 2) ** 2  # 1 - cos, exact for small angles
    return elementary.expm1(-kappa * height) / elementary.expm1(-2 * kappa)


def calibration(angle: ArrayLike, kappa: ArrayLike) -> float:
    """Return the factor of kappa with which COVERAGE of the events are inside of their circles.

    angle: in rad, kappa: [N] each. 1 without events whose numbers are finite; between 1e-3 and 1e3.
    """
    pairs = np.stack([np.asarray(angle, np.float64), np.asarray(kappa, np.float64)])
    angles, kappas = pairs[:, np.isfinite(pairs).all(axis=0)]
    low, high = 1e-3, 1e3  # the larger kappa, the smaller the circles
    for _ in range(40 if len(kappas) else 0):
        middle = math.sqrt(low * high)
        inside = np.mean(shares_inside(angles, middle * kappas) < COVERAGE)
        low, high = (middle, high) if inside > COVERAGE else (low, middle)
    return math.sqrt(low * high)


def expected_angle(share: float, kappa: ArrayLike) -> Floats:
    """Return the angle in rad that a share of events is closer than, by von Mises-Fisher: [N].

    The inverse of ``shares_inside``.
    """
    kappa = np.clip(np.asarray(kappa, np.float64), *_KAPPA)
    height = -elementary.log1p(share * elementary.expm1(-2 * kappa)) / kappa
    return 2 * elementary.arcsin(np.sqrt(np.clip(height / 2, 0.0, 1.0)))


def _numbers(
    true: Floats, predicted: Floats, angle: Floats, inside: NDArray[np.bool_] | None
) -> dict[str, float]:
    degrees = np.rad2deg(angle)
    quantiles = np.quantile(degrees, list(_QUANTILES.values()))
    numbers = {"angle_mean_deg": float(degrees.mean())}
    numbers |= {f"angle_{name}_deg": float(value) for name, value in zip(_QUANTILES, quantiles, strict=True)}
    length, true_length = (float(np.linalg.norm(side.mean(axis=0))) for side in (predicted, true))
    numbers["z_bias"] = float((predicted - true)[:, 2].mean())
    numbers |= {"mean_length": length, "true_mean_length": true_length, "collapse": length - true_length}
    if inside is not None:
        numbers["kappa_coverage_68"] = float(inside.mean())
    return numbers
