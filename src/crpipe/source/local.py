"""Raw files, and the copy of a run, in a directory of this machine: a mounted file system or a disk.

A copy of a raw file counts only if its source is the listed file, and was the same from first to last byte.
In place of a copy there may be a link to the file, which the split reads.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import stat
import time
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from crpipe.campaign.raw_files import Entry, Verification
from crpipe.campaign.raw_proofs import changed, difference, identity, settled, written
from crpipe.core import checksums
from crpipe.core.causes import is_plain, is_present, retry_io
from crpipe.core.errors import ChangedError, DiskError, ListingError, TransferError
from crpipe.core.files import atomic_write, disk_errors, drop_page_cache, open_regular_file
from crpipe.core.lease import mount_of
from crpipe.events.file_formats import format_of
from crpipe.source.retries import Failure, TemporaryFailure
from crpipe.source.uris import RangeSource, host_and_path

if TYPE_CHECKING:
    from collections.abc import Callable


# Whether a copy begins and ends as files of its type do: the last guard where a source names no checksum.


EDGE = 64  # bytes that are read at each end
_PARQUET = {b"PAR1", b"PARE"}
_HDF5 = b"\x89HDF\r\n\x1a\n"
_ROOT_BIG = 1_000_000  # versions from here on have 64-bit positions
_PAGE = (b"<!doctype html", b"<html")


def file_type_problem(path: Path, name: str) -> str:
    """Describe what is wrong with the copy ``path`` of the file ``name``; empty when nothing is."""
    with path.open("rb", buffering=0) as handle:
        begin = handle.read(EDGE)
        size = handle.seek(0, os.SEEK_END)
        handle.seek(max(0, size - EDGE))
        end = handle.read(EDGE)
    kind = name.rpartition(".")[2].lower()
    if kind in {"parquet", "pq"} and not (begin[:4] in _PARQUET and end[-4:] in _PARQUET):
        return _is_no("Parquet", "whole Parquet", path)
    if kind in {"h5", "hdf5", "hdf"} and not _is_hdf5(path, begin):
        return _is_no("HDF5", "HDF5", path)
    if kind == "root" and not _is_root(begin, size):
        return _is_no("ROOT", "whole ROOT", path)
    if kind not in {"html", "htm"} and begin.lstrip().lower().startswith(_PAGE):
        return "is a web page"
    return ""


def _is_no(kind: str, words: str, path: Path) -> str:
    """Describe a file that is none of ``kind``, and what to do with it, where its format is known."""
    file_format = format_of(path)
    if file_format.name in ("", kind):
        return f"is no {words} file"
    return ": ".join(filter(None, (f"is no {words} file, but {file_format.words}", file_format.remedy)))


def _is_hdf5(path: Path, begin: bytes) -> bool:
    """Find the signature at byte 0, or after a user block of 512, 1024, 2048, ... bytes."""
    if begin.startswith(_HDF5):
        return True
    size, offset = path.stat().st_size, 512
    with path.open("rb") as handle:
        while offset < size:
            handle.seek(offset)
            if handle.read(len(_HDF5)) == _HDF5:
                return True
            offset *= 2
    return False


def _is_root(begin: bytes, size: int) -> bool:
    """Compare the end that the header names (fEND) with the file's size."""
    version = int.from_bytes(begin[4:8], "big")
    end = int.from_bytes(begin[12:20] if version >= _ROOT_BIG else begin[12:16], "big")
    return begin.startswith(b"root") and 0 < end <= size


_PERMANENT = {errno.ENOENT, errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR, errno.ELOOP}
_TRIES = 3  # copies of a file that changes meanwhile
_NO_INODES = {"vfat", "msdos", "exfat", "cifs", "smb3", "9p"}  # numbers are given anew, or may be
_NO_LINKS = {errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP}  # of a file system without symbolic links


class LocalSource:
    """Lists directories and copies files, comparing each copy with its source; in_place: links to them."""

    def __init__(self, *, in_place: bool = False) -> None:
        self._in_place = in_place

    async def listing(
        self, location: RangeSource, chosen: Callable[[str], bool]
    ) -> tuple[list[Entry], list[str]]:
        """List the chosen files of a directory, and name the directories in it."""
        try:
            with os.scandir(location.folder) as content:
                listed = [(one.name, _is_folder(one)) for one in content]
        except OSError as error:
            raise ListingError(
                f"{location.what}: {location.folder} cannot be listed ({error.strerror}); {location.remedy}"
            ) from error
        names = sorted(name for name, is_folder in listed if not is_folder and chosen(name))
        entries = [_entry(Path(location.folder) / name, name, "the source") for name in names]
        return entries, [name for name, is_folder in listed if is_folder]

    async def look_up(self, uri: str, path: str, key: str) -> Entry:
        """Look up size and time of a file."""
        return _entry(Path(host_and_path(uri, key)[1]), path, key)

    async def checksum(self, uri: str) -> tuple[int, tuple[str, str] | None]:
        """Read a file, and compute what no file system knows."""
        entry = _entry(Path(host_and_path(uri, "URI")[1]), uri, "the address")
        try:
            value = await asyncio.to_thread(checksums.of_file, Path(entry.uri), checksums.OWN)
        except OSError as error:
            raise _failure(entry, error) from error
        return entry.size or 0, (checksums.OWN, value)

    async def fetch(self, entry: Entry, part: Path) -> Verification:
        """Copy one file, or link to it; the checksum of what was read must be that of the copy."""
        return await asyncio.to_thread(_link if self._in_place else _copy, entry, part)


def _is_folder(one: os.DirEntry[str]) -> bool:
    """Return whether a name is a directory, or leads to one; a link to itself does not."""
    try:
        return one.is_dir()
    except OSError as error:
        if error.errno == errno.ELOOP:
            return False
        raise ListingError(
            f"{one.path}: cannot be looked up ({error.strerror}); make it readable, or remove it"
        ) from error


def _entry(file: Path, path: str, key: str) -> Entry:
    try:
        status = file.stat()
    except OSError as error:
        raise ListingError(f"{file}: cannot be looked up ({error.strerror}); correct {key}") from error
    if not stat.S_ISREG(status.st_mode):
        raise ListingError(f"{file}: is a directory or a device, not a file; correct {key}")
    known = (status.st_ino, changed(status)) if _keeps_inodes(file.parent) else (None, None)
    return Entry(path, str(file), status.st_size, written(status), None, *known)


@lru_cache(maxsize=1024)
def _keeps_inodes(folder: Path) -> bool:
    """Return whether files keep their inodes' numbers: those of FUSE change with every mount, or sooner."""
    mount = mount_of(folder)
    return mount is not None and not mount.kind.startswith("fuse") and mount.kind not in _NO_INODES


def _link(entry: Entry, part: Path) -> Verification:
    """Link to a file that is the listed one, so that it is read in place; its checksum is found then."""
    try:
        source = retry_io(lambda: Path(entry.uri).open("rb"))  # noqa: SIM115 - closed below
        with source:
            if change := difference(entry, os.fstat(source.fileno())):
                raise ChangedError(f"{entry.uri}: {change}")
        if problem := retry_io(lambda: file_type_problem(Path(entry.uri), entry.path)):
            raise TransferError(f"{entry.uri}: {problem}")
    except OSError as error:
        raise _failure(entry, error) from error
    with disk_errors(part):
        part.unlink(missing_ok=True)
        try:
            part.symlink_to(entry.uri)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            return _copy(entry, part)
    return Verification(entry.size or 0, "", checksums.OWN, "copy-compare")


def _copy(entry: Entry, part: Path) -> Verification:
    with disk_errors(part):
        # of a killed job that was to have the file read in place
        if part.is_symlink() and part.readlink() == Path(entry.uri):
            part.unlink()
    for tried in range(_TRIES):
        proof = _copy_once(entry, part)
        if proof is not None:
            return proof
        time.sleep(tried / 10)
    raise ChangedError(f"{entry.uri}: changed while it was copied, {_TRIES} times: something writes to it")


def _copy_once(entry: Entry, part: Path) -> Verification | None:
    """Copy a file and verify the copy; None when the source was touched meanwhile, but is the listed file."""
    digest = checksums.new(checksums.OWN)
    size = 0
    try:
        # Only its opening can fail here.
        source = retry_io(lambda: Path(entry.uri).open("rb"))  # noqa: SIM115 - closed below
    except OSError as error:
        raise _failure(entry, error) from error
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    with source, disk_errors(part), open(open_regular_file(part, flags), "wb") as copy:  # noqa: PTH123 - a descriptor
        before = settled(source.fileno())
        _check_listed(entry, before)
        while chunk := _read(source, entry):
            digest.update(chunk)
            size += copy.write(chunk)
        after = os.fstat(source.fileno())
    _check_listed(entry, after)
    if size != after.st_size or not identity(before) == identity(after) == identity(_look(entry)):
        return None
    checksum = checksums.of_file(part, checksums.OWN)
    if checksum != digest.hexdigest():
        raise TemporaryFailure(
            f"the copy differs from its source (crc32c {checksum}, source {digest.hexdigest()})"
        )
    problem = file_type_problem(part, entry.path)
    if problem:
        raise TransferError(f"{entry.uri}: {problem}")
    return Verification(size, checksum, checksums.OWN, "copy-compare")


def _look(entry: Entry) -> os.stat_result:
    """Return the status of what has the file's name now; it may be another file."""
    try:
        return retry_io(Path(entry.uri).stat)
    except OSError as error:
        raise _failure(entry, error) from error


def _check_listed(entry: Entry, status: os.stat_result) -> None:
    """Raise ChangedError unless a file has the size and the time that its listing recorded."""
    if change := difference(entry, status):
        raise ChangedError(f"{entry.uri}: {change}")


def _read(source: BinaryIO, entry: Entry) -> bytes:
    try:
        return source.read(checksums.CHUNK)
    except OSError as error:
        raise _failure(entry, error) from error


def _failure(entry: Entry, error: OSError) -> Exception:
    """Describe what a failed read means: only what is not there counts against the file.

    What may pass soon or later is tried again first, as often as source.attempts says.
    """
    if error.errno in _PERMANENT:
        return TransferError(f"{entry.uri}: cannot be read ({error.strerror})")
    return TemporaryFailure(f"cannot be read ({error.strerror})", Failure.SERVER_BUSY)


class Directory:
    """The second place of a run in a directory of this machine or of a mounted disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def send(self, file: Path, name: str) -> None:
        """Copy a file, and compare what was written."""
        await asyncio.to_thread(self._copy, file, self._folder / name)

    async def size(self, name: str) -> int | None:
        """Return the size in bytes that a file has there; None where it is missing."""
        path = self._folder / name
        try:
            return path.stat().st_size if is_plain(path) else None
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise DiskError(f"{path}: cannot be read ({error.strerror})") from error

    async def read(self, name: str, write: Callable[[bytes], object]) -> bool:
        """Pass a file to ``write`` piece by piece; return False where it is missing or cannot be read."""
        try:
            await asyncio.to_thread(self._read, self._folder / name, write)
        except OSError:
            return False
        return True

    @staticmethod
    def _read(path: Path, write: Callable[[bytes], object]) -> None:
        drop_page_cache(path)
        with path.open("rb") as file:
            while piece := file.read(checksums.CHUNK):
                write(piece)

    @staticmethod
    def _copy(file: Path, target: Path) -> None:
        file.stat()  # a file of ours that is gone is no error of the place
        try:
            with atomic_write(target) as part:
                shutil.copyfile(file, part)
                if checksums.of_file(part, checksums.OWN) != checksums.of_file(file, checksums.OWN):
                    raise TemporaryFailure("it changed while it was copied")
        except OSError as error:
            if not is_present(file):
                raise FileNotFoundError(error.errno, error.strerror, str(file)) from error
            raise DiskError(f"{target}: cannot be written ({error.strerror})") from error
