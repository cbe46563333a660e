"""Tails of append-only JSON-lines files, and what the journals tell about each range."""

from __future__ import annotations

import contextlib
import json
import os
import platform
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

Row = dict[str, Any]

# A journal of weeks is read from its end only: 1 MiB holds some 4,000 attempts and costs about 25 ms.
JOURNAL_BYTES = 1 << 20
METRICS_BYTES = 64 << 10


def tail(path: Path, limit: int, only: bytes = b"") -> list[Row]:
    """Read the whole rows among the last ``limit`` bytes that hold ``only``; nothing when there is no file.

    A line cut by the limit or by a crash is left out.
    """
    try:
        with path.open("rb") as handle:
            start = max(0, os.fstat(handle.fileno()).st_size - limit)
            # One byte earlier: if it ends a line, the line after it is whole.
            handle.seek(max(0, start - 1))
            lines = handle.read().split(b"\n")
    except FileNotFoundError:
        return []
    rows = []
    for line in lines[1:] if start else lines:
        if only in line:
            with contextlib.suppress(ValueError):
                rows.append(json.loads(line))
    return rows


def attempts(path: Path) -> list[Row]:
    """Read the newest rows of a journal that begin or end an attempt: those with a verb."""
    return tail(path, JOURNAL_BYTES, b'"verb"')


@dataclass(slots=True)
class History:
    """What the journals say of one range, verb by verb: attempts, one that is open, one that failed last."""

    attempts: dict[str, int] = field(default_factory=dict)
    open: dict[str, Row] = field(default_factory=dict)
    failed: dict[str, Row] = field(default_factory=dict)

    def add(self, row: Row) -> None:
        """Take in the next row."""
        verb = row.get("verb", "")
        if row["what"] == "start":
            self.attempts[verb] = self.attempts.get(verb, 0) + 1
            self.open[verb] = row
        elif row["what"] in ("finished", "failed"):
            self.open.pop(verb, None)
            self.failed.pop(verb, None)
            if row["what"] == "failed":
                self.failed[verb] = row

    def running(self, verb: str) -> bool:
        """Tell whether an attempt has begun that nothing has ended yet and whose process may still live."""
        return verb in self.open and may_live(self.open[verb])


def histories(rows: Iterable[Row]) -> dict[str, History]:
    """Sort journal rows by range."""
    found: dict[str, History] = {}
    for row in rows:
        if "verb" in row:
            found.setdefault(row.get("range", ""), History()).add(row)
    return found


def may_live(row: Row) -> bool:
    """Tell whether the process of a journal row lives; one on another host is believed to."""
    if row["host"] != platform.node():
        return True
    try:
        os.kill(row["pid"], 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
