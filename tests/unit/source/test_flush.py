import asyncio
import threading

import pytest

from crpipe.core.errors import DiskError
from crpipe.source import retries as disk
from crpipe.source.retries import AdaptiveDiskCalls, Flush


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
