"""Journal of verified copies, one line per file beside them: a killed job loses only unfinished copies."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from crpipe.core import checksums
from crpipe.core.causes import is_plain, is_present
from crpipe.core.files import digest, open_plain, write_text, writing
from crpipe.core.raw_files import Entry, Proof

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path
    from typing import Self

PART = ".part"
_JOURNAL, _LISTING = ".proofs.jsonl", ".listing"
_RESERVED = frozenset({_JOURNAL, _LISTING, "lease"})
_THREADS = 4
_TEXTS = ("checksum", "algorithm", "verified")


def is_reserved(path: str) -> bool:
    """Return whether a copy of this name would take the place of one of crpipe's own files."""
    parts = path.split("/")
    return parts[0] in _RESERVED or any(part.endswith(PART) for part in parts)


class Proofs:
    """Proofs of the copies in one range's directory; in a ``with`` block they are appended to."""

    def __init__(self, folder: Path, *, require_checksum: bool) -> None:
        self._folder = folder
        self._path = folder / _JOURNAL
        self._listing = folder / _LISTING
        self._require_checksum = require_checksum

    def __enter__(self) -> Self:
        """Open the journal, for all threads that will add to it; raise DiskError."""
        with writing(self._path):
            self._log = open_plain(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        os.close(self._log)

    def begin(self, entries: Iterable[Entry]) -> None:
        """Remove unfinished copies that were begun under another listing.

        A file that was written again may have its old size: the copy would have the old beginning and the
        new end.
        """
        listing = digest([[entry.path, entry.size, *_listed(entry)] for entry in entries])
        if is_present(self._listing) and self._listing.read_bytes() == listing.encode():
            return
        for part in self._folder.rglob(f"*{PART}"):
            part.unlink()
        write_text(self._listing, listing)

    def file(self, path: str) -> Path:
        """Where the copy of a listed file is."""
        return self._folder / path

    def folders(self, entries: Iterable[Entry]) -> list[Path]:
        """Where the copies are: one directory, unless some files are in directories below it."""
        return [self._folder / name for name in {entry.path.rpartition("/")[0] for entry in entries}]

    def add(self, entry: Entry, proof: Proof) -> None:
        """Record one verified copy; one write, so that rows of many threads never mix."""
        row = json.dumps({"path": entry.path, "listed": _listed(entry), **proof.row()}) + "\n"
        with writing(self._path):
            os.write(self._log, row.encode())

    def keep(self, entries: Iterable[Entry]) -> dict[str, Proof]:
        """Find the copies that are still what was verified, by reading each again; the others are not kept.

        Reading again costs a fraction of copying again, and also finds what a power failure damaged.
        """
        rows = self._rows()
        known = [entry for entry in entries if entry.path in rows and rows[entry.path][0] == _listed(entry)]
        with ThreadPoolExecutor(_THREADS) as pool:
            sound = list(pool.map(lambda entry: self._is_sound(entry, rows[entry.path][1]), known))
        return {entry.path: rows[entry.path][1] for entry, good in zip(known, sound, strict=True) if good}

    def _is_sound(self, entry: Entry, proof: Proof) -> bool:
        file = self.file(entry.path)
        if entry.size not in {None, proof.size} or (self._require_checksum and not proof.is_checked()):
            return False
        try:
            return file.stat().st_size == proof.size and (
                checksums.of_file(file, proof.algorithm) == proof.checksum
            )
        except OSError:
            return False

    def _rows(self) -> dict[str, tuple[list[str], Proof]]:
        if not is_plain(self._path):
            return {}
        rows = {}
        for line in self._path.read_text(errors="replace").splitlines():
            found = _read_row(line)
            if found is not None:
                rows[found[0]] = (found[1], found[2])
        return rows


def _read_row(line: str) -> tuple[str, list[str], Proof] | None:
    """Read a line: path, which file was listed, proof.

    None for a line cut by a crash, damaged, or of another version: its copy is made again.
    """
    try:
        row = json.loads(line)
        texts = [row["path"], *row["listed"], *(row[name] for name in _TEXTS)]
    except (ValueError, KeyError, TypeError):
        return None
    if not all(isinstance(text, str) for text in texts) or type(row["size"]) is not int:
        return None
    return row["path"], list(row["listed"]), Proof(row["size"], *(row[name] for name in _TEXTS))


def _listed(entry: Entry) -> list[str]:
    """Which file was copied: one that was written again may have the old one's name and size."""
    return [entry.uri, entry.mtime.isoformat() if entry.mtime else ""]
