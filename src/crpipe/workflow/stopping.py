"""Ctrl-C and SIGTERM of the workflow's process: its local jobs are asked to stop, each once, and it ends."""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import FrameType

_LOOK_S = 0.3
STOPPING = "stopping: jobs on this machine write a snapshot, those of a cluster are cancelled"
_AGAIN = "already stopping; waiting for the jobs to write their snapshots"


class HeadStop:
    """Turns the first SIGINT or SIGTERM into the end of the workflow; later ones change nothing.

    jobs: names the local jobs that run now. terminate: sends SIGTERM to one of them.
    early: called in place of an interruption as long as no job can have been started; then the process ends
    at once: an exception could come in the middle of a library that swallows it, or prints it as a fault.
    """

    def __init__(
        self,
        jobs: Callable[[], Iterable[int]],
        terminate: Callable[[int], None],
        early: Callable[[], None],
    ) -> None:
        self._jobs = jobs
        self._terminate = terminate
        self._early = early
        self._started = False
        self.signal = 0

    @property
    def exit_code(self) -> int:
        """What a shell reports for a program that the signal ended: 130 or 143."""
        return 128 + self.signal

    def listen(self, *, started: bool) -> None:
        """Take both signals from now on; Snakemake's scheduler sets SIGTERM to something else meanwhile."""
        self._started = started
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if self.signal:
            _print(_AGAIN)
            return
        self.signal = number
        if not self._started:
            self._early()
            os._exit(self.exit_code)
        _print(STOPPING)
        # A terminal sends Ctrl-C to its whole foreground group: those jobs have it already.
        known = set(self._jobs()) if number == signal.SIGINT and has_terminal() else set()
        threading.Thread(target=self._stop_jobs, args=(known,), name="stop", daemon=True).start()
        raise KeyboardInterrupt

    def _stop_jobs(self, known: set[int]) -> None:
        """Ask each job once; also those that were about to begin when the signal came."""
        while True:
            for job in set(self._jobs()) - known:
                known.add(job)
                self._terminate(job)
            threading.Event().wait(_LOOK_S)


def end_at_once() -> None:
    """End at SIGINT and SIGTERM without a traceback, until a `HeadStop` listens: nothing has begun."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: os._exit(128 + number))


def has_terminal() -> bool:
    """Return whether this process is in the foreground of a terminal."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def _print(text: str) -> None:
    """Print a line within a handler of signals, where the buffers of Python may be in use."""
    os.write(2, f"\ncrpipe: {text}\n".encode())
