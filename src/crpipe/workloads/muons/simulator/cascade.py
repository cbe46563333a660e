"""Muon bundles from cascades of hadrons, for what a parametrisation leaves out; needs the extra ``cascade``.

In: primaries, and tabulated interactions and decays. Out: files as ``AirShowers`` writes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from crpipe.events.batch import cuts
from crpipe.workloads.common import elementary
from crpipe.workloads.common.simulators import Arrays, joined, taken
from crpipe.workloads.muons.simulator.air import TOP_M, Air, standard_air
from crpipe.workloads.muons.simulator.files import AirShowers
from crpipe.workloads.muons.simulator.interactions import (
    CHARGES,
    DECAY_M_PER_GEV,
    GRID_GEV,
    INTERACTING,
    STEPS_PER_DECADE,
    FinalStates,
    decay_cell,
    final_states,
    interaction_cell,
)
from crpipe.workloads.muons.simulator.physics import MUON_THRESHOLD_GEV, Muons, Primaries, bending

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from crpipe.workloads.muons.simulator.options import CascadeOptions

    Floats = NDArray[np.float64]

CHUNK, CHUNK_SECONDARIES = 1 << 14, 1 << 19  # particles followed at once, and what comes out of them
# Loss of 0.3 to 3 TeV muons in air (Review of Particle Physics): ionisation [GeV cm2/g], radiation [cm2/g].
AIR_IONISATION, AIR_RADIATION = 2.6e-3, 3.4e-6


@dataclass(slots=True)
class CascadeParticles(Arrays):
    """P particles of cascades: shower [P] int32, kind [P] int8 (index of KINDS), others [P] float64.

    energy [GeV]; length: what is left of the axis down to the surface [m]; x, y [m] and slopes [rad]: as in
    ``Muons``.
    """

    shower: NDArray[np.int32]
    kind: NDArray[np.int8]
    energy: Floats
    length: Floats
    x: Floats
    y: Floats
    slope_x: Floats
    slope_y: Floats


class Cascade(AirShowers):
    """Simulator of muon bundles from cascades of hadrons; see docs/physics.md#a-cascade-of-hadrons."""

    _options: CascadeOptions

    def in_air(
        self, rng: np.random.Generator, primaries: Primaries, threshold_gev: Floats
    ) -> tuple[NDArray[np.int64], Callable[[int, int], Muons]]:
        """Follow the cascades of primaries; see ``AirShowers``."""
        muons = follow(rng, final_states(self._options.model), primaries, threshold_gev)
        starts = np.searchsorted(muons.shower, np.arange(len(primaries) + 1))

        def muons_of(first: int, last: int) -> Muons:
            chosen = taken(muons, slice(starts[first], starts[last]))
            chosen.shower = chosen.shower - np.int32(first)
            return chosen

        return np.diff(starts), muons_of


def follow(
    rng: np.random.Generator,
    states: FinalStates,
    primaries: Primaries,
    threshold_gev: Floats,
    air: Air | None = None,
) -> Muons:
    """Follow cascades until nothing above the threshold [N] is left in the air.

    Return the muons at the surface in the order of the showers.
    """
    air = air or standard_air()
    threshold = np.maximum(threshold_gev, MUON_THRESHOLD_GEV)
    cosine = primaries.cos_zenith
    curvature, azimuth = bending(rng, cosine), rng.random(len(cosine)) * 2 * np.pi
    field = curvature * np.cos(azimuth), curvature * np.sin(azimuth)
    pending = _nucleons(rng, primaries, air)
    parts = [_at_surface(taken(pending, slice(0)), cosine, field, air)]
    while len(pending):
        batch, pending = taken(pending, slice(-CHUNK, None)), taken(pending, slice(0, -CHUNK))
        batch, cell = _next_events(rng, states, batch, cosine[batch.shower], air)
        event = states.event[cell]
        event = event + (rng.random(len(cell)) * (states.event[cell + 1] - event)).astype(np.int64)
        for first, last in cuts(np.diff(states.particle)[event], len(event), CHUNK_SECONDARIES):
            some = slice(first, last)
            out = _secondaries(rng, states, taken(batch, some), event[some], threshold)
            muon = out.kind >= INTERACTING
            parts.append(_at_surface(taken(out, muon), cosine, field, air))
            pending = joined([pending, taken(out, ~muon)])
    muons = joined(parts)
    muons = taken(muons, muons.energy > threshold[muons.shower])
    return taken(muons, np.argsort(muons.shower, kind="stable"))


def _nucleons(rng: np.random.Generator, primaries: Primaries, air: Air) -> CascadeParticles:
    """Start the nucleons of each nucleus at the top of the air, half of them neutrons in the mean."""
    mass = primaries.mass_number.astype(np.int64)
    shower = np.repeat(np.arange(len(mass), dtype=np.int32), mass)
    kind = ((rng.random(len(shower)) < 1 / 2) & (mass[shower] > 1)).astype(np.int8)
    length = air.length(np.full(len(shower), TOP_M), primaries.cos_zenith[shower])
    flat = np.zeros((4, len(shower)))
    return CascadeParticles(shower, kind, (primaries.energy_gev / mass)[shower], length, *flat)


def _next_events(
    rng: np.random.Generator, states: FinalStates, particles: CascadeParticles, cosine: Floats, air: Air
) -> tuple[CascadeParticles, NDArray[np.int64]]:
    """Move hadrons to where they interact or decay, and name the cells; drop those that reach the surface."""
    kind = particles.kind.astype(np.int64)
    at = np.clip(elementary.log10(particles.energy / GRID_GEV[0]) * STEPS_PER_DECADE, 0, len(GRID_GEV) - 1.0)
    step = (at + rng.random(len(at))).astype(np.int64)  # one of the neighbours, the nearer the more often
    passed = states.free_path[kind, step] * rng.standard_exponential(len(kind))
    stop = air.length_at(air.depth(particles.length, cosine) + passed, cosine)
    flight = DECAY_M_PER_GEV[kind] * particles.energy * rng.standard_exponential(len(kind))
    decays = particles.length - flight > stop
    stop = np.where(decays, particles.length - flight, stop)
    cell = np.where(decays, decay_cell(kind), interaction_cell(kind, step))
    moved = particles.length - stop
    particles.x = particles.x + particles.slope_x * moved
    particles.y = particles.y + particles.slope_y * moved
    particles.length = stop
    inside = stop > 0
    return taken(particles, inside), cell[inside]


def _secondaries(
    rng: np.random.Generator,
    states: FinalStates,
    parents: CascadeParticles,
    event: NDArray[np.int64],
    threshold: Floats,
) -> CascadeParticles:
    """Take what comes out of tabulated events, each turned about its axis, above the showers' thresholds."""
    first = states.particle[event]
    count = states.particle[event + 1] - first
    parent = np.repeat(np.arange(len(event)), count)
    row = np.arange(len(parent)) + np.repeat(first - (np.cumsum(count) - count), count)
    energy = parents.energy[parent] * states.share[row]
    chosen = energy > threshold[parents.shower[parent]]
    parent, row, energy = parent[chosen], row[chosen], energy[chosen]
    turn = rng.random(len(event))[parent] * 2 * np.pi
    cos, sin, px, py = np.cos(turn), np.sin(turn), states.px[row], states.py[row]
    rest = taken(parents, parent)
    rest.kind, rest.energy = states.kind[row], energy
    rest.slope_x = rest.slope_x + (px * cos - py * sin) / energy
    rest.slope_y = rest.slope_y + (px * sin + py * cos) / energy
    return rest


def _at_surface(particles: CascadeParticles, cosine: Floats, field: tuple[Floats, Floats], air: Air) -> Muons:
    """Carry muons to the surface, with the mean energy loss and bent by the Earth's field."""
    shower, length = particles.shower, particles.length
    line = cosine[shower]
    matter = air.depth(np.zeros(len(line)), line) - air.depth(length, line)
    energy = particles.energy - matter * (AIR_IONISATION + AIR_RADIATION * particles.energy)
    bend = CHARGES[particles.kind] / particles.energy
    columns: list[Any] = [energy]
    for start, slope, each in (
        (particles.x, particles.slope_x, field[0]),
        (particles.y, particles.slope_y, field[1]),
    ):
        turn = bend * each[shower]
        columns += [start + slope * length + turn * length**2 / 2, slope + turn * length]
    energy, x, slope_x, y, slope_y = columns
    return Muons(shower, *(each.astype(np.float32) for each in (energy, x, y, slope_x, slope_y)))
