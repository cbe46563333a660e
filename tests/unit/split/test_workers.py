"""Workers."""

import os

import pytest

from crpipe.core.errors import CrpipeError
from crpipe.split.workers import in_order


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
    with pytest.raises(CrpipeError, match=r"killed, most likely for lack of memory.*split\.workers lower"):
        list(in_order(die, [1, 1], 2))
