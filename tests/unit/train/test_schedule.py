"""The learning rate depends on where training stands, and on nothing else."""

import pytest

from crpipe.train.schedule import Schedule

SCHEDULE = Schedule(warmup_steps=10, decay_from=0.6, decay_to=0.05)


def test_rises_linearly_over_the_first_steps():
    assert [SCHEDULE.factor(step, 0.0) for step in (0, 4, 9, 50)] == pytest.approx([0.1, 0.5, 1.0, 1.0])


def test_falls_linearly_to_its_end_and_stays_there():
    assert SCHEDULE.factor(100, 0.6) == 1.0
    assert SCHEDULE.factor(100, 0.8) == pytest.approx(0.525)
    assert SCHEDULE.factor(100, 1.0) == pytest.approx(0.05)
    assert SCHEDULE.factor(100, 1.7) == pytest.approx(0.05)


def test_decay_from_one_never_falls():
    assert Schedule(0, 1.0, 0.05).factor(0, 1.0) == 1.0
