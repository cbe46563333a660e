"""A few events seen along the axis, real above and generated below."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from crpipe.report import figure_style as style
from crpipe.workloads.muons.scoring.sample import log_energy, radius

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from crpipe.workloads.muons.scoring.sample import Sample

_SHOWN_EVENTS = 4
_SHOWN_MUONS = (10, 150)


def displays(real: Sample, generated: Sample) -> Figure:
    """A few events seen along the axis: the same conditions, real above and generated below."""
    chosen = _shown_events(real, generated)
    figure = style.new_figure(4.4)
    if not len(chosen):
        figure.text(0.5, 0.5, "no event has enough muons on both sides to show", ha="center")
        return figure
    grid = figure.subplots(2, len(chosen), squeeze=False)
    for axes, event in zip(grid.T, chosen, strict=True):
        reach = max(np.quantile(radius(side.of(event)), 0.98) for side in (real, generated))
        for axis, side in zip(axes, (real, generated), strict=True):
            muons = side.of(event)
            logs = log_energy(muons).clip(0.0)
            dots = axis.scatter(
                muons[:, 1], muons[:, 2], c=logs, s=6 + 4 * logs**1.5, vmin=0, vmax=5, alpha=0.8
            )
            place = {"x_m": muons[:, 1], "y_m": muons[:, 2], "energy_gev": muons[:, 0]}
            style.note(figure, f"event {event}", "real" if side is real else "generated", **place)
            axis.set(aspect="equal", xlim=(-reach, reach), ylim=(-reach, reach), title=f"{len(muons)} muons")
        axes[0].set_title(f"{_conditions(real, event)}\n{axes[0].get_title()}")
        axes[1].set_xlabel("x [m]")
    for axis, name in zip(grid[:, 0], ("real", "generated"), strict=True):
        axis.set_ylabel(f"{name}\ny [m]")
    figure.colorbar(dots, ax=grid, label="log10(E / GeV)", shrink=0.8)
    return figure


def _shown_events(real: Sample, generated: Sample) -> NDArray[np.int64]:
    """Choose events that have enough muons on both sides to see a shape, spread over multiplicities."""
    low, high = _SHOWN_MUONS
    counts = np.minimum(real.multiplicity, generated.multiplicity).astype(np.int64)
    able = np.flatnonzero((counts >= low) & (np.maximum(real.multiplicity, generated.multiplicity) <= high))
    able = able[np.argsort(counts[able], kind="stable")]
    return able[np.linspace(0, len(able) - 1, _SHOWN_EVENTS).astype(int)] if len(able) else able


def _conditions(sample: Sample, event: int) -> str:
    energy_gev, zenith, mass, depth = (
        float(sample.columns[name][event]) for name in ("energy_gev", "zenith_rad", "mass_number", "depth_m")
    )
    return f"{energy_text(energy_gev)}, A = {mass:.0f}\n{np.rad2deg(zenith):.0f}°, {depth / 1e3:.2f} km"


def energy_text(energy_gev: float) -> str:
    """Write an energy with two digits in the unit in which it is at least 1: 1.6 EeV, 30 TeV."""
    for unit, size in (("EeV", 1e9), ("PeV", 1e6), ("TeV", 1e3)):
        if energy_gev >= size:
            return f"{float(f'{energy_gev / size:.2g}'):g} {unit}"
    return f"{float(f'{energy_gev:.2g}'):g} GeV"
