"""What comes out of interactions with air and of decays: tables, filled once with a model from chromo.

In: the name of a model, SIBYLL in one of its versions. Out: ``FinalStates``, from which a cascade draws.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from crpipe.core.errors import SetupError, require
from crpipe.core.files import atomic_write, make_folder

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

# Particles of a cascade by their PDG numbers: those that interact, of which those from DECAYING on decay, and
# muons. Antinucleons count as nucleons; the model itself decays all others.
KINDS = (2212, 2112, 211, -211, 321, -321, 130, -13, 13)
INTERACTING, DECAYING, FIRST_KAON = 7, 2, 4
CHARGES = np.array([1, 0, 1, -1, 1, -1, 0, 1, -1])
SHORT_LIVED = (310, 3122, 3222, 3112, 3312, 3322, 3334)

LEAST_GEV = 270.0  # of what comes out; the muons of a bundle have more
STEPS_PER_DECADE = 4
GRID_GEV = 10 ** np.arange(2.5, 10.01, 1 / STEPS_PER_DECADE)
EVENTS, DECAYS = 3000, 20_000  # of each particle: interactions below FEWER_GEV, fewer above, and decays
FEWER_GEV, FEWER = 1e4, -0.2
KAON_SHARE = 0.3  # of these interactions, those of each kaon
AIR = ((14, 7, 0.788), (16, 8, 0.212))  # mass number, charge and share of its nuclei
GRAMS_MB = 1660.54  # a nucleon's mass over a millibarn, in g/cm2

# Review of Particle Physics 2024: masses [GeV], c times lifetime [m], and the decays with a muon or a pion.
PION, NEUTRAL_PION, KAON, NEUTRAL_KAON, MUON, ELECTRON = 0.13957, 0.13498, 0.49368, 0.49761, 0.10566, 0.00051
DECAY_M_PER_GEV = np.array([np.inf, np.inf, *[7.8045 / PION] * 2, *[3.711 / KAON] * 2, 15.34 / NEUTRAL_KAON])
_MASS = {211: PION, 111: NEUTRAL_PION, 13: MUON, 11: ELECTRON, 12: 0.0}
_OF_KAON = (
    (0.6356, (-13, 12)),
    (0.2067, (211, 111)),
    (0.0558, (211, 211, -211)),
    (0.0507, (111, -11, 12)),
    (0.0335, (111, -13, 12)),
    (0.0176, (211, 111, 111)),
)
_OF_NEUTRAL = tuple(
    (share / 2, tuple(sign * pdg if abs(pdg) in (211, 13, 11) else pdg for pdg in daughters))
    for share, daughters in (
        (0.4055, (211, 11, 12)),
        (0.2704, (211, 13, 12)),
        (0.1952, (111, 111, 111)),
        (0.1254, (211, -211, 111)),
    )
    for sign in (1, -1)
)
_DECAYS = {211: (PION, ((1.0, (-13, 12)),)), 321: (KAON, _OF_KAON), 130: (NEUTRAL_KAON, _OF_NEUTRAL)}


@dataclass(frozen=True, slots=True)
class FinalStates:
    """Tabulated events, in cells: a particle's interactions at one energy of the grid, or its decays.

    event: [cells + 1] first event of each cell. particle: [events + 1] first particle of each event. kind [P]
    int8 (index of KINDS), share [P] (energy over that of what interacts or decays), px, py [P] GeV, float32
    each. free_path: [INTERACTING, energies] mean free path in air, g/cm2.
    """

    event: NDArray[np.int64]
    particle: NDArray[np.int64]
    kind: NDArray[np.int8]
    share: NDArray[np.float32]
    px: NDArray[np.float32]
    py: NDArray[np.float32]
    free_path: Floats


def interaction_cell(kind: NDArray[Any], energy_step: NDArray[Any]) -> NDArray[Any]:
    """Return the cell of interactions at an energy of the grid."""
    return np.asarray(kind * len(GRID_GEV) + energy_step)


def decay_cell(kind: NDArray[Any]) -> NDArray[Any]:
    """Return the cell of decays."""
    return np.asarray(INTERACTING * len(GRID_GEV) + kind - DECAYING)


@cache
def final_states(model: str, events: int = EVENTS) -> FinalStates:
    """Read the tables of a model, or fill them first, which takes two minutes of CPU time.

    events: interactions of a nucleon or pion at each low energy. The tables are kept (0.1 GB) in
    $XDG_CACHE_HOME/crpipe, by default ~/.cache/crpipe. Raise MissingExtra without chromo, SetupError when
    they cannot be filled.
    """
    chromo = require("chromo", extra="cascade", why="to simulate showers as cascades of hadrons")
    recipe = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:16]
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "crpipe"
    path = folder / f"{model}-{events}-chromo-{chromo.__version__}-{recipe}.npz"
    if not path.exists():
        make_folder(folder)
        with atomic_write(path) as part:
            _fill_apart(model, events, part)
    with np.load(path) as stored:
        return FinalStates(*(stored[field.name] for field in fields(FinalStates)))


def _fill_apart(model: str, events: int, part: Path) -> None:
    """Fill the tables in a process of its own: a model starts once in each, and writes to its output."""
    command = [sys.executable, "-m", "crpipe.workloads.muons.simulator.interactions", model, str(events)]
    filled = subprocess.run(  # noqa: S603 - Python itself
        [*command, str(part)], check=False, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    if filled.returncode:
        *_, reason = ["", *filled.stderr.strip().splitlines()] if filled.returncode > 0 else [""]
        raise SetupError(
            f"{part.parent}: the tables of {model} could not be filled: "
            f"{reason or f'the process ended with {filled.returncode}'}; to see where it stops, run "
            f"{shlex.join([*command, os.devnull])}"
        )


def _fill(model: str, events: int) -> FinalStates:
    from chromo import kinematics, models, util  # noqa: PLC0415 - optional

    air = util.CompositeTarget([((mass, charge), share) for mass, charge, share in AIR])
    generator = getattr(models, model)(kinematics.FixedTarget(1e5, KINDS[0], air), seed=1)
    for pdg in SHORT_LIVED:
        generator.set_unstable(pdg)
    cells: list[list[tuple[NDArray[Any], ...]]] = []
    section = np.empty((INTERACTING, len(GRID_GEV)))
    for kind in range(INTERACTING):
        for step, energy in enumerate(GRID_GEV):
            number = events * min(1, (energy / FEWER_GEV) ** FEWER) * (1 if kind < FIRST_KAON else KAON_SHARE)
            generator.kinematics = kinematics.FixedTarget(float(energy), KINDS[kind], air)
            section[kind, step] = generator.cross_section().prod
            least = LEAST_GEV / (energy * 10 ** (1 / STEPS_PER_DECADE))  # is drawn for higher energies, too
            cells.append([_kept(each, float(energy), least) for each in generator(int(number) + 2)])
    rng = np.random.default_rng(2)
    cells += [_decayed(rng, KINDS[kind]) for kind in range(DECAYING, INTERACTING)]
    flat = [event for cell in cells for event in cell]
    first = (np.cumsum([0, *map(len, cells)]), np.cumsum([0, *(len(event[0]) for event in flat)]))
    kinds, shares, px, py = map(np.concatenate, zip(*flat, strict=True))
    nucleons = sum(mass * share for mass, _, share in AIR)
    return FinalStates(*first, kinds, shares, px, py, nucleons * GRAMS_MB / section)


def _kept(final: Any, energy: float, least: float) -> tuple[NDArray[Any], ...]:
    """Choose the particles of a cascade that are energetic enough: kind, share, px, py."""
    share, kind = final.en / energy, _kind(final.pid)
    chosen = (final.status == 1) & (share > least) & (kind >= 0)
    return kind[chosen], *(np.float32(each[chosen]) for each in (share, final.px, final.py))


def _kind(pdg: NDArray[Any]) -> NDArray[np.int8]:
    """Return the index into KINDS of each particle, -1 for those that no muon comes from."""
    known = {pdg: index for index, pdg in enumerate(KINDS)} | {-2212: 0, -2112: 1}
    codes = np.array(sorted(known))
    at = np.minimum(np.searchsorted(codes, pdg), len(codes) - 1)
    return np.where(codes[at] == pdg, np.array([known[code] for code in codes])[at], -1).astype(np.int8)


def _decayed(rng: np.random.Generator, pdg: int) -> list[tuple[NDArray[Any], ...]]:
    """Draw decays in flight, at an energy far above the mass."""
    mass, channels = _DECAYS[abs(pdg)]
    shares = np.array([share for share, _ in channels])
    chosen = rng.choice(len(channels), DECAYS, p=shares / shares.sum())
    events: list[Any] = [None] * DECAYS
    for channel, (_, daughters) in enumerate(channels):
        at = np.flatnonzero(chosen == channel)
        momenta = _phase_space(rng, mass, [_MASS[abs(each)] for each in daughters], len(at))
        conjugate = -1 if pdg < 0 else 1
        kind = _kind(np.array([conjugate * each for each in daughters]))
        kept = kind >= 0
        for event, four in zip(at, momenta[:, kept].astype(np.float32), strict=True):
            # In flight along z, the energy is gamma (E + p_z) for a mass of M / gamma.
            events[event] = kind[kept], (four[:, 0] + four[:, 3]) / np.float32(mass), four[:, 1], four[:, 2]
    return events


def _phase_space(rng: np.random.Generator, mass: float, masses: list[float], count: int) -> Floats:
    """Draw the momenta (E, px, py, pz) of two or three daughters at rest, evenly in phase space."""
    *others, last = masses
    if len(others) == 1:
        one = _isotropic(rng, _momentum(mass, others[0], last) * np.ones(count))
        return np.stack([_with_energy(one, others[0]), _with_energy(-one, last)], axis=1)
    low, high = sum(others), mass - last
    trial = low + (high - low) * rng.random(20 * count + 100)
    weight = _momentum(trial, *others) * _momentum(mass, trial, last)
    pair = trial[rng.random(len(trial)) * weight.max() < weight][:count]
    inner = _phase_space_of_pairs(rng, pair, others)
    recoil = _isotropic(rng, _momentum(mass, pair, last))
    return np.concatenate([_boosted(inner, -recoil, pair), _with_energy(recoil, last)[:, None]], axis=1)


def _phase_space_of_pairs(rng: np.random.Generator, mass: Floats, masses: list[float]) -> Floats:
    one = _isotropic(rng, _momentum(mass, *masses))
    return np.stack([_with_energy(one, masses[0]), _with_energy(-one, masses[1])], axis=1)


def _momentum(mass: Any, one: Any, two: Any) -> Any:
    """Return the momentum of two daughters at rest."""
    return np.sqrt((mass**2 - (one + two) ** 2) * (mass**2 - (one - two) ** 2)) / (2 * mass)


def _isotropic(rng: np.random.Generator, length: Floats) -> Floats:
    vector = rng.standard_normal((len(length), 3))
    return vector * (length / np.sqrt((vector**2).sum(axis=1)))[:, None]


def _with_energy(momentum: Floats, mass: float) -> Floats:
    return np.column_stack([np.sqrt((momentum**2).sum(axis=1) + mass**2), momentum])


def _boosted(four: Floats, momentum: Floats, mass: Floats) -> Floats:
    """Boost [N, daughters, 4] from the rest frame of what has this momentum [N, 3] and mass [N]."""
    energy = np.sqrt((momentum**2).sum(axis=1) + mass**2)[:, None]
    along = (four[..., 1:] * momentum[:, None]).sum(axis=2)
    boosted = np.empty_like(four)
    boosted[..., 0] = (four[..., 0] * energy + along) / mass[:, None]
    factor = (along / (energy + mass[:, None]) + four[..., 0]) / mass[:, None]
    boosted[..., 1:] = four[..., 1:] + factor[..., None] * momentum[:, None]
    return boosted


if __name__ == "__main__":
    name, number, target = sys.argv[1:]
    states = _fill(name, int(number))
    with Path(target).open("wb") as file:
        np.savez(file, **{field.name: getattr(states, field.name) for field in fields(FinalStates)})
