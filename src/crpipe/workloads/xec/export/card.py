"""The part of a model card that tells how to use the graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from crpipe.inference import card
from crpipe.workloads.xec.export.files import INPAINTER, REGRESSOR, threshold_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from crpipe.inference.export import Graphs
    from crpipe.inference.provenance import Provenance


def regressor_sections(made: Provenance, graphs: Graphs) -> Mapping[str, Sequence[str]]:
    """Give the lines of the card that only a regressor can write."""
    introduction = "Reconstructs gammas from the 4,760 photosensors of the liquid xenon detector of MEG II."
    return _sections(introduction, list(_use_regressor(graphs)), made, graphs)


def inpainter_sections(made: Provenance, graphs: Graphs) -> Mapping[str, Sequence[str]]:
    """Give the lines of the card that only an inpainter can write."""
    introduction = "Finds what dead photosensors of the liquid xenon detector of MEG II would have seen."
    return _sections(introduction, list(_use_inpainter()), made, graphs)


def _sections(
    introduction: str, use: list[str], made: Provenance, graphs: Graphs
) -> Mapping[str, Sequence[str]]:
    difference = graphs.description["graph"]["difference"]
    deviations = [
        f"- Graph and checkpoint differ by at most {difference:.0e} of 1 + the value, in units of training.",
        f"- Sensors of fewer than {threshold_of(made):g} photons have no time, as in training.",
    ]
    if made.keys.get("reader.dead"):
        deviations.append("- The graph does not know the list of dead sensors: give NaN as their photons.")
    return {
        "": (introduction, "Validity, encoding, geometry and all scaling are inside the graph."),
        card.USE: use,
        card.DEVIATIONS: deviations,
    }


def _use_regressor(graphs: Graphs) -> Iterator[str]:
    names = list(graphs.description["graph"]["outputs"])
    yield from _opening(REGRESSOR)
    yield f"{', '.join(names)}{',' if len(names) == 1 else ''} = session.run(None, inputs)"
    first = names[0]
    yield f"for run, event, value in zip(events['run'], events['event'], {first}):"
    yield f'    print(run, event, value, "{graphs.description["graph"]["outputs"][first]}")'
    yield from ("```", "")


def _use_inpainter() -> Iterator[str]:
    yield from _opening(INPAINTER)
    yield "photons, time = session.run(None, inputs)"
    yield "dead = ~(abs(events['npho']) <= 9e9)"
    yield "events['npho'][dead] = photons[dead]"
    yield from ("```", "")


def _opening(name: str) -> Iterator[str]:
    yield from ("Needs `pip install onnxruntime uproot`; neither crpipe nor torch.", "", "```python")
    yield from ("import onnxruntime", "import uproot", "")
    yield f'session = onnxruntime.InferenceSession("{name}", providers=["CPUExecutionProvider"])'
    yield 'branches = ["run", "event", "npho", "relative_time"]'
    yield 'events = uproot.open("gammas.root")["tree"].arrays(branches, entry_stop=100, library="np")'
    yield 'inputs = {name: events[name].astype("float32") for name in branches[2:]}'
