import asyncio
import threading

import pytest

from crpipe.core.errors import DiskError, SourceError, TransferError
from crpipe.source import retries as disk
from crpipe.source.retries import (
    AdaptiveDiskCalls,
    Deadline,
    Failure,
    Flush,
    TemporaryFailure,
    retry,
    run_concurrently,
)


def persisted(outcomes, attempts=3, deadline_s=10.0):
    """Run an attempt whose outcomes are given: an exception to raise, or a result; count the calls."""
    calls = []

    async def attempt():
        calls.append(1)
        outcome = outcomes[len(calls) - 1]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    work = retry(attempt, attempts=attempts, deadline=Deadline(deadline_s, "job"), pause_s=0.001)
    try:
        return asyncio.run(work), len(calls)
    except (TemporaryFailure, SourceError) as error:
        return error, len(calls)


def test_what_passes_is_tried_again():
    assert persisted([TemporaryFailure("busy"), TemporaryFailure("busy"), "done"]) == ("done", 3)


def test_the_last_reason_and_the_number_of_attempts_are_told():
    error, calls = persisted([TemporaryFailure("busy"), TemporaryFailure("gone")], attempts=2)
    assert isinstance(error, TemporaryFailure)
    assert str(error) == "gone (2 attempts)"
    assert calls == 2


def test_a_try_that_made_progress_does_not_count():
    cut = TemporaryFailure("cut", Failure.PROGRESS_MADE)
    assert persisted([cut, cut, cut, TemporaryFailure("busy"), "done"], attempts=2) == ("done", 5)


def test_an_outage_stays_one():
    error, _ = persisted([TemporaryFailure("gone", Failure.SERVER_BUSY)], attempts=1)
    assert error.is_outage


def test_a_permanent_error_is_not_tried_again():
    error, calls = persisted([TransferError("404"), "never"])
    assert str(error) == "404"
    assert calls == 1


def test_nothing_is_tried_after_the_deadline():
    error, calls = persisted([TemporaryFailure("busy"), "never"], deadline_s=0.0)
    assert "deadline_minutes" in str(error)
    assert calls == 1


def test_each_does_every_item_within_its_width():
    busy, most, done = [0], [0], []

    async def work(item):
        busy[0] += 1
        most[0] = max(most[0], busy[0])
        await asyncio.sleep(0)
        busy[0] -= 1
        done.append(item)

    asyncio.run(run_concurrently(range(50), work, 4))
    assert sorted(done) == list(range(50))
    assert most[0] == 4


def test_the_first_error_of_each_stops_the_rest():
    done = []

    async def work(item):
        await asyncio.sleep(0)
        if item == 5:
            raise TransferError("five")
        done.append(item)

    with pytest.raises(TransferError, match="five"):
        asyncio.run(run_concurrently(range(1000), work, 4))
    assert len(done) < 20


def test_a_try_that_still_runs_ends_with_the_deadline():
    said = []
    deadline = Deadline(0.05, "job", said.append)

    async def attempt():
        await asyncio.sleep(60)

    with pytest.raises(
        SourceError, match=r"job: not finished within source.deadline_minutes \(the first try"
    ):
        asyncio.run(retry(attempt, attempts=3, deadline=deadline))


def test_a_federation_out_of_reach_is_waited_for_however_often_and_said_once():
    said, left = [], [TemporaryFailure("director gone", Failure.FEDERATION_AWAY)] * 7

    async def attempt():
        if left:
            raise left.pop()
        return "done"

    deadline = Deadline(60.0, "job", said.append)
    assert asyncio.run(retry(attempt, attempts=2, deadline=deadline, pause_s=1e-6)) == "done"
    assert said == ["job: director gone; waiting for it until the deadline"]


def test_what_does_not_wait_counts_a_federation_out_of_reach_like_all_else():
    async def attempt():
        raise TemporaryFailure("director gone", Failure.FEDERATION_AWAY)

    with pytest.raises(TemporaryFailure, match=r"director gone \(2 attempts\)") as caught:
        asyncio.run(retry(attempt, attempts=2, deadline=Deadline(60.0, "job"), pause_s=1e-6, patient=False))
    assert caught.value.is_outage


@pytest.mark.parametrize(("asked_s", "made_s"), [(7.0, 7.0), (1e6, 300.0)])
def test_the_pause_that_a_server_asks_for_is_made(monkeypatch, asked_s, made_s):
    left, pauses = [TemporaryFailure("busy", pause_s=asked_s)], []

    async def attempt():
        if left:
            raise left.pop()

    async def sleep(seconds):
        pauses.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    asyncio.run(retry(attempt, attempts=2, deadline=Deadline(1e4, "job"), pause_s=1e-6))
    assert pauses == [made_s]


def test_the_deadline_names_the_last_failure_of_any_try():
    deadline = Deadline(0.0, "job")
    deadline.note(TemporaryFailure("cut"))
    assert "(cut)" in str(deadline.expired_error(""))


def test_steps_stay_here_while_they_are_quick_and_go_to_threads_while_they_are_not(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(disk.time, "perf_counter", lambda: clock[0])

    async def places(pause_s):
        steps = AdaptiveDiskCalls()
        found = []

        def step():
            clock[0] += pause_s
            found.append(threading.current_thread())

        for _ in range(3):
            await steps.do(step)
        return [place is threading.main_thread() for place in found]

    assert asyncio.run(places(0)) == [True, True, True]
    assert asyncio.run(places(disk.QUICK_S * 2 * disk.MEMORY)) == [True, False, False]


def test_every_file_is_flushed_before_the_names(tmp_path, monkeypatch):
    flushed = []
    monkeypatch.setattr(disk, "sync", flushed.append)
    files = [tmp_path / f"{index}" for index in range(100)]

    async def run():
        flush = Flush()
        for file in files:
            await flush.add(file, disk.BATCH // 7)
        await flush.finish([tmp_path])

    asyncio.run(run())
    assert sorted(flushed[:-1]) == sorted(files)
    assert flushed[-1] == tmp_path


def test_a_flush_that_fails_is_told(tmp_path, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(disk, "sync", full)

    async def run():
        flush = Flush()
        await flush.add(tmp_path / "file", 1)
        await flush.finish([])

    with pytest.raises(DiskError, match="the disk is full"):
        asyncio.run(run())
