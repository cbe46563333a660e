"""How far predicted directions are from the true ones, as named statistics.

A random direction is 90° away on average. Means are dominated by events that cannot be reconstructed: the
quantiles show the others.
"""

from __future__ import annotations

import math
import operator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from crpipe.events.layout import Metric
from crpipe.statistics.groups import Statistic, derived, mean, quantile, vector_mean_length
from crpipe.workloads.common import elementary
from crpipe.workloads.direction.layout import opening_angle, unit_vectors

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import ArrayLike, NDArray

    Floats = NDArray[np.float64]

_ANGLE = partial(Metric, unit="°", ideal=0.0, tolerance=0.05, relative=True)  # of the baseline's angle
_NEAR = partial(Metric, better="near", tolerance=0.02)
_QUANTILE = "p % quantile: p % of the events have a smaller value."
METRICS = (
    _ANGLE("angle_mean_deg", "mean opening angle to the true direction"),
    _ANGLE("angle_median_deg", "median opening angle"),
    *(
        _ANGLE(f"angle_p{share}_deg", f"{share} % quantile of the opening angle", meaning=_QUANTILE)
        for share in (10, 25, 75, 90)
    ),
    _ANGLE("angle_mean_bright_deg", "mean opening angle, half with most pulses", groups=2),
    _ANGLE("angle_mean_faint_deg", "mean opening angle, half with fewest pulses", groups=2),
    _NEAR("z_bias", "mean of the predicted minus the true z component", ideal=0.0),
    _NEAR("collapse", "length of the mean predicted vector minus that of the true", ideal=0.0),
)
# Of few events all are often inside: a share without error, which would surely differ.
KAPPA_METRICS = (
    _NEAR("kappa_coverage_68", "events inside their own 68 % circle, from kappa", ideal=0.68, groups=20),
    _NEAR(
        "kappa_coverage_68_quarter_4",
        "events inside their own 68 % circle, quarter with the largest kappa",
        ideal=0.68,
        groups=100,
    ),
)
COVERAGE = 0.68
_QUANTILES = {"p10": 0.1, "p25": 0.25, "median": 0.5, "p75": 0.75, "p90": 0.9}
_POWERS = tuple(step / 20 for step in range(10, 41))  # that a calibration tries
_FITTED = 400  # events, for a power other than 1
_KAPPA = (1e-6, 1e12)  # beyond, formulas with kappa lose their digits; an event is as uncertain as at all


def measure(
    truth: Mapping[str, Any], prediction: Mapping[str, Any], pulses: ArrayLike | None = None
) -> dict[str, Statistic]:
    """Measure everything, as statistics of the events.

    truth: azimuth, zenith and, where the files know it, cascade (1 or 0); prediction: azimuth, zenith and, if
    the model has it, kappa; pulses: of each event; [N] each.
    """
    true, predicted = (unit_vectors(side["azimuth"], side["zenith"]) for side in (truth, prediction))
    angle = opening_angle(true, predicted)
    degrees = np.rad2deg(angle)
    measured: dict[str, Statistic] = {"angle_mean_deg": mean(degrees)}
    measured |= {f"angle_{name}_deg": quantile(degrees, share) for name, share in _QUANTILES.items()}
    length, true_length = vector_mean_length(predicted), vector_mean_length(true)
    measured |= {"z_bias": mean((predicted - true)[:, 2]), "mean_length": length}
    measured |= {"true_mean_length": true_length, "collapse": derived(operator.sub, length, true_length)}
    columns = {"angle_mean_{}_deg": degrees}
    if "kappa" in prediction:
        inside = (shares_inside(angle, prediction["kappa"]) < COVERAGE).astype(np.float64)
        measured["kappa_coverage_68"] = mean(inside)
        columns["kappa_coverage_68_{}"] = inside
    for part, mine in _parts(truth, prediction, pulses).items():
        if mine.any():
            measured |= {name.format(part): mean(values, 1.0 * mine) for name, values in columns.items()}
    return measured


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


def shares_inside(angle: ArrayLike, kappa: ArrayLike) -> Floats:
    """Return the probability of a smaller angle (in rad) by a von Mises-Fisher density with this kappa: [N].

    It is (1 - exp(-kappa (1 - cos angle))) / (1 - exp(-2 kappa)).
    Where kappa is right, it is uniform between 0 and 1.
    """
    kappa = np.clip(np.asarray(kappa, np.float64), *_KAPPA)
    height = 2 * np.sin(np.asarray(angle, np.float64) / 2) ** 2  # 1 - cos, exact for small angles
    return elementary.expm1(-kappa * height) / elementary.expm1(-2 * kappa)


def calibration(angle: ArrayLike, kappa: ArrayLike) -> tuple[float, float]:
    """Return factor and power of kappa with which COVERAGE of the events are inside of their circles.

    angle: in rad, kappa: [N] each. The power brings the quarters of the events by kappa nearest to it, too;
    it is 1 for fewer than _FITTED events. The factor is 1 without events whose numbers are finite; between
    1e-3 and 1e3 where the power is 1.
    """
    pairs = np.stack([np.asarray(angle, np.float64), np.asarray(kappa, np.float64)])
    angles, kappas = pairs[:, np.isfinite(pairs).all(axis=0) & (pairs[1] > 0)]
    if len(kappas) < _FITTED:
        return _scaling(angles, kappas), 1.0
    middle, quarter = float(np.median(kappas)), 4 * _ranks(kappas) // len(kappas)
    fits = []
    for power in _POWERS:
        bent = middle * (kappas / middle) ** power
        factor = _scaling(angles, bent)
        inside = shares_inside(angles, factor * bent) < COVERAGE
        spread = sum((np.mean(inside[quarter == part]) - COVERAGE) ** 2 for part in range(4))
        fits.append((spread, abs(power - 1), factor * middle ** (1 - power), power))
    _, _, factor, power = min(fits)
    return factor, power


def _scaling(angles: Floats, kappas: Floats) -> float:
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
