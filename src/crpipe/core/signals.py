"""Signals and deadlines: ask the loop to snapshot and stop, at a step's end."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
_PR_SET_PDEATHSIG = 1


class StopRequest:
    """Remembers the first reason to stop; a second signal of the same kind changes nothing."""

    def __init__(self, max_minutes: float = 0.0) -> None:
        self._deadline = time.monotonic() + 60 * max_minutes if max_minutes else None
        self.signal: str = ""

    def listen(self) -> None:
        """Take SIGTERM, SIGUSR1 and SIGINT from now on."""
        for number in STOP_SIGNALS:
            signal.signal(number, self._on_signal)

    def reason(self) -> str:
        """Return why to stop: a signal's name, the deadline, or nothing."""
        if self.signal:
            return self.signal
        if self._deadline is not None and time.monotonic() >= self._deadline:
            return "its time limit"
        return ""

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        self.signal = self.signal or signal.Signals(number).name


def follow_parent() -> None:
    """Get SIGTERM when the parent process dies, so that no orphan of a killed workflow trains on.

    The kernel offers this on Linux only; elsewhere the lease alone keeps an orphan from doing harm.
    """
    if _ask_for_sigterm() and os.getppid() == 1 and os.getpgid(1) != os.getpgrp():
        # A parent that died before this call left init in its place; in a container the parent itself may be
        # process 1, and then it shares its group with this process.
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
