"""The model card of an exported generator, written for the physicist who is about to use it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from crpipe import __version__
from crpipe.core.paths import OUTLIERS
from crpipe.events.layout import MULTIPLICITY
from crpipe.report.evaluations import FLOOR, METRICS
from crpipe.workloads.muons.layout import PRIMARY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from crpipe.workloads.muons.export.provenance import Limits, Provenance
    from crpipe.workloads.muons.models.sampling import SamplerGraphs

# A primary for the example, moved into the ranges of the training data.
_EXAMPLE = {"energy_gev": 1e6, "zenith_rad": 0.3, "mass_number": 1.0, "depth_m": 1950.0}


def model_card(made: Provenance, sampler: SamplerGraphs, difference: float) -> str:
    """Write the card in Markdown; ``difference`` is what the check of the graphs found."""
    sections = {
        "Use": _use(made),
        "Trained on": _trained_on(made),
        "Valid for": _valid_for(made),
        "How good": _how_good(made),
        "Known deviations": _deviations(made, sampler, difference),
        "Licence, and how to cite": _licence(made),
        "Make it again": _again(made),
    }
    lines = [
        f"# Muon bundles in deep ice, `{made.fingerprint}`",
        "",
        "For a primary (energy, zenith angle, mass number, vertical depth in the ice) this model draws how",
        "many muons arrive at that depth, and of each the energy and the place across the shower axis. It",
        "imitates the simulation that it was trained on.",
        f"Workload `{made.keys['train.workload']}`, crpipe {__version__}.",
    ]
    for title, content in sections.items():
        lines += ["", f"## {title}", "", *content]
    return "\n".join(lines) + "\n"


def example(limits: Limits) -> dict[str, float]:
    """Give a primary that the training data hold."""
    anything = (-math.inf, math.inf)
    return {
        name: min(max(value, limits.get(name, anything)[0]), limits.get(name, anything)[1])
        for name, value in _EXAMPLE.items()
    }


def _use(made: Provenance) -> Iterator[str]:
    yield from ("Needs `pip install numpy onnxruntime`; neither crpipe nor torch.", "", "```python")
    yield from ("import numpy as np", "from sample import Sampler", "")
    values = ", ".join(f"{value:.6g}" for value in example(made.seen.limits).values())
    yield f"primaries = [[{values}]] * 3  # energy_gev, zenith_rad, mass_number, depth_m"
    yield 'multiplicity, muons = Sampler(".").bundles(primaries, np.random.default_rng(1))'
    yield from (
        "print(multiplicity, muons.shape)  # muons: energy_gev, x_m, y_m; event after event",
        "```",
        "",
    )
    yield "Or, for a table: `python sample.py primaries.npy bundles.npz --seed 1`."


def _trained_on(made: Provenance) -> Iterator[str]:
    keys, counters = made.keys, made.counters
    first, last = made.chain[0], made.chain[-1]
    chain = first if first == last else f"{first} … {last}"
    yield from ("| | |", "|---|---|")
    yield f"| source | `{keys['source.uri']}` |"
    yield f"| ranges | {chain} ({len(made.chain)} links of run `{made.run}`) |"
    if made.seen.events:
        yield f"| training data | {made.seen.events:,} events, {made.seen.muons:,} muons |"
    seen = f"{counters['events']:,} events, {counters['muons']:,} muons; once for each pass"
    yield f"| seen in {counters['step']:,} steps | {seen} |"
    yield f"| checkpoint (sha256) | `{made.sha256}` |"
    yield f"| fingerprint | `{made.fingerprint}` |"
    yield from (
        "",
        "All keys that shaped it stand in `config.json`, `keys`, and as a configuration in `campaign.yaml`.",
    )
    if keys["train.init_from"]:
        yield from ("", f"It started from the weights of `{keys['train.init_from']}`, not from fresh ones.")


def _valid_for(made: Provenance) -> Iterator[str]:
    yield f"The training data span these ranges ({made.seen.source})."
    if made.seen.limits:
        yield from ("", "| | unit | from | to |", "|---|---|---|---|")
    units = {field.name: field.unit or "" for field in PRIMARY} | {MULTIPLICITY: ""}
    for name, unit in units.items():
        if name in made.seen.limits:
            low, high = made.seen.limits[name]
            yield f"| {name} | {unit} | {low:.6g} | {high:.6g} |"
    yield from (
        "",
        "Nothing is known outside of them: `bundles` warns, and `Sampler.outside` names the primaries.",
    )
    yield "Ranges are no densities: between the two ends there may be few events."
    limit = f"above {made.seen.threshold:,}" if made.seen.threshold else "above the campaign's quantile"
    trained = "was trained on too, last" if OUTLIERS in made.chain else "was **not** trained on"
    yield f"Multiplicities {limit} are outliers, which this model {trained}."


def _how_good(made: Provenance) -> Iterator[str]:
    rows = [name for name in METRICS if name in made.scores]
    if not rows:
        yield "This checkpoint was not evaluated on enough held-out events: how good it is, is not known."
        return
    yield "On primaries that training never saw. The floor is a second simulation of the same primaries: but"
    yield from (
        "for chance, no model is better. Perfect is 0 for W1, 0.5 for AUC (a classifier cannot tell).",
        "",
    )
    yield from ("| | this model | floor |", "|---|---|---|")
    for name in rows:
        floor = _number(made.scores, FLOOR + name) or "unknown: a real source cannot be simulated again"
        yield f"| {METRICS[name]} | {_number(made.scores, name)} | {floor} |"


def _number(scores: dict[str, float], name: str) -> str:
    if name not in scores:
        return ""
    error = scores.get(f"{name}_error")
    return f"{scores[name]:.3f}" + ("" if error is None else f" ± {error:.3f}")


def _deviations(made: Provenance, sampler: SamplerGraphs, difference: float) -> Iterator[str]:
    if made.synthetic():
        yield "- The training data come from crpipe's own simulator (docs/simulator.md), a parametrisation."
    yield from (f"- {note}" for note in sampler.notes)
    most = made.keys.get("model.max_muons")
    if most:
        yield f"- In training, a random window of at most {most} muons stood for a larger bundle."
    yield (
        f"- With the same noise this export and the checkpoint differ by at most {difference:.0e} of 1 + the "
        "value (GeV, m), checked when it was written."
    )


def _licence(made: Provenance) -> Iterator[str]:
    if made.synthetic():
        yield "`sample.py` and crpipe: MIT. The weights come from crpipe's own simulator alone: nobody else's"
        yield "data restrict their use."
    else:
        yield "`sample.py` and crpipe: MIT. The weights carry no terms of their own; they follow those of the"
        yield f"data in `{made.keys['source.uri']}`: ask its owners before you publish."
    yield from (
        "",
        f"Cite crpipe {__version__} as its CITATION.cff says, with the fingerprint above, and the",
    )
    yield "simulation that made the data."


def _again(made: Provenance) -> Iterator[str]:
    receipt = f"runs/{made.run}/ranges/{made.name}.json"
    yield from ("In a clone of crpipe, with `campaign.yaml` of this directory:", "", "```sh")
    yield f"snakemake --configfile campaign.yaml -- {receipt}"
    yield f"crpipe --config campaign.yaml evaluate {made.name}"
    yield f"crpipe --config campaign.yaml export --checkpoint {receipt} --out export"
    yield from ("```", "")
    yield "On a CPU, the same kind of machine and the same `train.threads` give the same weights, to the bit."
    yield "The fingerprint leaves the threads out; another number of them gives other bits."
