"""How far predictions are from the truth, as named statistics; all events count alike.

A resolution is half the width of the interval that holds 68.27 % of the events: of a Gaussian, its sigma.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from crpipe.events.layout import Metric
from crpipe.statistics.groups import Statistic, mean, of_events, quantile, value_and_error
from crpipe.workloads.common import elementary
from crpipe.workloads.common.binned import Profile, even_cuts, rows_in_bins
from crpipe.workloads.xec.scoring.baseline import point

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from numpy.typing import NDArray

    from crpipe.workloads.xec.layout import Truth

    Floats = NDArray[np.float64]

WITHIN = 0.6827


@dataclass(frozen=True, slots=True)
class Quantity:
    """One number that is known of a gamma: its column, and the residuals by which it is judged.

    negligible: a bias, in ``unit``. scale: from the column's unit to ``unit``. centred: the resolution is
    about the median residual, because a constant is calibrated away; else about 0. relative: residuals are
    shares of the true value.
    """

    name: str
    column: str
    title: str
    unit: str
    negligible: float
    scale: float = 1.0
    centred: bool = False
    relative: bool = False
    turn: bool = False  # angles that differ by a turn are equal

    def residuals(self, true: Mapping[str, Any], predicted: Floats) -> Floats:
        """Return predicted minus true in ``unit``: [N]; true: columns of the truth."""
        truth = np.asarray(true[self.column], np.float64)
        difference = predicted - truth
        if self.turn:
            difference = (difference + np.pi) % (2 * np.pi) - np.pi
        if self.relative:
            difference = difference / np.where(truth > 0, truth, np.nan)
        return self.scale * difference

    def width(self, residuals: Floats) -> Statistic:
        """Return the resolution of residuals, [N]."""
        return half_width(residuals) if self.centred else within(residuals)


QUANTITIES: dict[Truth, tuple[Quantity, ...]] = {
    "energy": (Quantity("energy", "energy_gev", "energy", "%", 0.1, 100.0, centred=True, relative=True),),
    "position": (
        Quantity("u", "u_cm", "u", "cm", 0.05),
        Quantity("v", "v_cm", "v", "cm", 0.05),
        Quantity("w", "w_cm", "depth w", "cm", 0.05),
    ),
    "time": (Quantity("time", "gamma_time_ns", "time", "ps", 5.0, 1e3, centred=True),),
    "angle": (
        Quantity("theta", "theta_rad", "polar angle", "mrad", 1.0, 1e3),
        Quantity("phi", "phi_rad", "azimuth", "mrad", 1.0, 1e3, turn=True),
    ),
}
_RESOLUTION = partial(Metric, ideal=0.0, tolerance=0.05, relative=True)  # of the baseline's resolution
_WHOLE = {
    "position": _RESOLUTION("distance_resolution", "68 % of the distances to the true place", "cm"),
    "angle": _RESOLUTION("opening_angle", "68 % of the angles to the true direction", "mrad"),
}


SHALLOW_CM = 2.0
_PARTS = {
    "shallow": (f"conversions within {SHALLOW_CM:g} cm of the inner face", "such events"),
    "deep": (f"conversions behind {SHALLOW_CM:g} cm", "such events"),
    "low": ("lower half of the true energies", "two events"),
    "high": ("upper half of the true energies", "two events"),
}


def metrics(tasks: Collection[Truth], uncertain: Collection[Truth] = ()) -> tuple[Metric, ...]:
    """Declare the numbers of these tasks; uncertain: those of them that predict their own uncertainty."""
    declared = []

    def near(name: str, title: str, unit: str, ideal: float, tolerance: float, groups: int = 1) -> None:
        declared.append(
            Metric(name, title, unit, better="near", ideal=ideal, tolerance=tolerance, groups=groups)
        )

    for task, quantities in QUANTITIES.items():
        for each in quantities if task in tasks else ():
            about = "about their median" if each.centred else "about 0"
            title = f"{each.title}: half width of 68 % of the residuals {about}"
            declared.append(_RESOLUTION(f"{each.name}_resolution", title, each.unit))
            near(f"{each.name}_bias", f"{each.title}: median residual", each.unit, 0.0, each.negligible)
            if task in uncertain:
                title = f"{each.title}: half width of 68 % of residual / predicted sigma"
                near(f"{each.name}_pull", title, "", 1.0, 0.05)
                title = f"{each.title}: events within their predicted sigma"
                # Of few events all are often inside: a share without error, which would surely differ.
                near(f"{each.name}_coverage_68", title, "", round(WITHIN, 2), 0.02, groups=20)
        if task in tasks and task in _WHOLE:
            declared.append(_WHOLE[task])
    if "energy" in tasks:
        declared += [
            _RESOLUTION(f"energy_resolution_{name}", f"energy: half width, {words}", "%", needs=needs)
            for name, (words, needs) in _PARTS.items()
            if "position" in tasks or name in ("low", "high")
        ]
    return tuple(declared)


def measure(
    truth: Mapping[str, Any], prediction: Mapping[str, Any], tasks: Collection[Truth]
) -> dict[str, Statistic]:
    """Measure everything, as statistics of the events.

    What the truth or the prediction has no column for is left out; so are events whose truth is NaN. A
    prediction that is NaN makes its numbers NaN.
    """
    measured: dict[str, Statistic] = {}
    if "energy" in tasks:
        measured |= _measure_parts(truth, prediction, by_depth="position" in tasks)
    for task, quantities in QUANTITIES.items():
        shared = [each for each in quantities if task in tasks and each.column in truth]
        for quantity in shared:
            measured |= _measure_one(quantity, truth, prediction)
        columns = [each.column for each in shared]
        if task in _WHOLE and len(shared) == len(quantities) and all(name in prediction for name in columns):
            known = np.logical_and.reduce([known_of(each, truth) for each in shared])
            true, predicted = (
                [np.asarray(side[name], np.float64)[known] for name in columns]
                for side in (truth, prediction)
            )
            away = distances(true, predicted) if task == "position" else angles(true, predicted)
            measured |= _of_known({_WHOLE[task].name: within(away)}, np.flatnonzero(known))
    return measured


def _of_known(statistics: Mapping[str, Statistic], index: NDArray[np.intp]) -> dict[str, Statistic]:
    """Make statistics of the events with these numbers those of all; nothing without any event."""
    return {name: of_events(each, index) for name, each in statistics.items()} if len(index) else {}


def _measure_one(
    quantity: Quantity, truth: Mapping[str, Any], prediction: Mapping[str, Any]
) -> dict[str, Statistic]:
    pair = known_residuals(quantity, truth, prediction)
    if pair is None:
        return {}
    known, residuals = pair
    measured = {f"{quantity.name}_resolution": quantity.width(residuals)}
    measured[f"{quantity.name}_bias"] = middle(residuals)
    pull = pulls(quantity, truth, prediction)
    if pull is not None:
        measured[f"{quantity.name}_coverage_68"] = mean(1.0 * (np.abs(pull[known]) < 1))
        measured[f"{quantity.name}_pull"] = within(pull[known])
    return _of_known(measured, np.flatnonzero(known))


def _measure_parts(
    truth: Mapping[str, Any], prediction: Mapping[str, Any], *, by_depth: bool
) -> dict[str, Statistic]:
    """Measure the resolution of the energy in each part of the events that has one."""
    quantity = QUANTITIES["energy"][0]
    pair = known_residuals(quantity, truth, prediction)
    if pair is None:
        return {}
    known, residuals = pair
    energy = np.asarray(truth[quantity.column], np.float64)[known]
    upper = np.argsort(np.argsort(energy, kind="stable"), kind="stable") >= len(energy) // 2
    parts = {"low": ~upper, "high": upper}
    if by_depth and "w_cm" in truth:
        depth = np.asarray(truth["w_cm"], np.float64)[known]
        parts |= {"shallow": depth < SHALLOW_CM, "deep": depth >= SHALLOW_CM}
    measured: dict[str, Statistic] = {}
    for name, mine in parts.items():
        width = {f"energy_resolution_{name}": quantity.width(residuals[mine])}
        measured |= _of_known(width, np.flatnonzero(known)[mine])
    return measured


def known_residuals(
    quantity: Quantity, truth: Mapping[str, Any], prediction: Mapping[str, Any], prefix: str = ""
) -> tuple[NDArray[np.bool_], Floats] | None:
    """Return which events have a true value, [N], and the residuals of these, [K]; None without columns."""
    values = prediction.get(f"{prefix}{quantity.column}")
    if values is None or quantity.column not in truth:
        return None
    known = known_of(quantity, truth)
    return known, quantity.residuals(truth, np.asarray(values, np.float64))[known]


def known_of(quantity: Quantity, truth: Mapping[str, Any]) -> NDArray[np.bool_]:
    """Return which events have a true value: [N]."""
    values = np.asarray(truth[quantity.column], np.float64)
    return np.isfinite(values) & ((values > 0) | (not quantity.relative))


def pulls(quantity: Quantity, truth: Mapping[str, Any], prediction: Mapping[str, Any]) -> Floats | None:
    """Return residual / predicted sigma, [N]; None where no sigma is predicted."""
    sigma, values = (prediction.get(f"{quantity.column}{end}") for end in ("_sigma", ""))
    if sigma is None or values is None:
        return None
    residuals = quantity.residuals(truth, np.asarray(values, np.float64)) / quantity.scale
    if quantity.relative:
        residuals = residuals * np.asarray(truth[quantity.column], np.float64)
    return residuals / np.asarray(sigma, np.float64)


def distances(true: list[Floats], predicted: list[Floats]) -> Floats:
    """Return the distances between places (u, v, w): [N] in cm."""
    return np.linalg.norm(point(*true) - point(*predicted), axis=1)


def angles(true: list[Floats], predicted: list[Floats]) -> Floats:
    """Return the angles between directions (theta, phi in rad): [N] in mrad."""
    one, other = (
        np.stack([np.sin(theta) * np.cos(phi), np.sin(theta) * np.sin(phi), np.cos(theta)], axis=1)
        for theta, phi in (true, predicted)
    )
    half = np.linalg.norm(one - other, axis=1) / 2  # exact for small angles
    return 2e3 * elementary.arcsin(np.minimum(half, 1.0))


def half_width(values: Floats) -> Statistic:
    """Take the half width of the interval about the median that holds 68.27 % of values, [N]."""
    order = np.argsort(values, kind="stable")
    ordered, middle = values[order], quantile(values, 0.5)

    def width(weights: Floats) -> float:
        # sorted on both sides of the median: merged in one pass
        return quantile(np.abs(ordered - middle(weights)), WITHIN)(weights[order])

    return width


def middle(values: Floats) -> Statistic:
    """Take the median of values, [N]."""
    return quantile(values, 0.5)


def within(values: Floats) -> Statistic:
    """Take what 68.27 % of the absolute values, [N], are below."""
    return quantile(np.abs(values), WITHIN)


FEWEST = 25  # events in a bin
_MOST_BINS = 10


def profile(condition: Floats, values: Floats, statistic: Callable[[Floats], Statistic]) -> Profile:
    """Cut events into at most ten bins with equally many each, and measure ``values`` in each of them.

    condition, values: [N]. Events of equal condition stay together; bins of fewer than 25 are left out, so
    there may be none.
    """
    cuts = even_cuts(condition, FEWEST, _MOST_BINS)

    def measured(mine: NDArray[np.bool_]) -> tuple[float, float]:
        return value_and_error(statistic(values[mine]), np.arange(np.count_nonzero(mine)))

    return Profile(*rows_in_bins(condition, cuts, FEWEST, measured, 2))


# How the energy resolution depends on the energy E: a / sqrt(E) (+) b (+) c / E, added in quadrature.

TERMS = ("stochastic_term", "constant_term", "noise_term")
_SCATTERED = 200
_FEWEST_BINS = 4  # three terms need one more


@dataclass(frozen=True, slots=True)
class EnergyCurve:
    """Resolutions in bins of energy (in GeV; %), and the terms through them.

    terms, terms_error: a in % sqrt(GeV), b in %, c in % GeV.
    """

    bins: Profile
    terms: Floats
    terms_error: Floats

    def at(self, energy: Floats) -> Floats:
        """Return the resolution of the fit at energies in GeV: [N] in %."""
        return np.sqrt(_powers(energy) @ self.terms**2)


def measure_curve(truth: Mapping[str, Any], prediction: Mapping[str, Any]) -> dict[str, float]:
    """Return the terms and their errors; nothing where the energies are too few or too much alike."""
    curve = energy_curve(truth, prediction)
    if curve is None:
        return {}
    numbers = {name: float(value) for name, value in zip(TERMS, curve.terms, strict=True)}
    errors = zip(TERMS, curve.terms_error, strict=True)
    return numbers | {f"{name}_error": float(value) for name, value in errors}


def energy_curve(
    truth: Mapping[str, Any], prediction: Mapping[str, Any], prefix: str = ""
) -> EnergyCurve | None:
    """Measure the resolution in bins of energy, and fit it; None where there are too few bins or no fit."""
    quantity = QUANTITIES["energy"][0]
    pair = known_residuals(quantity, truth, prediction, prefix)
    if pair is None:
        return None
    known, residuals = pair
    bins = profile(np.asarray(truth["energy_gev"], np.float64)[known], residuals, quantity.width)
    if len(bins.where) < _FEWEST_BINS:
        return None
    terms, errors = fit_terms(bins.where, bins.value, bins.error)
    return EnergyCurve(bins, terms, errors) if np.isfinite(terms).all() else None


def fit_terms(energy: Floats, resolution: Floats, error: Floats) -> tuple[Floats, Floats]:
    """Fit the three terms and their errors, [3] each, from the resolutions of bins, [B] each.

    sigma^2 = a^2 / E + b^2 + c^2 / E^2 is linear in the squares, which are never negative. The errors come
    from fits to resolutions that scatter by their own errors.
    """
    error = np.maximum(error, 1e-6 * resolution.max(initial=1e-9))
    noise = np.random.default_rng(0).normal(size=(_SCATTERED, len(resolution)))
    replicas = resolution + error * noise
    terms, *again = (_terms(energy, np.abs(each), error) for each in (resolution, *replicas))
    return terms, np.std(again, axis=0)


def _terms(energy: Floats, resolution: Floats, error: Floats) -> Floats:
    """Least squares with coefficients that are not negative: the best of the eight sets of free terms."""
    weight = 1 / (2 * np.maximum(resolution, error) * error)  # error of the square
    matrix, values = _powers(energy) * weight[:, None], resolution**2 * weight
    best, least = np.zeros(3), float(values @ values)
    for is_free in product((False, True), repeat=3):
        free = np.flatnonzero(is_free)
        solution = np.zeros(3)
        solution[free] = np.linalg.lstsq(matrix[:, free], values, rcond=None)[0] if len(free) else 0.0
        chi2 = float(np.sum((matrix @ solution - values) ** 2))
        if (solution >= 0).all() and chi2 < least:
            best, least = solution, chi2
    return np.sqrt(best)


def _powers(energy: Floats) -> Floats:
    return np.stack([1 / energy, np.ones_like(energy), energy**-2.0], axis=1)
