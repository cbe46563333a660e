"""Proof that a raw file, a copy or one read in place, is what was staged or listed while it is read."""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

from crpipe.campaign.raw_files import STAGED, Entry, RawFile
from crpipe.core import checksums
from crpipe.core.causes import MachineWatch, is_there, retry_io
from crpipe.core.errors import FormatError, SourceError
from crpipe.core.files import drop_page_cache
from crpipe.events.file_formats import MAGIC, hold

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

Answer = TypeVar("Answer")
_TIME = "%Y-%m-%d %H:%M:%S.%f"
_TICK_S = 0.02  # two changes within one tick of the kernel's clock have one time
_FIRST_S, _LAST_S = -62_135_596_800, 253_402_300_799  # those of datetime
_HELD = 1 << 27  # bytes of a file that are held in memory while it is decoded


def difference(file: Entry | RawFile, status: os.stat_result) -> str:
    """Describe in which way a file is not the one that was listed; empty where it is."""
    if status.st_size != file.size:
        return f"has {status.st_size} bytes, {file.size} when it was listed: it changed"
    if file.mtime is not None and written(status) != file.mtime:
        now, then = f"{written(status):{_TIME}}", f"{file.mtime:{_TIME}}"
        return f"last written {now}, {then} when it was listed: it changed"
    return ""


def written(status: os.stat_result) -> datetime:
    """Return when a file was last written, as a manifest has it."""
    return _moment(status.st_mtime)


def changed(status: os.stat_result) -> datetime:
    """Return when a file, its names or its mode were last changed, as a manifest has it."""
    return _moment(status.st_ctime)


def _moment(seconds: float) -> datetime:
    """Return a time that has a date; a file system may hold others, after the year 9999 or before 1."""
    return datetime.fromtimestamp(min(max(seconds, _FIRST_S), _LAST_S), UTC)


def describe_replaced(listed: Iterable[RawFile], read: Iterable[RawFile]) -> str:
    """Name files of the listed size and time that are others, or changed, since then; empty for none."""
    pairs = zip(listed, read, strict=True)
    names = [old.path for old, new in pairs if (old.inode, old.ctime) != (new.inode, new.ctime)]
    if not names:
        return ""
    return (
        f"{len(names)} files are others, or changed, since the listing, with size and time as before "
        f"(copies, mode, links, or bytes); the checksums are those of what was split: {', '.join(names)}"
    )


def identity(status: os.stat_result) -> tuple[int, ...]:
    """Return which file it is, and when it changed: nobody can set st_ctime back, as they can st_mtime."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def settled(descriptor: int) -> os.stat_result:
    """Return the status of an open file; wait a tick after a change, so that another gets another time."""
    status = os.fstat(descriptor)
    if 0 <= time.time() - status.st_ctime < _TICK_S:
        time.sleep(_TICK_S)
        status = os.fstat(descriptor)
    return status


def _status(path: Path) -> os.stat_result:
    with path.open("rb") as file:  # a file server is asked again
        return settled(file.fileno())


def check_present(folder: Path, file: RawFile) -> None:
    """Raise SourceError unless what the reader reads exists, seen late or at once, as staged or listed."""
    path = folder / file.ready.path
    with MachineWatch(path):
        if not is_there(path):
            raise _changed(folder, file, "missing, though it was staged")
        status = retry_io(path.stat)
    if path.is_symlink() and (problem := difference(file, status)):
        raise _changed(folder, file, problem)
    if status.st_size != file.ready.size:
        raise _changed(folder, file, f"{status.st_size} bytes, {file.ready.size} were staged")


def check_unchanged(folder: Path, file: RawFile) -> None:
    """Raise SourceError unless what the reader reads has the checksum that was recorded."""
    if file.ready.checksum:
        path = folder / file.ready.path
        with MachineWatch(path):
            _compare(folder, file, retry_io(lambda: checksums.of_file(path, file.ready.algorithm)))


def _compare(folder: Path, file: RawFile, checksum: str) -> None:
    if file.ready.checksum not in ("", checksum):
        raise _changed(folder, file, f"changed since it was staged ({file.ready.algorithm})")


@contextlib.contextmanager
def proved(folder: Path, file: RawFile) -> Iterator[RawFile]:
    """Hash what the reader reads; give it with its checksum (in place, as it is) to a block that decodes it.

    A small Parquet file stays in memory: what is decoded is what was hashed. Another one is read again, from
    the page cache as a rule. Raise SourceError where it is not what was staged or, in place, what was listed,
    or where it changes before the block ends.
    """
    path = folder / file.ready.path
    check_present(folder, file)
    with MachineWatch(path):
        before = retry_io(lambda: _status(path))
        checksum, data = retry_io(lambda: _hashed(path, file.ready))
    if data is not None and len(data) != file.ready.size:
        raise _changed(folder, file, f"{len(data)} of {file.ready.size} bytes were read")
    _compare(folder, file, checksum)
    if not file.ready.checksum:
        file = replace(file, checksum=checksum)
    if path.is_symlink() and file.ctime:
        file = replace(file, inode=before.st_ino, ctime=changed(before))
    with hold(path, data) if data and data.startswith(MAGIC) else contextlib.nullcontext():
        data = None
        yield file
    check_present(folder, file)
    with MachineWatch(path):
        after = retry_io(lambda: _status(path))
    if identity(after) != identity(before):  # it may have got another name or mode
        check_unchanged(folder, file)
    if not path.is_symlink():
        drop_page_cache(path)  # a copy is not read again


def with_checksum(folder: Path, file: RawFile) -> RawFile:
    """Return a staged file with its checksum, which is not known yet of one that is read in place."""
    if file.state != STAGED or file.checksum:
        return file
    with proved(folder, file) as proof:
        return proof


def _hashed(path: Path, file: RawFile) -> tuple[str, bytes | None]:
    """Return the checksum of a file, and the bytes of a small one."""
    if file.size > _HELD:
        return checksums.of_file(path, file.algorithm), None
    digest, data = checksums.new(file.algorithm), path.read_bytes()
    digest.update(data)
    return digest.hexdigest(), data


def confirmed(folder: Path, file: RawFile, read: Callable[[], Answer]) -> Answer:
    """Read a raw file; raise FormatError only for bytes that have the staged checksum and are refused twice.

    A file server that answers late or in part looks like a file of a wrong form.
    """
    try:
        return read()
    except FormatError:
        check_unchanged(folder, file)
        return read()


def _changed(folder: Path, file: RawFile, how: str) -> SourceError:
    """Make the error about a raw file that is not what was staged, or in place what was listed."""
    path, table = folder / file.ready.path, f"{folder.name}.parquet"
    if file.converted:
        return SourceError(f"{path}: {how}; run `crpipe convert {folder.name}` again")
    if not path.is_symlink():
        return SourceError(f"{path}: {how}; delete {folder.parent / table} and stage the range again")
    stale = shlex.join([str(folder.parents[1] / "manifests" / table), str(folder.parent / table)])
    return SourceError(
        f"{path.readlink()}: {how}; restore it, or list the range again once nothing writes to it: rm {stale}"
        ", and run the same command again (source.copy_local: true, if not all machines see it)"
    )
