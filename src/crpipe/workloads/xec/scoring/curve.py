"""How the energy resolution depends on the energy E: a / sqrt(E) (+) b (+) c / E, added in quadrature."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from crpipe.workloads.xec.scoring import metrics
from crpipe.workloads.xec.scoring.metrics import Profile, profile

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

TERMS = ("stochastic_term", "constant_term", "noise_term")
_SEED = 0
_RESAMPLES = 200
_FEWEST_BINS = 4  # three terms need one more


@dataclass(frozen=True, slots=True)
class EnergyCurve:
    """Resolutions in bins of energy (in GeV; %), and the terms through them.

    terms, terms_error: a in % sqrt(GeV), b in %, c in % GeV; NaN where the bins are too few.
    """

    bins: Profile
    terms: Floats
    terms_error: Floats

    def at(self, energy: Floats) -> Floats:
        """Return the resolution of the fit at energies in GeV: [N] in %."""
        return np.sqrt(_powers(energy) @ self.terms**2)


def measure(truth: Mapping[str, Any], prediction: Mapping[str, Any]) -> dict[str, float]:
    """Return the terms and their errors; nothing where the energies are too few or too much alike."""
    if "energy_gev" not in truth:
        return {}
    found = energy_curve(truth, prediction)
    if found is None or not np.isfinite(found.terms).all():
        return {}
    numbers = {name: float(value) for name, value in zip(TERMS, found.terms, strict=True)}
    errors = zip(TERMS, found.terms_error, strict=True)
    return numbers | {f"{name}_error": float(value) for name, value in errors}


def energy_curve(
    truth: Mapping[str, Any], prediction: Mapping[str, Any], prefix: str = ""
) -> EnergyCurve | None:
    """Measure the resolution in bins of energy, and fit it; None without predicted energies."""
    quantity = metrics.QUANTITIES["energy"][0]
    predicted = metrics.predicted_values(quantity, truth, prediction, prefix)
    if predicted is None:
        return None
    known = metrics.known_of(quantity, truth)
    energy = np.asarray(truth["energy_gev"], np.float64)[known]
    residuals = quantity.residuals(truth, predicted)[known]
    bins = profile(energy, residuals, quantity.width)
    if len(bins.where) < _FEWEST_BINS:
        return EnergyCurve(bins, np.full(3, np.nan), np.full(3, np.nan))
    return EnergyCurve(bins, *fit(bins.where, bins.value, bins.error))


def fit(energy: Floats, resolution: Floats, error: Floats) -> tuple[Floats, Floats]:
    """Fit the three terms and their errors, [3] each, from the resolutions of bins, [B] each.

    sigma^2 = a^2 / E + b^2 + c^2 / E^2 is linear in the squares, which are never negative. The errors come
    from fits to resolutions that scatter by their own errors.
    """
    rng = np.random.default_rng(_SEED)
    error = np.maximum(error, 1e-6 * resolution.max(initial=1e-9))
    scattered = resolution + error * rng.normal(size=(_RESAMPLES, len(resolution)))
    terms, *again = (_terms(energy, np.abs(each), error) for each in (resolution, *scattered))
    return terms, np.std(again, axis=0)


def _terms(energy: Floats, resolution: Floats, error: Floats) -> Floats:
    """Least squares with coefficients that are not negative: the best of the eight sets of free terms."""
    weight = 1 / (2 * np.maximum(resolution, error) * error)  # error of the square
    matrix, values = _powers(energy) * weight[:, None], resolution**2 * weight
    best, least = np.zeros(3), float(values @ values)
    for chosen in product((False, True), repeat=3):
        free = np.flatnonzero(chosen)
        solution = np.zeros(3)
        solution[free] = np.linalg.lstsq(matrix[:, free], values, rcond=None)[0] if len(free) else 0.0
        chi2 = float(np.sum((matrix @ solution - values) ** 2))
        if (solution >= 0).all() and chi2 < least:
            best, least = solution, chi2
    return np.sqrt(best)


def _powers(energy: Floats) -> Floats:
    return np.stack([1 / energy, np.ones_like(energy), energy**-2.0], axis=1)
