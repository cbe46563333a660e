"""What a check found: each thing that is wrong with what to type, what was not judged, what was counted."""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from crpipe.core.causes import OF_PROGRAMS, is_present, is_seen, machine_error, persist
from crpipe.core.errors import CrpipeError, MachineError
from crpipe.core.files import read_json, sha256

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# What reading a file of any content raises. Here each is a finding: a check never stops at the first one.
MALFORMED = (
    CrpipeError,
    OSError,
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    AttributeError,
    OverflowError,
    MemoryError,
    pa.ArrowException,
)
_LONGEST = 300
AGAIN = "crpipe check"  # once the file can be read: nothing of it was found wrong


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong: the file, what, and the command that repairs it."""

    place: str
    what: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Unjudged:
    """One part that is not judged, and why."""

    name: str
    why: str


@dataclass(slots=True)
class CheckReport:
    """Everything that one part of a check found.

    notes: what was not judged. counts: what was proved: bytes, files, events, ranges, …
    """

    findings: list[Finding] = field(default_factory=list)
    notes: list[Unjudged] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def wrong(self, place: Path, what: str, remedy: str) -> None:
        """Add a finding; what was found before is not said twice."""
        finding = Finding(_printable(str(place)), _printable(what)[:_LONGEST], remedy)
        if finding not in self.findings:
            self.findings.append(finding)

    def note(self, name: str, why: str) -> None:
        """Name a part that is not judged."""
        self.notes.append(Unjudged(name, why))

    def add(self, other: CheckReport) -> None:
        """Take over what another part found."""
        self.findings += other.findings
        self.notes += other.notes
        self.counts += other.counts

    @contextlib.contextmanager
    def reading(self, path: Path, remedy: str) -> Iterator[None]:
        """Turn whatever a missing or malformed file raises inside the block into a finding."""
        try:
            yield
        except FileNotFoundError as error:
            if is_seen(error, path):
                self.wrong(path, "not found at first, then there: it was not read", AGAIN)
                return
            other = error.filename is not None and str(error.filename) != str(path)
            self.wrong(path, f"missing ({error.filename})" if other else "missing", remedy)
        except MALFORMED as error:
            if self._unread(path, error):
                return
            self.wrong(
                path, f"cannot be read: {type(error).__name__}: {' '.join(str(error).split())}", remedy
            )

    def has_bytes(self, path: Path, size: int, expected: str, remedy: str) -> bool:
        """Hash a file; return whether it has the size (bytes) and the sha256 that are recorded."""
        try:
            found = persist(path.stat).st_size
            if found != size:
                self.wrong(path, f"damaged: {found} bytes, {size} are recorded", remedy)
                return False
            actual = sha256(path)
        except FileNotFoundError:
            self.wrong(path, "missing", remedy)
            return False
        except (OSError, MachineError) as error:
            if not self._unread(path, error):
                self.wrong(path, f"cannot be read: {error}", remedy)
            return False
        self.counts.update(files=1, bytes=found)
        if actual != expected:
            self.wrong(path, "damaged: its bytes are not those of the recorded sha256", remedy)
        return actual == expected

    def _unread(self, path: Path, error: BaseException) -> bool:
        """Add a finding, without a remedy that deletes, where the machine failed; else return False."""
        found = machine_error(error, path, OF_PROGRAMS)
        if found is None:
            return False
        self.wrong(path, f"could not be read, so nothing says that it is wrong: {found}", AGAIN)
        return True

    def read_object(self, path: Path, remedy: str) -> dict[str, Any] | None:
        """Read a JSON object; a finding and None where there is none."""
        with self.reading(path, remedy):
            if not is_present(path):
                self.wrong(path, "missing", remedy)
                return None
            found = read_json(path)
            if isinstance(found, dict):
                return found
            self.wrong(path, f"damaged: holds {type(found).__name__}, not an object", remedy)
        return None


def _printable(text: str) -> str:
    """Replace what a damaged file could do to a terminal."""
    return "".join(each if each.isprintable() else "?" for each in text)


def differing(found: dict[str, Any], expected: dict[str, Any]) -> str:
    """Name the keys of ``found`` that are not as expected, with both values; empty when all are."""
    lines = [
        f"{name} is {_short(found, name)}, should be {_short(expected, name)}"
        for name in sorted({*found, *expected})
        if name not in found or name not in expected or not same(found[name], expected[name])
    ]
    return "; ".join(lines)


def same(one: Any, other: Any) -> bool:
    """Return whether two JSON values are the same; not a number is the same as itself."""
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (one != one and other != other)  # noqa: PLR0124 - not a number
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and bool(one == other)


def _short(values: dict[str, Any], name: str) -> str:
    text = repr(values[name]) if name in values else "missing"
    return text if len(text) <= 80 else f"{text[:77]}..."  # noqa: PLR2004 - a line
