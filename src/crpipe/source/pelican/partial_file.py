"""A partial copy: what arrives is written, read back from the file, and then added to its checksum."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from crpipe.core import checksums
from crpipe.core.files import open_plain, writing
from crpipe.source.retries import Transient

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Self

PIECE = 1 << 18  # bytes written at once; they are read back while the processor's cache still has them
CHUNKS = 1024  # pieces of memory that a system takes at once
STRIDE = 1 << 23  # bytes after which the system is asked to write to the disk


class Part:
    """The file ``path``, which is to have ``size`` bytes; it keeps what an earlier try wrote.

    Raise DiskError when it cannot be opened or written, Transient when more bytes come than belong there.
    """

    def __init__(self, path: Path, size: int, algorithm: str) -> None:
        self.path = path
        self.size = size
        self.algorithm = algorithm
        self._begin_again()
        with writing(path):
            self._handle = open_plain(path, os.O_RDWR | os.O_CREAT, 0o644)
            self._written = self._begun = os.fstat(self._handle).st_size
        self._drop()
        if self._written > size:
            self.restart()
        self.found = self._written

    def __enter__(self) -> Self:
        """Nothing more to open."""
        return self

    def __exit__(self, *_: object) -> None:
        """Keep all that arrived, for the next try."""
        try:
            self.flush()
        finally:
            os.close(self._handle)

    @property
    def position(self) -> int:
        """Where the next byte belongs."""
        return self._written + self._held

    def restart(self) -> None:
        """Start again from the first byte."""
        with writing(self.path):
            os.ftruncate(self._handle, 0)
        self._begin_again()

    def _begin_again(self) -> None:
        self._written = self._read = self._begun = 0
        self._digest = checksums.new(self.algorithm)
        self._drop()

    def _drop(self) -> None:
        """Drop the bytes that are not in the file yet."""
        self._chunks: list[bytes] = []
        self._held = 0
        self._limit = min(PIECE, self.size - self._written + 1)

    def write(self, data: bytes) -> None:
        """Add the next bytes."""
        self._chunks.append(data)
        self._held += len(data)
        if self._held >= self._limit:
            if self.position > self.size:
                self._drop()
                raise Transient(f"more bytes than the {self.size} of the manifest came")
            self.flush()

    def flush(self) -> None:
        """Write the bytes that were added, and read them back."""
        if not self._held:
            return
        chunks, end = self._chunks, self.position
        self._chunks, self._held = [], 0
        with writing(self.path):
            self._written += os.pwritev(self._handle, chunks[:CHUNKS], self._written)
            # Very small chunks; or a disk that fills up: it accepts a part, then raises.
            while self._written < end:
                rest = b"".join(chunks)[self._written - end :]
                self._written += os.pwrite(self._handle, rest, self._written)
        self._drop()
        self.read_back()
        if self._written - self._begun >= STRIDE:
            # Linux begins to write such pages out, and cannot drop them before: a large file is nearly on the
            # disk when it is flushed.
            os.posix_fadvise(self._handle, self._begun, self._written - self._begun, os.POSIX_FADV_DONTNEED)
            self._begun = self._written

    def read_back(self) -> None:
        """Add the file's content to the checksum; after an earlier try this may take seconds."""
        while self._read < self._written:
            data = os.pread(self._handle, min(checksums.CHUNK, self._written - self._read), self._read)
            if not data:
                raise Transient("the copy shrank while it was made")
            self._digest.update(data)
            self._read += len(data)

    def checksum(self) -> str:
        """The checksum of the file's content, in hexadecimal."""
        self.flush()
        self.read_back()
        return self._digest.hexdigest()
