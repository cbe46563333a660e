"""Steps are counted with one transfer; the skipped ones are named by file, row and key."""

import torch

from crpipe.events.batch import Cursor
from crpipe.train.meter import Clock, UncountedSteps
from crpipe.train.ranks import World
from crpipe.train.state import Counters
from toy import make_events


def test_steps_are_counted_and_skipped_ones_named():
    pending, counters, clock = (
        UncountedSteps(World(0, 1, torch.device("cpu")), ("primary_major_id",)),
        Counters(),
        Clock(),
    )
    first, second = make_events(30, 1), make_events(2, 2)
    pending.add(1, torch.tensor(0.0), [(first, Cursor(0, 1))])
    pending.add(2, torch.tensor(1.0), [(second, Cursor(0, 2))])
    assert len(pending) == 2
    (skipped,) = pending.count(counters, clock)
    names = [int(value) for value in second.columns["primary_major_id"]]
    named = [f"file 2 row {row} (primary_major_id {name})" for row, name in enumerate(names)]
    assert skipped == (2, [[0, 2]], named)
    assert (counters.events, counters.skipped, counters.skipped_in_row) == (32, 1, 1)
    assert counters.items == len(first.items) + len(second.items) == clock.items
    assert pending.count(counters, clock) == []
    assert len(pending) == 0
