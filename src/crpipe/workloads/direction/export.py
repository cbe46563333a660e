"""What an export of a trained model adds: one ONNX graph from raw pulses to directions, and its card."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from crpipe.events.batch import Events
from crpipe.inference import card
from crpipe.inference.export import Graphs
from crpipe.inference.onnx_graph import Graph
from crpipe.workloads.direction.layout import TRUTH
from crpipe.workloads.direction.models import model as losses
from crpipe.workloads.direction.models.grouping import (
    AUXILIARY,
    PULSES_AT_ONCE,
    SENSOR,
    SENSOR_IDS,
    TIME,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from crpipe.events.layout import Layout

    Predict = Callable[[Events], NDArray[np.float64]]
    from crpipe.workloads.direction.models.model import DirectionModel

GRAPH = "direction.onnx"
OUTPUTS = ("direction", "length")
TOLERANCE = 1e-5  # of 1 + the value
_CHECKED_EVENTS = (1, 3, 8)
_INTRODUCTION = (
    "Reconstructs where a neutrino came from, from the pulses of one trigger of IceCube. Grouping by sensor,",
    "the cut to the first sensors and pulses, the geometry and all scaling are inside the graph.",
)


def write(graph: PulseGraph, predict: Predict, layout: Layout, folder: Path) -> Graphs:
    """Write the graph; raise CheckpointError where it gives other vectors [B, 3] than ``predict``."""
    sensors = len(graph.model.features.places)
    difference = Graph(
        graph,
        {"pulses": "pulses", "multiplicity": "events"},
        OUTPUTS,
        example(3, 0, sensors),
        TOLERANCE,
        checks=[example(events, events, sensors) for events in _CHECKED_EVENTS],
        compared=lambda outputs: [outputs[0] * outputs[1][:, None]],
        expected=lambda inputs: [torch.from_numpy(predict(_events(inputs)))],
    ).export(folder / GRAPH)
    described: dict[str, Any] = {
        "inputs": {
            "pulses": [
                f"{field.name} ({field.unit})" if field.unit else field.name for field in layout.items
            ],
            "multiplicity": "pulses of each event, at least one",
        },
        "outputs": {
            "direction": "unit vector to where the neutrino came from",
            "length": "kappa, or nothing",
        },
        "difference": difference,
    }
    return Graphs((GRAPH,), {"graph": described})


def example(events: int, seed: int, sensors: int) -> dict[str, Tensor]:
    """Generate inputs: events of 1 to 1,000 pulses, in the order of time, to check a graph with.

    A few of the sensors have many pulses, so that both cuts are made.
    """
    rng = np.random.default_rng(seed)
    multiplicity = rng.integers(1, 1001, events)
    total = int(multiplicity.sum())
    sensor = np.floor(sensors * rng.random(total) ** 3)
    time = 1e4 + np.cumsum(rng.random(total)) * 50
    columns = [sensor, time, rng.exponential(1.0, total), rng.integers(0, 2, total)]
    pulses = np.stack(columns, axis=1).astype(np.float32)
    return {"pulses": torch.from_numpy(pulses), "multiplicity": torch.from_numpy(multiplicity)}


def _events(inputs: Mapping[str, Tensor]) -> Events:
    multiplicity = inputs["multiplicity"].numpy().astype(np.uint32)
    unknown = {field.name: np.full(len(multiplicity), np.nan) for field in TRUTH}
    return Events(unknown, multiplicity, inputs["pulses"].numpy())


def sections(graphs: Graphs, *, kappa: bool) -> Mapping[str, Sequence[str]]:
    """Return the lines of the card that only this workload can write; kappa: whether the length is one."""
    difference = graphs.description["graph"]["difference"]
    return {
        "": _INTRODUCTION,
        card.USE: list(_use(kappa=kappa)),
        card.DEVIATIONS: [
            f"- Graph and checkpoint differ by at most {difference:.0e} of 1 + the value, as checked.",
            "- The graph predicts once, without the mean over turns of `model.rotations`.",
            "- The pulses of an event have to be in the order of time, as they are in the files.",
        ],
    }


def _use(*, kappa: bool) -> Iterator[str]:
    yield from ("Needs `pip install numpy onnxruntime`; neither crpipe nor torch.", "", "```python")
    yield from ("import numpy as np", "import onnxruntime", "")
    yield f'session = onnxruntime.InferenceSession("{GRAPH}", providers=["CPUExecutionProvider"])'
    yield "pulses = np.array(  # sensor_id, time_ns, charge_pe, auxiliary; event after event"
    yield "    [[2, 6170, 1.3, 1], [1, 9774, 1.5, 0], [1, 9822, 0.2, 0], [0, 9000, 0.9, 1]],"
    yield "    np.float32,"
    yield ")"
    yield "multiplicity = np.array([3, 1])  # pulses of each event"
    inputs = '{"pulses": pulses, "multiplicity": multiplicity}'
    yield f"direction, length = session.run(None, {inputs})"
    yield "azimuth = np.arctan2(direction[:, 1], direction[:, 0]) % (2 * np.pi)"
    yield "zenith = np.arccos(np.clip(direction[:, 2], -1, 1))"
    yield "print(azimuth, zenith, length)"
    yield from ("```", "")
    if kappa:
        yield "`length` is the concentration kappa of a von Mises-Fisher distribution: the larger, the surer;"
        yield "about 68 % of its directions are within 1.5 / sqrt(kappa) rad where kappa is large."
    else:
        yield "`length` means nothing: this model was trained without an uncertainty."


# The trained model as one function of raw pulses: grouping and scaling are inside, for an export.


class PulseGraph(nn.Module):
    """Directions of events from their pulses, in tensor operations alone.

    The same as ``collate`` and DirectionModel, but that all events are padded to the largest. most_pulses,
    most_doms: what the model sees of a sensor and of an event.
    """

    def __init__(self, model: DirectionModel, most_pulses: int, most_doms: int) -> None:
        super().__init__()
        self.model = model
        self.most_pulses = most_pulses
        self.most_doms = most_doms

    def forward(self, pulses: Tensor, multiplicity: Tensor) -> tuple[Tensor, Tensor]:
        """Return unit vectors [B, 3] to where the neutrinos came from, and the lengths before: [B].

        pulses: [P, 4] float32 (sensor_id, time_ns, charge_pe, auxiliary), event after event, in the order of
        time. multiplicity: [B] int64 pulses of each event, at least one.
        """
        total = pulses.shape[0]
        number = torch.arange(total, device=pulses.device)
        ends = multiplicity.cumsum(0)
        marks = multiplicity.new_zeros(total + 1).scatter_add(0, ends, torch.ones_like(ends))
        owner = marks.cumsum(0)[:-1]
        # Sorted numbers of cell and pulse, as in group_by_sensor.
        packed, _ = ((owner * SENSOR_IDS + pulses[:, SENSOR].long()) * PULSES_AT_ONCE + number).sort()
        pulse, cell = packed % PULSES_AT_ONCE, packed // PULSES_AT_ONCE
        event = owner[pulse]
        new = torch.cat([cell.new_ones(1).bool(), cell[1:] != cell[:-1]])
        dom = new.cumsum(0) - 1
        aside = torch.where(new, dom, total)  # the first pulse of each sensor; the others go to the end
        # The rank of a sensor among those of its event, in the order in which they are hit.
        is_first = torch.zeros_like(number).scatter(0, pulse, new.long())
        before = torch.cat([is_first.new_zeros(1), is_first.cumsum(0)])
        ordered = before[1:] - before[ends - multiplicity][owner] - 1
        rank = _spread(aside, ordered[pulse])[dom]
        nth = number - _spread(aside, number)[dom]
        many = torch.zeros_like(number).scatter_add(0, dom, torch.ones_like(number))[dom]
        hit = (before[ends] - before[ends - multiplicity]).clamp_max(self.most_doms)
        vectors = self._vectors(pulses, pulse, event, rank, nth, many, hit)
        size = losses.length(vectors)
        return vectors / size, self.model.kappa(size[:, 0])

    def _vectors(
        self,
        pulses: Tensor,
        pulse: Tensor,
        event: Tensor,
        rank: Tensor,
        nth: Tensor,
        many: Tensor,
        hit: Tensor,
    ) -> Tensor:
        """Run the model on all events, padded: [B, 3].

        Of each pulse, [P]: its number, event, the rank of its sensor, its own place there, and how many
        pulses that sensor has. hit: [B] sensors that the model sees.
        """
        most: Any = hit.amax(0).item()  # int() of it would make it a constant of the graph
        torch._check(most >= 1)  # type: ignore[no-untyped-call]  # noqa: SLF001 - for torch.export
        row = event * most + rank
        rows = hit.shape[0] * most  # and one more, for all that is cut
        shown = rank < self.most_doms
        first = torch.where(shown & (nth == 0), row, rows)
        slot = torch.where(
            shown & (nth < self.most_pulses), row * self.most_pulses + nth, rows * self.most_pulses
        )
        empty = pulses.new_zeros(rows + 1)
        counts = empty.scatter(0, first, many.float())
        doms = {
            "sensor": empty.long().scatter(0, first, pulses[pulse, SENSOR].long()),
            "many": torch.cat([counts[:-1], empty[:1]]),
            "pulse": pulses[pulse],
            "slot": slot,
        }
        number = torch.arange(hit.shape[0], device=hit.device)
        event_of = torch.cat([(number[:, None] + number.new_zeros(most)).flatten(), number[:1]])
        start = _start(pulses, hit, event, pulse)
        x = self.model.features(doms, event_of, start, torch.zeros_like(start))
        if self.model.encoder is not None:
            scaled, kept = self.model.features.pulses(doms, event_of, start), shown & (nth < self.most_pulses)
            x = torch.cat([x, self._encoded(scaled, doms["many"], row, nth, kept)], dim=1)
        x = x[:-1].view(hit.shape[0], most, -1)
        there = torch.arange(most, device=x.device) < hit[:, None]
        return self.model.corrected(x, there)

    def _encoded(self, scaled: Tensor, many: Tensor, row: Tensor, nth: Tensor, kept: Tensor) -> Tensor:
        """Run the encoder on all sensors, padded to the one with most pulses: [D, width]."""
        assert self.model.encoder is not None
        most: Any = torch.where(kept, nth, 0).amax(0).item()
        torch._check(most >= 0)  # type: ignore[no-untyped-call]  # noqa: SLF001 - for torch.export
        longest = most + 2  # one more, because a length of 1 would be another graph
        sensors = many.shape[0]
        places = torch.where(kept, row * longest + nth, sensors * longest)
        pulses = row.new_zeros(sensors * longest + 1).scatter(0, places, torch.arange(row.shape[0]))
        there = torch.arange(longest) < many.clamp(1, self.most_pulses)[:, None]
        groups = [(pulses[:-1].view(sensors, longest), there)]
        return self.model.encoder(scaled, many, groups, torch.arange(sensors))


def _start(pulses: Tensor, hit: Tensor, event: Tensor, pulse: Tensor) -> Tensor:
    """Return the time of the first pulse in local coincidence, else of the first pulse: [B]."""
    time = pulses[pulse, TIME]
    late = torch.where(pulses[pulse, AUXILIARY] == 0, time, torch.inf)
    never = torch.full_like(hit, torch.inf, dtype=time.dtype)
    coincident = never.scatter_reduce(0, event, late, "amin")
    return torch.where(coincident.isfinite(), coincident, never.scatter_reduce(0, event, time, "amin"))


def _spread(target: Tensor, values: Tensor) -> Tensor:
    """Write values [P] to their targets in 0..P: [P + 1]."""
    return values.new_zeros(values.shape[0] + 1).scatter(0, target, values)
