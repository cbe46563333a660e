"""What the simulator of muon bundles makes, beside what is published: a figure, or ratios.

python docs/figures/simulator.py
OMP_NUM_THREADS=1 python docs/figures/simulator.py ratios
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import stats

from crpipe.report.figure_context import FigureContext, figures_of
from crpipe.report.figure_style import new_figure, save, style
from crpipe.workloads.muons.simulator.files import AirShowers
from crpipe.workloads.muons.simulator.options import AirShowersOptions
from crpipe.workloads.muons.simulator.physics import MASS_NUMBERS, Primaries, clusters, flux, power_law

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    Drawn = tuple[NDArray[np.uint32], NDArray[np.float32]]

FILE = Path(__file__).with_name("simulator.svg")
LEAST = 30  # muons of a median
NUCLEI = ("proton", "helium", "nitrogen", "aluminium", "iron")
SHADES = ("#1a365d", "#2b6cb0", "#4fa3a5", "#dd8a3c", "#9b2c2c")


def draw(count: int, **given: Any) -> Drawn:
    """Simulate ``count`` events: vertical protons of 10 PeV at 1.5 km, unless told otherwise."""
    values = {"energy_gev": 1e7, "zenith_rad": 0.0, "mass_number": 1.0, "depth_m": 1500.0} | given
    columns = {name: np.broadcast_to(value, count) for name, value in values.items()}
    events = AirShowers(AirShowersOptions()).again(columns, 1)
    return events.multiplicity, events.items


def multiplicity_against_energy(axes: Axes) -> None:
    """Show the mean by mass, and for the lightest and heaviest the middle 68 % of the events."""
    energies = np.geomspace(1e4, 1e9, 21)
    for mass, name, shade in zip(MASS_NUMBERS, NUCLEI, SHADES, strict=True):
        drawn = [draw(300, energy_gev=energy, mass_number=mass)[0] for energy in energies]
        axes.plot(energies, np.maximum([each.mean() for each in drawn], 1e-3), color=shade, label=name)
        if mass in (1, 56):
            low, high = np.transpose([np.quantile(each, (0.16, 0.84)) for each in drawn])
            axes.fill_between(
                energies, np.maximum(low, 1e-3), np.maximum(high, 1e-3), color=shade, alpha=0.15
            )
    axes.set(xscale="log", yscale="log", xlabel="primary energy [GeV]", ylabel="mean multiplicity")
    axes.set(ylim=(0.05, 3e4), title="Vertical, at 1.5 km; bands: 68 % of events")
    axes.legend()


def fluctuation(axes: Axes) -> None:
    """Compare the events' spread with the negative binomial that it is drawn from."""
    for mass, shade in ((1, SHADES[0]), (56, SHADES[4])):
        found = draw(30_000, energy_gev=1e6, mass_number=mass)[0]
        values = np.arange(found.max() + 1)
        mean, k = found.mean(), clusters(Primaries(*(np.array([each]) for each in (1e6, mass, 1.0))))[0]
        axes.step(values, np.bincount(found) / len(found), where="mid", color=shade, alpha=0.6)
        expected = stats.nbinom.pmf(values, k, k / (k + mean))
        axes.plot(values, expected, color=shade, ls="--", label=f"A = {mass}: k = {k:.0f}")
    axes.set(yscale="log", ylim=(1e-4, 1), xlim=(0, 45), xlabel="multiplicity", ylabel="share of events")
    axes.set_title("1 PeV at 1.5 km; dashed: negative binomial")
    axes.legend()


def empty_events(axes: Axes) -> None:
    """Show the share of events without a muon, by depth, energy and mass."""
    depths = np.linspace(1000, 2800, 13)
    for energy, shade in ((3e4, SHADES[0]), (3e5, SHADES[3])):
        for mass, line in ((1.0, "-"), (56.0, "--")):
            share = [
                np.mean(draw(3000, energy_gev=energy, mass_number=mass, depth_m=d)[0] == 0) for d in depths
            ]
            label = f"{energy / 1e3:.0f} TeV, {'proton' if mass == 1 else 'iron'}"
            axes.plot(depths, share, line, color=shade, label=label)
    axes.set(xlabel="depth [m]", ylabel="share without muons", ylim=(0, 1.35), title="Empty events, vertical")
    axes.legend(loc="upper center", ncols=2)


def radius_against_energy(axes: Axes) -> None:
    """Show the median distance to the axis by muon energy, for three inclinations."""
    edges = np.geomspace(3, 3e4, 17)
    centres = np.sqrt(edges[1:] * edges[:-1])
    for degrees, shade in ((0, SHADES[0]), (45, SHADES[2]), (65, SHADES[4])):
        muons = draw(3000, zenith_rad=np.deg2rad(degrees))[1]
        radius = np.hypot(muons[:, 1], muons[:, 2])
        bins = np.digitize(muons[:, 0], edges) - 1
        chosen = [radius[bins == b] for b in range(len(centres))]
        median = [np.median(each) if len(each) > LEAST else np.nan for each in chosen]
        axes.plot(centres, median, ".-", color=shade, label=f"zenith {degrees} deg")
    axes.set(xscale="log", yscale="log", xlabel="muon energy at depth [GeV]", ylabel="median radius [m]")
    axes.set_title("10 PeV protons at 1.5 km")
    axes.legend()


def energy_spectra(axes: Axes) -> None:
    """Show the muons' energies at four depths; losses flatten the spectrum below about 500 GeV."""
    edges = np.geomspace(1, 3e4, 41)
    centres = np.sqrt(edges[1:] * edges[:-1])
    for depth, shade in zip((1000, 1500, 2000, 2800), SHADES[:2] + SHADES[3:], strict=True):
        muons = draw(3000, depth_m=float(depth))[1]
        density = np.histogram(muons[:, 0], edges)[0] / np.diff(edges) / 3000
        axes.plot(centres, np.where(density > 0, density, np.nan), color=shade, label=f"{depth} m")
    axes.set(xscale="log", yscale="log", xlabel="muon energy at depth [GeV]")
    axes.set(ylabel="muons per event and GeV", title="10 PeV protons, vertical")
    axes.legend()


def published_bundles(axes: Axes) -> None:
    """Compare bundles of two muons below the H4a flux with the parameterisation of Becherini et al."""
    depths = np.linspace(1300, 2700, 6)
    for degrees, shade in ((0, SHADES[0]), (45, SHADES[3])):
        zenith = float(np.deg2rad(degrees))
        found = [simulate(300_000, zenith, depth).radius(2) for depth in depths]
        axes.plot(depths, found, "o", color=shade, label=f"zenith {degrees} deg")
        axes.plot(depths, [published_radius(zenith, d, 2) for d in depths], "--", color=shade)
    axes.set(xlabel="depth [m]", ylabel="mean radius [m]", ylim=(0, 25))
    axes.set_title("Pairs of muons; dashed: Becherini et al. 2006")
    axes.legend()


PANELS = (
    multiplicity_against_energy,
    fluctuation,
    empty_events,
    radius_against_energy,
    energy_spectra,
    published_bundles,
)


# Published: Becherini, Margiotta, Sioli, Spurio 2006, Astropart. Phys. 25, 1: rate, multiplicities, radius
# between 1.5 and 5 km of water; the 1.5 km of ice below are 1.36 km of water, a little outside.
INDEX, LOWEST_GEV, HIGHEST_GEV = 1.7, 1e3, 1e8  # energies are drawn flatter than the flux, and weighted


@dataclass(frozen=True)
class Bundles:
    """N simulated events at one depth and angle, and their weights [1/(m2 s sr)]; M muons."""

    multiplicity: NDArray[np.uint32]
    muons: NDArray[np.float32]
    weight: NDArray[np.float64]

    def rate(self, muons: int) -> float:
        """Rate of events with that many muons."""
        return float(self.weight[self.multiplicity == muons].sum())

    def radius(self, muons: int) -> float:
        """Mean distance to the axis in events with that many muons."""
        chosen = np.repeat(self.multiplicity == muons, self.multiplicity)
        each = np.repeat(self.weight, self.multiplicity)[chosen]
        return float(np.average(np.hypot(self.muons[chosen, 1], self.muons[chosen, 2]), weights=each))


def simulate(count: int, zenith_rad: float, depth_m: float) -> Bundles:
    """Draw ``count`` primaries of the H4a flux at one angle, and their muons at one depth."""
    rng = np.random.default_rng(2)
    nucleus = rng.integers(0, len(MASS_NUMBERS), count)
    energy = power_law(rng.random(count), LOWEST_GEV, HIGHEST_GEV, INDEX)
    norm = len(MASS_NUMBERS) * (LOWEST_GEV ** (1 - INDEX) - HIGHEST_GEV ** (1 - INDEX)) / (INDEX - 1)
    weight = norm * flux("gaisser_h4a", energy)[nucleus, np.arange(count)] * energy**INDEX / count
    columns = {
        "energy_gev": energy,
        "zenith_rad": np.full(count, zenith_rad),
        "mass_number": MASS_NUMBERS[nucleus],
        "depth_m": np.full(count, depth_m),
    }
    events = AirShowers(AirShowersOptions()).again(columns, 1)
    return Bundles(events.multiplicity, events.items, weight)


def water_km(depth_m: float) -> float:
    """Convert a depth at the South Pole to kilometres of water."""
    return 0.2 * 0.832 + (depth_m / 1e3 - 0.2) * 0.917


def published_rate(zenith_rad: float, depth_m: float, muons: int) -> float:
    """Rate of bundles of that many muons [1/(m2 s sr)]."""
    h, cosine = water_km(depth_m), np.cos(zenith_rad)
    single = 7.2e-3 * h**-1.927 * cosine * np.exp((-0.581 * h + 0.034) / cosine)
    nu = (0.01041 * h**2 + 0.09912 * h + 2.712) * np.exp(0.01615 * np.exp(0.6010 * h) / cosine)
    return float(single * muons**-nu)


def published_radius(zenith_rad: float, depth_m: float, muons: int) -> float:
    """Mean distance to the axis in bundles of that many muons, at most four [m]."""
    mean = (28.26 - 1.786 * muons) * water_km(depth_m) ** -1.06
    return float(mean / (np.exp((zenith_rad - 1.3) * 10.4) + 1))


def ratios() -> None:
    """Print simulated over published for some depths and angles."""
    for cosine in (1.0, 0.8, 0.6, 0.5):
        for depth in (1500.0, 2000.0, 2500.0):
            zenith = float(np.arccos(cosine))
            found = simulate(400_000, zenith, depth)
            rate = found.rate(1) / published_rate(zenith, depth, 1)
            shares = " ".join(
                f"{found.rate(m) / published_rate(zenith, depth, m) / rate:.2f}" for m in (2, 3, 4)
            )
            radius = found.radius(2) / published_radius(zenith, depth, 2)
            print(
                f"cos {cosine:.1f} depth {depth:.0f} m: single {rate:.2f}  "
                f"2, 3, 4 muons over single {shares}  radius of 2 {radius:.2f}"
            )


def main() -> None:
    """Print the ratios, or plot every panel."""
    if sys.argv[1:] == ["ratios"]:
        ratios()
        return
    with style(), figures_of(FigureContext(formats=(".svg",))):
        figure = new_figure(9.5)
        for panel, axes in zip(PANELS, figure.subplots(3, 2).ravel(), strict=True):
            panel(axes)
        save(figure, Path(sys.argv[1]) if len(sys.argv) > 1 else FILE)


if __name__ == "__main__":
    main()
