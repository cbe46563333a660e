"""Events as metrics and figures see them: conditions, multiplicities and muons of one of two samples."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from crpipe.events.batch import Events, cuts, offsets
from crpipe.events.layout import Metric
from crpipe.statistics.classifier import FEWEST_GROUPS
from crpipe.workloads.common import elementary
from crpipe.workloads.muons.layout import PRIMARY

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

    AnyFloats = NDArray[np.floating[Any]]

LEAST_GEV, LEAST_M = 1e-2, 1e-2  # below what matters; keeps logarithms finite


def log_energy(muons: NDArray[np.float32]) -> Floats:
    """log10 of each muon's energy in GeV: [M]."""
    return elementary.log10(np.maximum(muons[:, 0].astype(np.float64), LEAST_GEV))


def radius(muons: NDArray[np.float32]) -> Floats:
    """Distance of each muon from the shower axis, in m: [M]."""
    return np.hypot(muons[:, 1].astype(np.float64), muons[:, 2])


def log_radius(muons: NDArray[np.float32]) -> Floats:
    """log10 of each muon's radius in m: [M]."""
    return elementary.log10(radius(muons) + LEAST_M)


def azimuth(muons: NDArray[np.float32]) -> Floats:
    """Angle of each muon around the axis, in rad: [M]."""
    return elementary.arctan2(muons[:, 2].astype(np.float64), muons[:, 1])


def energy_text(energy_gev: float) -> str:
    """Write an energy with two digits in the unit in which it is at least 1: 1.6 EeV, 30 TeV."""
    for unit, size in (("EeV", 1e9), ("PeV", 1e6), ("TeV", 1e3)):
        if energy_gev >= size:
            return f"{float(f'{energy_gev / size:.2g}'):g} {unit}"
    return f"{float(f'{energy_gev:.2g}'):g} GeV"


_BLOCK = 1 << 22  # muons looked at together
_VALUES = {"log_energy": log_energy, "log_radius": log_radius}
# What describes a bundle: means, spreads and extremes over its muons, and their sum.
SUMMARIES = (
    "mean_log_energy",
    "mean_log_radius",
    "spread_log_energy",
    "spread_log_radius",
    "correlation",
    "log_leading",
    "least_log_energy",
    "largest_log_radius",
    "log_total",
    "mean_x",
    "mean_y",
)


@dataclass(frozen=True)
class Sample:
    """One side of a comparison: N events and their M muons.

    columns: energy_gev, zenith_rad, mass_number, depth_m, [N] each. multiplicity: [N]; muons: [M, 3]
    (energy_gev, x_m, y_m), event after event. group: [N] int64, equal for events of one primary: these are
    resampled, and judged by a classifier that saw none of them, together. weight: [N], None where all count
    alike.
    """

    columns: Mapping[str, NDArray[Any]]
    multiplicity: NDArray[Any]
    muons: NDArray[np.float32]
    group: NDArray[np.int64]
    weight: NDArray[Any] | None = None

    def __len__(self) -> int:
        """Count the events."""
        return len(self.multiplicity)

    @cached_property
    def weights(self) -> Floats:
        """Weight of each event, with mean 1: [N]; ones where all count alike."""
        if self.weight is None or not self.weight.any():
            return np.ones(len(self))
        return np.asarray(self.weight / np.mean(self.weight, dtype=np.float64), np.float64)

    @cached_property
    def event(self) -> NDArray[np.int64]:
        """The event of each muon: [M]."""
        return np.repeat(np.arange(len(self)), self.multiplicity)

    @cached_property
    def first(self) -> NDArray[np.int64]:
        """The place in ``muons`` of the first muon of each event, and the end: [N + 1]."""
        return offsets(self.multiplicity)

    def of(self, event: int) -> NDArray[np.float32]:
        """Return the muons of one event."""
        return self.muons[self.first[event] : self.first[event + 1]]

    def blocks(self) -> Iterator[tuple[int, Sample]]:
        """Yield the events in blocks of few muons, each with the number of its first event."""
        for low, high in cuts(self.multiplicity, len(self), _BLOCK):
            columns = {name: np.asarray(column)[low:high] for name, column in self.columns.items()}
            muons = self.muons[self.first[low] : self.first[high]]
            yield low, Sample(columns, self.multiplicity[low:high], muons, self.group[low:high])

    def values(self, name: str) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        """Return ``log_energy`` or ``log_radius`` of each muon, and its event: [M] each."""
        values = np.empty(len(self.muons), np.float32)
        for first, part in self.blocks():
            start = self.first[first]
            values[start : start + len(part.muons)] = _VALUES[name](part.muons)
        return values, np.repeat(np.arange(len(self), dtype=np.int32), self.multiplicity)

    def count_within(self, radius_m: float) -> Floats:
        """Count the muons of each event within a radius of the axis: [N]."""
        counts = [
            np.bincount(part.event[radius(part.muons) < radius_m], minlength=len(part))
            for _, part in self.blocks()
        ]
        return np.concatenate([*counts, []]).astype(np.float64)

    @cached_property
    def log_multiplicity(self) -> Floats:
        """log10(N + 1): [N]."""
        return elementary.log10(np.asarray(self.multiplicity, np.float64) + 1.0)

    @cached_property
    def conditions(self) -> Floats:
        """log10 energy, cosine of zenith, log10 mass number, depth: [N, 4]."""
        energy, zenith, mass, depth = (np.asarray(self.columns[field.name], np.float64) for field in PRIMARY)
        return np.stack([elementary.log10(energy), np.cos(zenith), elementary.log10(mass), depth], axis=1)

    @cached_property
    def summaries(self) -> Floats:
        """What a bundle looks like, one row per event, one column for each of SUMMARIES: [N, 11].

        Zeros for an event without muons.
        """
        parts = [part._summarized() for _, part in self.blocks()]  # noqa: SLF001 - of the same class
        return np.concatenate([np.zeros((0, len(SUMMARIES))), *parts])

    def _summarized(self) -> Floats:
        energy, distance = log_energy(self.muons), log_radius(self.muons)
        mean_energy, mean_radius = self._mean(energy), self._mean(distance)
        spread_energy = np.sqrt(np.maximum(self._mean(energy**2) - mean_energy**2, 0.0))
        spread_radius = np.sqrt(np.maximum(self._mean(distance**2) - mean_radius**2, 0.0))
        together = self._mean(energy * distance) - mean_energy * mean_radius
        total = np.bincount(self.event, self.muons[:, 0], minlength=len(self))
        return np.stack(
            [
                mean_energy,
                mean_radius,
                spread_energy,
                spread_radius,
                together / (spread_energy * spread_radius + 1e-6),
                self._extreme(np.maximum, energy),
                self._extreme(np.minimum, energy),
                self._extreme(np.maximum, distance),
                elementary.log10(total + LEAST_GEV),
                self._mean(self.muons[:, 1]),
                self._mean(self.muons[:, 2]),
            ],
            axis=1,
        )

    def _mean(self, values: NDArray[Any]) -> Floats:
        sums = np.bincount(self.event, values, minlength=len(self))
        return np.asarray(sums / np.maximum(self.multiplicity, 1))

    def _extreme(self, which: np.ufunc, values: Floats) -> Floats:
        filled = np.flatnonzero(self.multiplicity)
        extremes = np.zeros(len(self))
        if len(filled):
            starts = np.cumsum(self.multiplicity[filled], dtype=np.int64) - self.multiplicity[filled]
            extremes[filled] = which.reduceat(values, starts.astype(np.int64))
        return extremes


# Proper scores of the generated muons of single events: cheap numbers for validation inside training.

MOST_MUONS = 32  # of an event, in each of the three samples
NLL = Metric("multiplicity_nll", "negative log likelihood of the multiplicity")
SCORES = (
    Metric("score_log_energy", "energy score of log10(energy / GeV)"),
    Metric("score_log_radius", "energy score of log10(radius / m)"),
)


def energy_scores(truth: Events, first: Events, second: Events, seed: int) -> dict[str, AnyFloats]:
    """Return the energy score of each event's muons, [N] each (Gneiting and Raftery 2007, eq. 21).

    first, second: two independent predictions with the true multiplicities. The score is
    E|x - y| - E|x - x'| / 2 with x and x' from the two predictions and y from the truth, without bias: its
    mean is least where generated muons follow the true distribution. An event without muons counts 0.
    """
    rng = np.random.default_rng(seed)
    kept = np.minimum(truth.multiplicity.astype(np.int64), MOST_MUONS)
    filled = np.arange(MOST_MUONS) < kept[:, None]
    pairs = np.maximum(kept, 1) ** 2
    both = filled[:, :, None] & filled[:, None, :]
    samples = [_features(events, filled, rng) for events in (truth, first, second)]
    scores = {}
    for number, metric in enumerate(SCORES):
        y, x, other = (sample[number] for sample in samples)
        near = [np.where(both, np.abs(a[:, :, None] - y[:, None, :]), 0).sum((1, 2)) for a in (x, other)]
        apart = np.where(both, np.abs(x[:, :, None] - other[:, None, :]), 0).sum((1, 2))
        scores[metric.name] = ((near[0] + near[1]) / 2 - apart / 2) / pairs
    return scores


def _features(events: Events, filled: NDArray[np.bool_], rng: np.random.Generator) -> list[AnyFloats]:
    """Return log energy and log radius, [N, K] each, of some muons of each event at random."""
    if not len(events.items):
        return [np.zeros(filled.shape)] * len(SCORES)
    count = events.multiplicity.astype(np.int64)[:, None]
    drawn = (rng.random(filled.shape) * count).astype(np.int64)
    index = np.where(count > MOST_MUONS, drawn, np.arange(MOST_MUONS))
    muons = events.items[np.where(filled, events.offsets()[:-1, None] + index, 0)].astype(np.float64)
    energy = elementary.log10(np.maximum(muons[..., 0], LEAST_GEV))
    return [energy, elementary.log10(np.hypot(muons[..., 1], muons[..., 2]) + LEAST_M)]


# What an evaluation declares.

CORE_M = 1.0
FEWEST_EVENTS = 100
FEWEST_MEASURED = 10  # groups: errors of fewer say little


def _auc(name: str, title: str, rows: str) -> Metric:
    needs = f"{FEWEST_GROUPS} primaries with {rows}, real and generated, and scikit-learn"
    return Metric(
        name,
        title,
        better="near",
        ideal=0.5,
        groups=FEWEST_GROUPS,
        needs=needs,
        tolerance=0.02,
        meaning="AUC: a classifier is trained to separate predicted from true events; AUC is the share of "
        "pairs that it orders correctly. 0.5: it cannot separate them; 1: it always can.",
    )


def _distance(name: str, title: str, tolerance: float) -> Metric:
    needs = f"{FEWEST_MEASURED} primaries, and {FEWEST_EVENTS} bundles"
    return Metric(
        name,
        title,
        ideal=0.0,
        tolerance=tolerance,
        groups=FEWEST_MEASURED,
        needs=needs,
        meaning="W1 (Wasserstein distance): how far the predicted distribution has to be moved, on average, "
        "to become the true one; in the unit of the quantity, 0 if both are equal.",
    )


def _closure(name: str, title: str, ideal: float, tolerance: float) -> Metric:
    needs = f"{FEWEST_MEASURED} primaries, and events with muons"
    return Metric(
        name, title, better="near", ideal=ideal, tolerance=tolerance, groups=FEWEST_MEASURED, needs=needs
    )


METRICS: tuple[Metric, ...] = (
    _auc("auc_event", "AUC of bundles, true multiplicities", "bundles of 3 muons or more"),
    _auc("auc_full", "AUC of events, own multiplicities", "1 muon or more"),
    _auc("auc_multiplicity", "AUC of multiplicities", "events"),
    _auc("auc_muon", "AUC of single muons", "muons"),
    _closure("mean_multiplicity", "mean multiplicity, generated / real", 1.0, 0.05),
    _closure("no_muon", "P(no muon), generated - real", 0.0, 0.01),
    _closure("spectrum", "muon spectrum, generated / real", 1.0, 0.1),
    _closure("leading", "log10 of the leading muon's energy, generated - real", 0.0, 0.02),
    _closure("correlation", "correlation of energy and radius, generated - real", 0.0, 0.02),
    _closure(
        "spread_energy", "spread from event to event of the mean log energy, generated / real", 1.0, 0.1
    ),
    _closure(
        "spread_radius", "spread from event to event of the mean log radius, generated / real", 1.0, 0.1
    ),
    _closure("core", f"muons within {CORE_M:g} m, generated / real", 1.0, 0.1),
    _distance("w1_log_energy", "W1 of log10(energy / GeV)", 0.02),
    _distance("w1_log_radius", "W1 of log10(radius / m)", 0.02),
    _distance("fpd", "Fréchet distance of bundles (FPD)", 0.002),
    _distance("kpd", "kernel distance of bundles (KPD)", 0.0005),
)
