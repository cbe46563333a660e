"""Events as metrics and figures see them: conditions, multiplicities and muons of one of two samples."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from crpipe.events.batch import offsets
from crpipe.events.layout import Metric
from crpipe.workloads.common import elementary

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    from crpipe.events.batch import Events

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


@dataclass(frozen=True)
class Axis:
    """One condition cut into bins; ``edges`` are the inner ones, in the unit of ``name``."""

    name: str
    edges: tuple[float, ...]

    def bins(self, values: NDArray[Any]) -> NDArray[np.int64]:
        """Number the bin of each value: [N] in 0..len(edges)."""
        return np.asarray(np.digitize(values, self.edges), np.int64)

    def label(self, number: int) -> str:
        """Name a bin by its edges, for example ``depth_m_below_1900``."""
        if number == 0:
            return f"{self.name}_below_{self.edges[0]:g}"
        if number == len(self.edges):
            return f"{self.name}_above_{self.edges[-1]:g}"
        return f"{self.name}_{self.edges[number - 1]:g}_to_{self.edges[number]:g}"


AXES = (
    Axis("energy_gev", tuple(float(f"{10**exponent:.2g}") for exponent in (4.25, 5.0, 5.75, 6.5, 7.25))),
    Axis("zenith_deg", (53.13,)),
    Axis("mass_number", (3.0,)),
    Axis("depth_m", (1900.0,)),
)


@dataclass(frozen=True)
class Sample:
    """One side of a comparison: N events and their M muons.

    columns: energy_gev, zenith_rad, mass_number, depth_m, [N] each. multiplicity: [N]; muons: [M, 3]
    (energy_gev, x_m, y_m), event after event. group: [N] int64, equal for events of one primary: these are
    resampled, and split between a classifier's halves, together. weight: [N], None where all count alike.
    """

    columns: Mapping[str, NDArray[Any]]
    multiplicity: NDArray[Any]
    muons: NDArray[np.float32]
    group: NDArray[np.int64]
    weight: NDArray[Any] | None = None

    def __len__(self) -> int:
        """Count the events."""
        return len(self.multiplicity)

    @property
    def alike(self) -> bool:
        """Whether all events weigh the same."""
        return self.weight is None or not self.weight.any()

    @cached_property
    def weights(self) -> Floats:
        """Weight of each event, with mean 1: [N]; ones where all count alike."""
        if self.weight is None or self.alike:
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

    def muons_by(self, bins: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """Yield the places of the muons of each bin, in their order; bins [N] below 256 are those of events.

        Bins without muons are left out.
        """
        counts = np.bincount(bins, self.multiplicity).astype(np.int64)
        # Single bytes are sorted by counting: no comparison, and one pass.
        order = np.argsort(np.repeat(bins.astype(np.uint8), self.multiplicity), kind="stable")
        end = 0
        for number in np.flatnonzero(counts).tolist():
            start, end = end, end + int(counts[number])
            yield number, order[start:end]

    def take(self, events: NDArray[np.int64]) -> Sample:
        """Gather events in this order, each with its own muons."""
        kept = np.asarray(self.multiplicity)[events]
        places = np.arange(int(kept.sum())) + np.repeat(self.first[events] - offsets(kept)[:-1], kept)
        columns = {name: np.asarray(column)[events] for name, column in self.columns.items()}
        weight = None if self.weight is None else self.weight[events]
        return Sample(columns, kept, self.muons[places], self.group[events], weight)

    @cached_property
    def log_multiplicity(self) -> Floats:
        """log10(N + 1): [N]."""
        return elementary.log10(np.asarray(self.multiplicity, np.float64) + 1.0)

    @cached_property
    def conditions(self) -> Floats:
        """log10 energy, cosine of zenith, log10 mass number, depth: [N, 4]."""
        return np.stack(
            [
                elementary.log10(np.asarray(self.columns["energy_gev"], np.float64)),
                np.cos(np.asarray(self.columns["zenith_rad"], np.float64)),
                elementary.log10(np.asarray(self.columns["mass_number"], np.float64)),
                np.asarray(self.columns["depth_m"], np.float64),
            ],
            axis=1,
        )

    def axis_bins(self, axis: Axis) -> NDArray[np.int64]:
        """Number each event's bin of one condition: [N]."""
        if axis.name == "zenith_deg":
            return axis.bins(np.rad2deg(self.columns["zenith_rad"]))
        return axis.bins(self.columns[axis.name])

    @cached_property
    def joint_bins(self) -> NDArray[np.int64]:
        """Number each event's bin of all conditions together: [N]."""
        joint = np.zeros(len(self), np.int64)
        for axis in AXES:
            joint = joint * (len(axis.edges) + 1) + self.axis_bins(axis)
        return joint

    @property
    def summaries(self) -> Floats:
        """What a bundle looks like, one row per event: [N, 11]; zeros for an event without muons.

        Mean and spread of log energy and log radius, their correlation, extremes, total energy, centre.
        """
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
