import os
import signal
import threading
import time

import pytest

from crpipe.config.loading import validate
from crpipe.config.sections import SyncSection
from crpipe.core.errors import ConfigError
from crpipe.source.sync import repeat
from crpipe.source.sync.repeat import sync_every
from crpipe.source.sync.send import SyncRules
from opened import opened
from told import Told


@pytest.fixture
def campaign(tmp_path):
    places = {"runs": str(tmp_path / "runs"), "results": str(tmp_path / "results")}
    config = validate(
        {"run": "deep", **places, "sync": {"to": str(tmp_path / "second")}, "source": {"attempts": 1}}
    )
    config.paths().run_dir().mkdir(parents=True)
    config.paths().train_journal().write_text("begun\n")
    return opened(config)


def test_it_goes_on_until_the_finished_run_is_sent(campaign, tmp_path):
    told, rounds = Told(), iter([False, False, True])

    def finished():
        with (campaign.paths.train_journal()).open("a") as journal:
            journal.write("more\n")
        return next(rounds)

    assert sync_every(campaign, 0.001, finished, told, SyncRules())
    assert (tmp_path / "second" / "deep" / "journal.jsonl").read_text() == "begun\n" + 3 * "more\n"
    assert told.lines[-1] == "deep: finished, and sent"


def test_what_fails_is_reported_and_sent_later(campaign, tmp_path):
    second, told, calls = tmp_path / "second", Told(), []
    second.write_text("a file where a directory is needed")

    def finished():
        calls.append(1)
        if len(calls) == 3:
            second.unlink()
        return True

    assert sync_every(campaign, 0.001, finished, told, SyncRules())
    assert len(calls) == 3
    assert any(
        "a file is where a directory is needed" in line and "tried again in" in line for line in told.lines
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_quietly(campaign, number):
    told, before = Told(), [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)]
    timer = threading.Timer(0.5, os.kill, (os.getpid(), number))
    timer.start()
    begun = time.monotonic()
    assert not sync_every(campaign, 10.0, lambda: False, told, SyncRules())
    assert time.monotonic() - begun < 5
    assert told.lines[-1] == "stopped as asked; the same command goes on"
    assert [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)] == before


def test_a_signal_that_comes_during_a_sync_ends_it_too(campaign, monkeypatch):
    monkeypatch.setattr(repeat, "send_changed", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    assert not sync_every(campaign, 10.0, lambda: False, Told(), SyncRules())


def test_an_empty_place_is_an_error_at_once(campaign):
    nowhere = campaign.config.model_copy(update={"sync": SyncSection()})
    with pytest.raises(ConfigError, match=r"sync\.to: empty"):
        sync_every(opened(nowhere), 1.0, bool, Told(), SyncRules())
