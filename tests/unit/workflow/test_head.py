"""The one workflow process of a directory."""

import pytest

from crpipe.core.errors import LeaseError
from crpipe.workflow import head
from crpipe.workflow.head import remove_locks, take_lease


def test_a_second_head_is_refused_and_a_look_is_allowed(tmp_path, monkeypatch):
    monkeypatch.setattr(head, "WAIT_S", 0.0)
    said = []
    with take_lease(tmp_path, executes=True, say=said.append):
        assert take_lease(tmp_path, executes=False, say=said.append) is None
        with pytest.raises(LeaseError, match="already being worked on by process"):
            take_lease(tmp_path, executes=True, say=said.append)
    with take_lease(tmp_path, executes=True, say=said.append) as claim:
        assert claim is not None


def test_locks_are_removed_and_counted(tmp_path):
    locks = tmp_path / "locks"
    assert remove_locks(locks) == 0
    locks.mkdir()
    for name in ("0.input.lock", "0.output.lock"):
        (locks / name).touch()
    assert remove_locks(locks) == 2
    assert list(locks.iterdir()) == []
