"""The file of a ledger: its sums come first, so that nobody reads the rows of 20,000 files for them.

Its last line, ``contents``, has a key of each file's content: 8 bytes for each row of ``files``, in base64.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Self

from crpipe.campaign.raw_files import STAGED
from crpipe.core.causes import is_present, retry_io
from crpipe.core.errors import DataError
from crpipe.core.files import OutdatedFormError, read_parsed, write_text
from crpipe.core.paths import DESTINATIONS, LARGE_ROLES, OUTLIERS
from crpipe.core.records import Record

if TYPE_CHECKING:
    from pathlib import Path

_FILES = b' "files": [\n'  # a line of the top level: no text in JSON holds a line's end
_END = b"\n}\n"
_CONTENTS = re.compile(rb'\n \],\n "contents": "([A-Za-z0-9+/=]*)"\n}\n\Z')
_BLOCK = 1 << 18
_OUTDATED = (
    "made by an earlier crpipe, which trained on large held-out events, too: finish the campaign with "
    "that version, or set `results` and `run` to new names"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerFile(Record):
    """One raw file: its state, why it was set aside, how it was verified, and what was read from it."""

    path: str
    size: int | None
    state: str
    reason: str
    events: int
    items: int
    checksum: str
    algorithm: str
    verified: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedEvent(Record):
    """An event that was left out: its file, its row there, why, and how many items it had."""

    file: str
    row: int
    reason: str
    items: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts(Record):
    """Events, or items, by where they went, and how many were listed."""

    train: int
    validation: int
    test: int
    outliers: int
    validation_outliers: int
    test_outliers: int
    rejected: int
    listed: int

    def of(self, destination: str) -> int:
        """Return how many went to one destination."""
        return int(getattr(self, destination))

    def is_balanced(self) -> bool:
        """Return whether what was listed is the sum over all destinations."""
        return self.listed == sum(map(self.of, DESTINATIONS))


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedSums(Record):
    """The files that were read, their bytes, and how many are verified by less than the source's word.

    size_only: by their size. server_only, where there are such files: by the server that sent them.
    """

    files: int
    bytes: int
    size_only: int
    server_only: Any = None


@dataclass(frozen=True, kw_only=True)
class LedgerSums(Record):
    """A ledger without its files: where all events and items of a range went.

    rejected: the first of them. weights: sums as those of ``events``, where events have a weight. repeated:
    events that occur twice. notes: what was seen in the files. doubtful_groups: a warning. code: of a
    reader whose change a person accepted.
    """

    data: str
    threshold: int
    events: Counts
    items: Counts
    rejected: tuple[RejectedEvent, ...]
    quarantined: int
    balanced: bool
    empty: int
    staged: StagedSums
    range: str | None = None
    weights: Mapping[str, Any] | None = None
    source_files: Any = None
    notes: Any = None
    repeated: Any = None
    doubtful_groups: Any = None
    code: Any = None

    @classmethod
    def from_json(cls, value: Any, where: str = "it") -> Self:
        """Make a ledger of a JSON value; raise ValueError naming the first field that is missing or wrong."""
        events = value.get("events") if isinstance(value, dict) else None
        if isinstance(events, dict) and {*DESTINATIONS} - {*events} == {*LARGE_ROLES} - {OUTLIERS}:
            raise OutdatedFormError(_OUTDATED)
        return super().from_json(value, where)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a ledger without its files; raise DataError when it is missing or damaged."""
        text = retry_io(lambda: _sums(path)) if is_present(path) else None
        try:
            return cls.from_json(json.loads(text or b""))
        except ValueError:
            return cls.from_json(Ledger.read(path).sums())  # it names what is wrong, and what to type

    def sums(self) -> dict[str, Any]:
        """Return all but the files as JSON has it."""
        return {name: value for name, value in self.as_json().items() if name not in {"files", "contents"}}

    def is_balanced(self) -> bool:
        """Return whether what was listed is the sum over all destinations, weights but for rounding."""
        weights = self.weights or {"listed": 0.0, **dict.fromkeys(DESTINATIONS, 0.0)}
        summed = math.fsum(weights[name] for name in DESTINATIONS)
        counted = self.events.is_balanced() and self.items.is_balanced()
        return counted and math.isclose(weights["listed"], summed, rel_tol=1e-9)


@dataclass(frozen=True, kw_only=True)
class Ledger(LedgerSums, files="ledgers/*"):
    """The ledger of a range; ``contents`` follows from the files and is made when it is written."""

    files: tuple[LedgerFile, ...]
    contents: Any = None

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the whole file; raise DataError when it is missing or damaged."""
        return read_parsed(path, cls.from_json)

    def write(self, path: Path) -> None:
        """Write the file atomically: sums, sorted and indented, a line for each raw file, contents."""
        head = json.dumps(self.sums(), indent=1, sort_keys=True).removesuffix("\n}")
        rows = ",\n".join(f"  {json.dumps(row.as_json(), sort_keys=True)}" for row in self.files)
        end = f'\n ],\n "contents": "{contents_of(self.files)}"\n}}\n'
        write_text(path, f"{head},\n{_FILES.decode()}{rows}{end}")


@dataclass(frozen=True, kw_only=True)
class LedgerFiles(Record):
    """The files of a ledger alone, whatever its sums are."""

    files: tuple[LedgerFile, ...]


def contents_of(files: Iterable[LedgerFile]) -> str:
    """Return the value of ``contents`` for some files."""
    return base64.b64encode(content_keys(files)).decode()


def content_keys(files: Iterable[LedgerFile]) -> bytes:
    """Return 8 bytes for each file of a ledger: equal for equal content, 0 where nothing can double.

    Example: a file that was set aside, or that holds no events, has 0.
    """
    return b"".join(
        blake2b(
            f"{row.size} {row.algorithm} {row.checksum} {row.events} {row.items}".encode(), digest_size=8
        ).digest()
        if row.state == STAGED and row.events and row.checksum
        else bytes(8)
        for row in files
    )


def read_contents(path: Path) -> bytes:
    """Read the keys of the contents of a range's files; raise DataError for a damaged ledger.

    Only the end of the file is read, but in a ledger of an earlier version. Empty where there is no ledger.
    """
    try:
        text = retry_io(lambda: _contents(path))
        if text is None:
            return content_keys(Ledger.read(path).files)
        return _keys_of(text)
    except FileNotFoundError:
        return b""
    except binascii.Error as error:
        raise DataError(f"{path}: damaged ({error}); `crpipe check` says how to repair it") from error


def _keys_of(text: bytes) -> bytes:
    keys = base64.b64decode(text, validate=True)
    if len(keys) % 8:
        raise binascii.Error("cut in a key")
    return keys


def _sums(path: Path) -> bytes | None:
    """Return the text of the sums; None where the file does not end as ``Ledger.write`` ends it."""
    if _contents(path) is None:
        return None
    with path.open("rb") as file:
        head = b"".join(takewhile(_FILES.__ne__, file))
    return head.rstrip().removesuffix(b",") + b"}"


def _contents(path: Path) -> bytes | None:
    """Return the text of the contents at the end of a ledger, None where it has none."""
    with path.open("rb") as file:
        size, end = file.seek(0, 2), b""
        # Block by block from the end, until the line before that of the contents is there.
        while len(end) < size and end.count(b"\n", 0, -len(_END)) < 2:  # noqa: PLR2004 - both its ends
            file.seek(max(0, size - len(end) - _BLOCK))
            end = file.read(min(_BLOCK, size - len(end))) + end
        match = _CONTENTS.search(end)
    return match[1] if match else None
