"""Workers."""

import os
import signal

import pytest

from crpipe.campaign.split_record import left_notes
from crpipe.core.errors import CrpipeError, DiskError, HostMemoryError, PluginError
from crpipe.split.workers import in_order, working_on


def square(number):
    return number * number


def fail(number):
    if number == 3:
        raise CrpipeError("three")
    return number


def die(number):
    os._exit(number)


@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_in_the_order_of_the_tasks(workers):
    assert list(in_order(square, range(20), workers)) == [square(number) for number in range(20)]
    assert list(in_order(square, [], workers)) == []


@pytest.mark.parametrize("workers", [1, 2])
def test_the_first_error_ends_the_work(workers):
    results = in_order(fail, range(6), workers)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(CrpipeError, match="three"):
        next(results)


def test_a_worker_that_is_killed_is_an_error_with_advice():
    with pytest.raises(CrpipeError, match=r"killed, most likely for lack of memory.*split\.cpus lower"):
        list(in_order(die, [1, 1], 2))


def die_by(number):
    working_on(f"/data/{number}.parquet")
    if number:
        os.kill(os.getpid(), number)
    return number


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (signal.SIGABRT, PluginError),
        (signal.SIGSEGV, PluginError),
        (signal.SIGBUS, DiskError),
        (signal.SIGKILL, HostMemoryError),
    ],
)
def test_a_worker_that_a_signal_ends_is_named_with_its_file(tmp_path, number, kind):
    results = in_order(die_by, [0, int(number), 0], 2, notes=tmp_path / "notes")
    with pytest.raises(kind, match=rf"/data/{int(number)}\.parquet"):
        list(results)


def test_one_worker_of_its_own_process_too(tmp_path):
    with pytest.raises(PluginError, match=r"/data/6\.parquet: .*SIGABRT"):
        list(in_order(die_by, [int(signal.SIGABRT)], 1, notes=tmp_path / "notes", spawn=True))


@pytest.mark.parametrize("workers", [1, 2])
def test_notes_are_gone_when_the_work_ended(tmp_path, workers):
    notes = tmp_path / "notes"
    assert list(in_order(die_by, [0, 0], workers, notes=notes)) == [0, 0]
    assert left_notes(notes) == {}
    with pytest.raises(TypeError):
        list(in_order(die_by, [0, "x"], workers, notes=notes))
    assert left_notes(notes) == {}
