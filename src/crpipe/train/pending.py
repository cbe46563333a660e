"""Finished steps whose skip flags are still on the device; read together, to wait for it seldom."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from crpipe.events.layout import SOURCE_FILE, SOURCE_ROW

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from crpipe.events.batch import Cursor, Events
    from crpipe.train.ranks import World
    from crpipe.train.records.meter import Clock
    from crpipe.train.state import Counters

NAMED_EVENTS = 20


class SkippedStep(NamedTuple):
    """A step that was skipped; events: (source file, source row) of the first events of its batches."""

    step: int
    batches: list[list[int]]
    events: list[tuple[int, int]]


class _Step(NamedTuple):
    """A step without its batches, which would fill the memory."""

    number: int
    bad: Tensor
    events: int
    items: int
    at: list[Cursor]
    files: list[NDArray[np.integer[Any]]]
    rows: list[NDArray[np.integer[Any]]]

    def named(self) -> list[tuple[int, int]]:
        """Give file and row of the first events of each batch."""
        return [
            pair
            for files, rows in zip(self.files, self.rows, strict=True)
            for pair in zip(files.tolist(), rows.tolist(), strict=True)
        ]


class PendingSteps:
    """Steps since the last reading of their flags."""

    def __init__(self, world: World) -> None:
        self._world = world
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
            [events.columns[SOURCE_FILE][:NAMED_EVENTS].copy() for events, _ in group],
            [events.columns[SOURCE_ROW][:NAMED_EVENTS].copy() for events, _ in group],
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
                named = [pair for part in self._world.gather(step.named()) for pair in part]
                skipped.append(SkippedStep(step.number, [list(at) for at in step.at], named))
        self._steps.clear()
        return skipped
