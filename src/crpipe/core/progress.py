"""How long work reports what it does; the command line decides how that looks."""

from __future__ import annotations

from typing import Protocol


def printable(text: str, keep: str = "\n\t") -> str:
    """Write control characters as escapes: the name of a file must not steer a terminal.

    keep: control characters that stay.
    """
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each in keep else each.encode("unicode_escape").decode()
        for each in text
    )


def counted(count: int, noun: str) -> str:
    """Write a count with its noun in the right number."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


class Progress(Protocol):
    """Where messages and progress of a job go."""

    def say(self, text: str) -> None:
        """Report one thing that happened, in one line."""

    def advance(self, label: str, done: float, total: float, note: str = "") -> None:
        """Report that ``done`` of ``total`` (bytes, files, steps) are finished; call it at any rate."""


class Silent:
    """Swallow everything: for tests and for callers who look at the files instead."""

    def say(self, text: str) -> None:
        """Do nothing."""

    def advance(self, label: str, done: float, total: float, note: str = "") -> None:
        """Do nothing."""
