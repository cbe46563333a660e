import inspect

import pytest

from crpipe.core import errors

RAISED = [kind for _, kind in inspect.getmembers(errors, inspect.isclass)]


@pytest.mark.parametrize("kind", RAISED)
def test_the_drawing_shows_every_error_with_its_exit_code(kind):
    line = next(line for line in errors.__doc__.splitlines() if kind.__name__ in line.split())
    drawn = line.partition("exit ")[2].split()
    assert issubclass(kind, errors.CrpipeError)
    if drawn:
        assert int(drawn[0]) == kind.exit_code
    else:
        assert kind.exit_code == kind.__base__.exit_code


def test_exit_codes_do_not_collide_with_those_of_shells_and_signals():
    assert all(0 < kind.exit_code < 126 for kind in RAISED)


@pytest.mark.parametrize("kind", RAISED)
def test_waiting_repairs_outages_and_what_needs_a_person_it_does_not(kind):
    passing = {"ListingError", "TransferError", "LeaseError", "QueueError", "Interrupted", "SliceOver"}
    passing |= {"OutageError", "MachineError", "HostMemoryError", "DiskError", "UnseenError"}
    assert errors.is_retryable(kind.__name__) == (kind.__name__ in passing)
    if kind.__name__ in passing:
        assert errors.exit_code_is_retryable(kind.exit_code)


def test_an_error_of_the_system_may_pass_and_one_of_the_program_does_not():
    assert errors.is_retryable("OSError")
    assert errors.is_retryable("TimeoutError")
    assert errors.is_retryable("")
    assert not errors.is_retryable("KeyError")
    assert not errors.exit_code_is_retryable(2)


def test_journals_of_earlier_versions_keep_their_meaning():
    assert errors.code_of("ForeignError") == 70
    assert not errors.is_retryable("ForeignError")
