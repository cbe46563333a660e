"""Signals and deadlines: what asks a process to stop, and how a child learns that its parent died."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import FrameType

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
# Of a process that starts others: they are asked one by one, also when the terminal is closed.
HEAD_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1


def is_alive(process: int) -> bool:
    """Return whether a process of this number runs on this machine, of any user."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


class StopRequest:
    """Remembers the first reason to stop; later signals change nothing.

    number: the first signal, 0 before it. again: called in the handler of each later one.
    """

    def __init__(self, max_minutes: float = 0.0, *, again: Callable[[], None] | None = None) -> None:
        self._deadline = time.monotonic() + 60 * max_minutes if max_minutes else None
        self._again = again
        self._first: Callable[[], None] | None = None
        self.number = 0

    def listen(
        self, numbers: Iterable[signal.Signals] = STOP_SIGNALS, first: Callable[[], None] | None = None
    ) -> None:
        """Take these signals from now on; ``first`` is called in the handler of the first one.

        `nohup` has SIGHUP ignored, and that stays so.
        """
        self._first = first
        for number in numbers:
            if not (number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN):
                signal.signal(number, self._on_signal)

    @property
    def exit_code(self) -> int:
        """What a shell reports for a program that the signal ended."""
        return 128 + self.number

    def reason(self) -> str:
        """Return why to stop: a signal's name, the deadline, or nothing."""
        if self.number:
            return signal.Signals(self.number).name
        if self._deadline is not None and time.monotonic() >= self._deadline:
            return "its time limit"
        return ""

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        call = self._again if self.number else self._first
        self.number = self.number or number
        if call is not None:
            call()


def follow_parent(head: str = "") -> None:
    """Get SIGTERM when the parent process dies, so that no orphan of a killed workflow trains on.

    The kernel offers this on Linux only; elsewhere the lease alone keeps an orphan from doing harm.
    head: the process that runs the workflow, as CRPIPE_WORKFLOW has it.
    """
    # A parent that died before this call left init in its place. In a container the parent itself may be
    # process 1: then it is the head, or shares its group with this process.
    if _ask_for_sigterm() and os.getppid() == 1 and head != "1" and os.getpgid(1) != os.getpgrp():
        os.kill(os.getpid(), signal.SIGTERM)


def follow(parent: int) -> Callable[[], None]:
    """Return a function that a child of the process ``parent`` calls first: it dies with its parent."""

    def begin() -> None:
        if _ask_for_sigterm() and os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGTERM)

    return begin


def _ask_for_sigterm() -> bool:
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "prctl"):
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        return True
    return False
