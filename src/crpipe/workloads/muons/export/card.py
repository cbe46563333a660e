"""What the model card of an exported muon generator says beyond the engine's part."""

from __future__ import annotations

from typing import TYPE_CHECKING

from crpipe import __version__
from crpipe.inference import card
from crpipe.workloads.muons.export.sampler_files import example, limits_of, simulated

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from crpipe.inference.export import Graphs
    from crpipe.inference.provenance import Provenance

_INTRODUCTION = (
    "A generator of muon bundles in deep ice. For a primary (energy, zenith angle, mass number, vertical",
    "depth in the ice) it draws how many muons arrive at that depth, and of each the energy and the place",
    "across the shower axis. It imitates the simulation that it was trained on.",
)


def sections(made: Provenance, graphs: Graphs) -> Mapping[str, Sequence[str]]:
    """Give the lines of the sections that only this workload can write."""
    return {
        "": _INTRODUCTION,
        card.USE: list(_use(made)),
        card.VALID: list(_valid_for(made)),
        card.DEVIATIONS: list(_deviations(made, graphs)),
        card.LICENCE: list(_licence(made)),
    }


def _use(made: Provenance) -> Iterator[str]:
    yield from ("Needs `pip install numpy onnxruntime`; neither crpipe nor torch.", "", "```python")
    yield from ("import numpy as np", "from sample import Sampler", "")
    values = ", ".join(f"{value:.6g}" for value in example(limits_of(made)).values())
    yield f"primaries = [[{values}]] * 3  # energy_gev, zenith_rad, mass_number, depth_m"
    yield 'multiplicity, muons = Sampler(".").bundles(primaries, np.random.default_rng(1))'
    yield "print(multiplicity, muons.shape)  # muons: energy_gev, x_m, y_m; event after event"
    yield from ("```", "")
    yield "Or, for a table: `python sample.py primaries.npy bundles.npz --seed 1`."


def _valid_for(made: Provenance) -> Iterator[str]:
    limits = limits_of(made)
    if not made.seen.unknown:
        origin = "measured on the training shards"
    elif limits:
        origin = f"as configured for the simulator; not measured: {made.seen.unknown}"
    else:
        origin = f"not known: {made.seen.unknown}"
    yield f"The training data are within these ranges ({origin})."
    if limits:
        yield from ("", *card.limits_table(made, limits))
    yield ""
    yield "Nothing is known outside of them: `bundles` warns, and `Sampler.outside` finds the primaries."
    yield "Between the two ends there may be few events."
    yield from card.outliers_lines(made)


def _deviations(made: Provenance, graphs: Graphs) -> Iterator[str]:
    sampler = graphs.description["sampler"]
    if simulated(made.keys):
        yield "- The training data come from crpipe's own simulator (docs/simulator.md), a parametrisation."
    yield from (f"- {note}" for note in sampler["notes"])
    most = made.keys.get("model.max_muons")
    if most:
        yield f"- In training, a larger bundle was replaced by a random window of at most {most} muons."
    yield (
        f"- With the same noise this export and the checkpoint differ by at most {sampler['difference']:.0e} "
        "of 1 + the value (GeV, m), checked when it was written."
    )


def _licence(made: Provenance) -> Iterator[str]:
    if simulated(made.keys):
        yield "`sample.py` and crpipe: MIT. The weights come from crpipe's own simulator alone: nobody else's"
        yield "data restrict their use."
    else:
        yield "`sample.py` and crpipe: MIT. The weights carry no terms of their own; they follow those of the"
        yield f"data in `{made.keys['source.uri']}`: ask its owners before you publish."
    yield ""
    yield f"Cite crpipe {__version__} as its CITATION.cff says, with the fingerprint above, and the"
    yield "simulation that made the data."
