"""Checksums of raw files in a list (``source.checksums``): the proof where no server names any.

Read are what sha256sum, md5sum and their like print, rows ``algorithm:HEX  NAME``, and tables (CSV, Parquet,
and JSON as Zenodo answers for a record).
"""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from crpipe.campaign.raw_files import Entry, ListedChecksum
from crpipe.core import checksums
from crpipe.core.causes import OF_FORM, refuse_machine_error
from crpipe.core.errors import ConfigError
from crpipe.source.uris import RANGE, WEB, SourceOptions, host_and_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from crpipe.core.text import Progress

_NAMES = ("uri", "path", "name", "file", "filename", "key")  # columns of a table; the first that it has
_ALIASES = {"ad": "adler32", "md": "md5"}  # Rucio's
_ROW = re.compile(r"(?:(?P<algorithm>[\w-]+):)?(?P<value>[0-9a-fA-F]+)[ \t]+\*?(?P<name>.+)")
_BSD = re.compile(r"(?P<algorithm>[\w-]+) ?\((?P<name>.+)\) ?= ?(?P<value>[0-9a-fA-F]+)")
_SHOWN = 3


def add_listed(
    options: SourceOptions, entries: Sequence[Entry], label: str, progress: Progress, name: str = ""
) -> list[Entry]:
    """Add to each file the checksum that the list ``source.checksums`` has of it.

    name: the range, for one list per range. Raise ConfigError for a list that cannot be read, or has none of
    the files, or not all of them where ``source.require_checksum`` is on.
    """
    if not options.checksums or (RANGE in options.checksums and not name):
        return list(entries)
    path = Path(options.checksums.replace(RANGE, name))
    listed = ChecksumList.read(path)
    known = [replace(entry, listed=listed.of(entry)) for entry in entries]
    missing = [entry.path for entry in known if entry.listed is None]
    if not missing:
        return known
    shown = ", ".join(missing[:_SHOWN]) + (", …" if len(missing) > _SHOWN else "")
    text = f"{label}: {path} lacks {len(missing)} of {len(entries)} files: {shown}"
    if options.require_checksum:
        raise ConfigError(f"{text}; add them, or write source.require_checksum: false")
    if name and len(missing) == len(entries):
        raise ConfigError(
            f"{text}; it begins with {listed.first}: a name in it must be the end of a file's path, or the "
            "path the end of the name"
        )
    progress.message(f"warning: {text}; they are verified as if there were no list")
    return known


class ChecksumList:
    """The checksums of one list: by the last part of a file's path, then by all of its parts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows: dict[str, dict[tuple[str, ...], ListedChecksum]] = {}
        self.first = ""

    @classmethod
    def read(cls, path: Path) -> ChecksumList:
        """Read a list; raise ConfigError naming the first row that is none."""
        listed = cls(path)
        kind = path.suffix.lower()
        try:
            if kind in {".parquet", ".pq"}:
                listed._add_table(_parquet(path), 1)
            elif kind in {".csv", ".tsv"}:
                with path.open(encoding="utf-8-sig", newline="") as file:
                    reader = csv.DictReader(file, delimiter="\t" if kind == ".tsv" else ",")
                    listed._add_table(reader, 2)
            elif kind == ".json":
                listed._add_table(_rows_of(json.loads(path.read_bytes())), 1)
            else:
                listed._add_lines(path.read_text(encoding="utf-8-sig").splitlines())
        except (OSError, ValueError, RecursionError, csv.Error) as error:
            fault = "it is no JSON" if kind == ".json" else "it is not text"
            reason = error.strerror if isinstance(error, OSError) else fault
            raise ConfigError(
                f"source.checksums: {path} cannot be read ({reason}); name an existing list"
            ) from error
        if not listed._rows:
            raise ConfigError(f"source.checksums: {path} holds no checksum; name what sha256sum prints")
        return listed

    def of(self, entry: Entry) -> ListedChecksum | None:
        """Find the row whose name the file's path ends with, or ends the name; the longest; None: no row.

        Raise ConfigError where two names fit equally well, and their checksums differ.

        Example: of /data/0000000-0000999/a.h5 the row 0000000-0000999/a.h5 comes before the row a.h5.
        """
        parts = _parts(host_and_path(entry.uri)[1])
        fitting = [
            (length, listed)
            for row, listed in self._rows.get(parts[-1], {}).items()
            if (length := min(len(row), len(parts))) and row[-length:] == parts[-length:]
        ]
        longest = max((length for length, _ in fitting), default=0)
        best = [listed for length, listed in fitting if length == longest]
        if len({(one.algorithm, one.value) for one in best}) > 1:
            raise ConfigError(
                f"source.checksums: {best[0].where} and {best[1].where} both fit {entry.uri}, with different "
                "checksums; write the names as paths of the source"
            )
        return best[0] if best else None

    def _add_lines(self, lines: Iterable[str]) -> None:
        for number, line in enumerate(lines, 1):
            text = line.strip()
            if not text or text.startswith("#"):
                continue
            row = _BSD.fullmatch(text) or _ROW.fullmatch(text)
            if row is None:
                raise self._error(
                    number, f"{text[:60]!r} is no checksum and name; write HEX  NAME, as sha256sum prints"
                )
            self._add(number, row["name"], row["algorithm"] or "", row["value"])

    def _add_table(self, rows: Iterable[Mapping[str, object]], first: int) -> None:
        """Add the rows of a table, of which the first has the number ``first``."""
        for number, row in enumerate(rows, first):
            cells = {str(column).strip().lower(): str(value or "").strip() for column, value in row.items()}
            name = next((cells[column] for column in _NAMES if column in cells), "")
            named = (each for each in checksums.DIGITS if cells.get(each))
            algorithm = next(named, cells.get("algorithm", ""))
            value = cells.get(algorithm) or cells.get("checksum", "")
            if ":" in value:
                algorithm, _, value = value.partition(":")
            if not (name and value):
                raise self._error(
                    number,
                    f"no name or no checksum; a table needs a column {' or '.join(_NAMES)}, and a column "
                    f"checksum or one of {', '.join(checksums.DIGITS)}",
                )
            self._add(number, name, algorithm, value)

    def _add(self, number: int, name: str, algorithm: str, value: str) -> None:
        value = value.lower()
        algorithm = self._algorithm(number, algorithm, value)
        digits = checksums.DIGITS[algorithm]
        if algorithm in checksums.SHORT:
            value = value.rjust(digits, "0")
        if not re.fullmatch(f"[0-9a-f]{{{digits}}}", value):
            raise self._error(number, f"{value[:20]} is no {algorithm}, which has {digits} digits")
        parts = _parts(name)
        listed = ListedChecksum(algorithm, value, f"{self._path}, line {number} ({name})")
        rows = self._rows.setdefault(parts[-1] if parts else "", {})
        before = rows.setdefault(parts, listed)
        if before.algorithm == algorithm and before.value != value:
            raise self._error(number, f"{name} is there twice, with different checksums; keep one")
        if len(before.value) < len(value):  # of two algorithms the one that fewer files can share
            rows[parts] = listed
        self.first = self.first or name

    def _algorithm(self, number: int, named: str, value: str) -> str:
        """Find the algorithm: named by the row, or by the name of the list, or clear from the length."""
        if named:
            plain = named.lower().replace("-", "")
            plain = _ALIASES.get(plain, plain)
            if plain in checksums.DIGITS:
                return plain
            raise self._error(number, f"{named} is not known; {', '.join(checksums.DIGITS)} are")
        title = self._path.name.lower()
        for algorithm in checksums.DIGITS:
            if algorithm in title:
                return algorithm
        fitting = [one for one, digits in checksums.DIGITS.items() if digits == len(value)]
        if len(fitting) == 1:
            return fitting[0]
        kinds = f"could be {' or '.join(fitting)}" if fitting else "are of no known checksum"
        raise self._error(
            number, f"{len(value)} digits {kinds}; write algorithm:HEX  NAME, for example adler32:…"
        )

    def _error(self, number: int, text: str) -> ConfigError:
        return ConfigError(f"source.checksums: {self._path}, line {number}: {text}")


def _rows_of(tree: object) -> list[Mapping[str, object]]:
    """Return the rows of a JSON table: a list, or the ``files`` of a record (or their ``entries``)."""
    for name in ("files", "entries"):
        tree = tree.get(name, tree) if isinstance(tree, dict) else tree
    rows = list(tree.values()) if isinstance(tree, dict) else tree
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _parquet(path: Path) -> Iterator[Mapping[str, object]]:
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    try:
        yield from pq.read_table(path).to_pylist()
    except pa.ArrowException as error:
        refuse_machine_error(error, path, OF_FORM)
        raise ConfigError(f"source.checksums: {path} is no Parquet file ({error}); name a list") from error


def _parts(name: str) -> tuple[str, ...]:
    """Split a path, or a URI without its host: the same path on two hosts is one file."""
    scheme, separator, rest = name.partition("://")
    if separator:
        path = rest.partition("/")[2]
        name = unquote(path) if scheme in WEB else path
    return tuple(part for part in name.split("/") if part not in {"", "."})
