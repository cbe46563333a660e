"""Finished steps whose skip flags are still on the device; read together, to wait for it seldom."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from crpipe.events.layout import SOURCE_FILE, SOURCE_ROW

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from crpipe.events.batch import Cursor, Events
    from crpipe.train.ranks import World
    from crpipe.train.records.meter import Clock
    from crpipe.train.state import Counters

NAMED_EVENTS = 20


class SkippedStep(NamedTuple):
    """A step that was skipped; events: names of the first events of its batches."""

    step: int
    batches: list[list[int]]
    events: list[str]


class _Step(NamedTuple):
    """A step without its batches, which would fill the memory."""

    number: int
    bad: Tensor
    events: int
    items: int
    at: list[Cursor]
    columns: list[dict[str, NDArray[Any]]]

    def named(self) -> list[str]:
        """Name the first events of each batch by file, row and key: ``file 0 row 18 (run 3, event 7)``."""
        return [
            _name(dict(zip(columns, values, strict=True)))
            for columns in self.columns
            for values in zip(*(column.tolist() for column in columns.values()), strict=True)
        ]


def _name(event: dict[str, Any]) -> str:
    place = f"file {event.pop(SOURCE_FILE)} row {event.pop(SOURCE_ROW)}"
    key = ", ".join(f"{name} {value}" for name, value in event.items())
    return f"{place} ({key})" if key else place


class PendingSteps:
    """Steps since the last reading of their flags; key: columns by which people know an event."""

    def __init__(self, world: World, key: tuple[str, ...]) -> None:
        self._world = world
        self._named = (SOURCE_FILE, SOURCE_ROW, *key)
        self._steps: list[_Step] = []

    def __len__(self) -> int:
        """Count the steps."""
        return len(self._steps)

    def add(self, number: int, bad: Tensor, group: Sequence[tuple[Events, Cursor]]) -> None:
        """Add a step; bad: scalar on the device, 1 when it was skipped."""
        step = _Step(
            number,
            bad,
            sum(len(events) for events, _ in group),
            sum(len(events.items) for events, _ in group),
            [cursor for _, cursor in group],
            [
                {name: events.columns[name][:NAMED_EVENTS].copy() for name in self._named}
                for events, _ in group
            ],
        )
        self._steps.append(step)

    def count(self, counters: Counters, clock: Clock) -> list[SkippedStep]:
        """Count the steps over all ranks with one transfer from the device; give the skipped ones."""
        if not self._steps:
            return []
        flags = torch.stack([step.bad for step in self._steps]).cpu().tolist()
        sizes = torch.tensor([(step.events, step.items) for step in self._steps], device=self._world.device)
        events, items = self._world.sum(sizes.sum(0)).tolist()
        counters.events += events
        counters.items += items
        clock.count(events, items, len(self._steps))
        skipped = []
        for step, flag in zip(self._steps, flags, strict=True):
            counters.skipped += int(flag)
            counters.skipped_in_row = counters.skipped_in_row + 1 if flag else 0
            if flag:
                named = [name for part in self._world.gather(step.named()) for name in part]
                skipped.append(SkippedStep(step.number, [list(at) for at in step.at], named))
        self._steps.clear()
        return skipped
