"""Atomic writes, hashes, JSON, disk space: what every step needs from the file system."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import platform
import secrets
import shlex
import shutil
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from crpipe.core.causes import MEANINGS, MachineWatch, is_present, is_there, meaning_of, retry_io
from crpipe.core.errors import DataError, DiskError, PlaceError
from crpipe.core.paths import HASHES, command_for
from crpipe.core.signals import is_alive

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

T = TypeVar("T")
GIB = 1 << 30
_KIBI = 1024
_HOST = platform.node()
_OLD_S = 86_400.0
_NO_FSYNC = frozenset((errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF))
_MISSING = frozenset((errno.ENOENT,))
_HELD_OPEN = (".nfs", ".fuse_hidden")  # the names that NFS and FUSE give
_HELD_OPEN_S, _HELD_OPEN_PAUSE_S = 10.0, 0.1
_NOT_EMPTY = frozenset((errno.ENOTEMPTY, errno.EEXIST))


def disk_errors(path: Path) -> MachineWatch:
    """Turn an error of the machine inside the block into a MachineError that names ``path``.

    What is missing is left to the caller.
    """
    return MachineWatch(path, _MISSING)


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary sibling of ``path``; when the block ends well, fsync it and rename it to ``path``.

    A reader sees the old file or the whole new one. Each writer has a temporary file of its own. Nothing is
    left behind when the block raises; a SIGKILL leaves one ``.part`` file, which a later call for the same
    path removes. Nobody can guess its name, so nobody can have put a link there.
    """
    part = path.with_name(f".{path.name}.{_HOST}.{os.getpid()}.{secrets.token_hex(4)}.part")
    with disk_errors(path):
        make_folder(path.parent)
        _drop_leftovers(path)
        try:
            yield part
            publish(part, path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise


def copy_file(source: Path, target: Path) -> None:
    """Copy a file, whole or not at all, also to another disk."""
    with atomic_write(target) as part:
        shutil.copyfile(source, part)


def open_regular_file(path: Path, flags: int, mode: int = 0o666) -> int:
    """Open a regular file, never through a link, and no pipe or device, which would wait or go elsewhere.

    In a directory that others may write to, they could have put one in the place of a file with a known name.
    Raise PlaceError then.
    """
    try:
        handle = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO):
            raise
        raise _planted(path) from error
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise _planted(path)
    return handle


def refuse_links(top: Path, folder: Path) -> None:
    """Raise PlaceError when ``top``, or a directory from there down to ``folder``, is a link.

    Whoever may write there could lead crpipe to other directories of its user, to write and delete there.
    """
    below = folder.relative_to(top.parent)
    for each in reversed([below, *below.parents][:-1]):
        if (top.parent / each).is_symlink():
            raise _planted(top.parent / each)


def _planted(path: Path) -> PlaceError:
    name = shlex.quote(str(path))
    return PlaceError(
        f"{path}: a link, a pipe or a device, where crpipe has a file of its own; nothing is written through "
        f"it. See who put it there (ls -l {name}), remove it (rm {name}), and run the same command again"
    )


def size(count: float) -> str:
    """Write a number of bytes in binary units, with three digits or all before the point."""
    unit = "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if abs(count) < _KIBI:
            break
        count, unit = count / _KIBI, larger
    digits = 0 if unit == "B" else max(0, 2 - len(f"{abs(count):.0f}") + 1)
    return f"{count:,.{digits}f} {unit}"


def write_secret(path: Path, content: bytes) -> None:
    """Write a file, atomically, that only this user can read, from its first byte on."""
    part = path.with_name(f".{path.name}.part")
    with disk_errors(path):
        make_folder(path.parent, 0o700)
        part.unlink(missing_ok=True)
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(handle, "wb") as file:  # noqa: PTH123 - a descriptor, not a path
            file.write(content)
        publish(part, path)


def make_folder(folder: Path, mode: int = 0o777) -> None:
    """Make a directory and those above it, each of them on the disk as an entry of its parent."""
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for each in reversed(missing):
        try:
            each.mkdir(mode)
        except FileExistsError:
            pass
        except OSError as error:
            if error.errno in MEANINGS and error.errno != errno.ENOENT:
                raise
            raise PlaceError(
                f"{missing[0]}: cannot be made ({each}: {error.strerror}); choose a directory that can"
            ) from error
        if not each.is_dir() and not (is_there(each) and each.is_dir()):  # some servers show it late
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(each))
        sync(each.parent)


def _drop_leftovers(path: Path) -> None:
    """Remove the temporary files of ``path`` that killed writers left.

    Whether a writer on another host lives is not known: its file has to be a day old.
    """
    start = f".{path.name}."
    for part in path.parent.iterdir():
        if part.name.startswith(start) and is_left_over(part):
            with contextlib.suppress(OSError):
                part.unlink()


def is_left_over(part: Path) -> bool:
    """Return whether a file is the temporary one of a writer that was killed; see ``_drop_leftovers``."""
    if not (part.name.startswith(".") and part.suffix == ".part"):
        return False
    writer, _, process = part.stem.rpartition(".")[0].rpartition(".")
    if writer.endswith(f".{_HOST}") and process.isdigit():
        return not is_alive(int(process))
    with contextlib.suppress(OSError):
        return time.time() - part.stat().st_mtime > _OLD_S
    return False


def publish(part: Path, path: Path) -> None:
    """Make a finished temporary file visible as ``path``, on the disk before its name is."""
    sync(part)
    rename(part, path)
    sync(path.parent)


def rename(part: Path, path: Path) -> None:
    """Rename a file or directory.

    A file server may do it, lose its answer, and be asked again: then ``part`` is not there any more, and
    ``path`` is what it was.
    """
    status = retry_io(part.stat)
    try:
        retry_io(lambda: part.replace(path))
    except FileNotFoundError:
        with contextlib.suppress(OSError):
            if not part.exists() and os.path.samestat(status, path.stat()):
                return
        raise


def sync(path: Path) -> None:
    """Flush a file or a directory to the disk; some file systems (FUSE, SMB) cannot flush a directory."""
    handle = retry_io(lambda: os.open(path, os.O_RDONLY))
    try:
        os.fsync(handle)
    except OSError as error:
        if not (error.errno in _NO_FSYNC and stat.S_ISDIR(os.fstat(handle).st_mode)):
            raise
    finally:
        os.close(handle)


def write_text(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` atomically."""
    with atomic_write(path) as part:
        retry_io(lambda: part.write_text(text))


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as sorted, indented JSON, atomically; equal values give equal bytes."""
    write_text(path, json.dumps(value, indent=1, sort_keys=True) + "\n")


class OutdatedFormError(ValueError):
    """A file that an earlier crpipe wrote, and that nothing needs to make again as long as that is used."""


# What makes a value of the JSON in a file, or raises ValueError, by a pattern of the file's last names; the
# classes of `core/records.py` add themselves.
FORMS: dict[str, Callable[[Any], object]] = {}


def read_json(path: Path) -> Any:
    """Read a JSON file that crpipe wrote; raise DataError when it is missing or damaged."""
    return read_parsed(path, lambda value: _checked(path, value))


def _checked(path: Path, value: Any) -> Any:
    patterns = [pattern for pattern in FORMS if path.match(pattern)]
    if patterns:
        FORMS[max(patterns, key=len)](value)
    return value


def read_parsed(path: Path, parse: Callable[[Any], T]) -> T:
    """Read a JSON file and return what ``parse`` makes of it; a ValueError of ``parse`` is damage.

    Raise DataError when the file is missing or damaged.
    """
    command = command_for(path)
    try:
        with disk_errors(path):
            return _parsed_twice(path, parse)
    except FileNotFoundError as error:
        step = f"`{command}` first" if command else "the step that makes it"
        raise DataError(f"{path}: missing; run {step}") from error
    except OutdatedFormError as error:
        raise DataError(f"{path}: {error}") from error
    except (ValueError, RecursionError) as error:
        again = f"`{command}`" if command else "the same command"
        raise DataError(
            f"{path}: damaged ({error}); delete it (rm {shlex.quote(str(path))}) and run {again} again"
        ) from error


def _parsed_twice(path: Path, parse: Callable[[Any], T]) -> T:
    """Parse a file; where its form seems wrong, once more: a file server may have answered in part."""
    try:
        return retry_io(lambda: parse(json.loads(path.read_text())))
    except (ValueError, RecursionError):
        drop_page_cache(path)
        return retry_io(lambda: parse(json.loads(path.read_text())))


def read_json_if_any(path: Path) -> Any:
    """Read a JSON file that crpipe wrote, ``None`` when it does not exist; raise DataError when damaged."""
    return read_json(path) if is_present(path) else None


def sha256(path: Path) -> str:
    """Hash a file's bytes; raise MachineError where they cannot be read."""
    with disk_errors(path):
        return retry_io(lambda: _sha256(path))


def write_hashes(folder: Path, names: Iterable[str]) -> None:
    """Record the sha256 of files of a folder in a file beside them."""
    write_json(folder / HASHES, {name: sha256(folder / name) for name in names})


def _sha256(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def drop_page_cache(path: Path) -> None:
    """Drop a flushed file from the page cache; where that cannot be asked, do nothing."""
    with contextlib.suppress(OSError):
        handle = os.open(path, os.O_RDONLY)
        try:
            fadvise(handle, "DONTNEED")
        finally:
            os.close(handle)


def fadvise(handle: int, advice: str, start: int = 0, length: int = 0) -> None:
    """Announce that a part of an open file is needed soon (WILLNEED) or not again (DONTNEED).

    DONTNEED drops what is on the disk, and begins to write what is not. No length means to the end. Where the
    cache takes no advice, nothing happens.
    """
    if hasattr(os, "posix_fadvise"):
        with contextlib.suppress(OSError):
            os.posix_fadvise(handle, start, length, getattr(os, f"POSIX_FADV_{advice}"))


def digest(value: Any) -> str:
    """Hash a JSON value by its canonical form: 16 hexadecimal digits."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def free_bytes(path: Path) -> int:
    """Return the free bytes of the file system that holds ``path`` or its nearest existing parent."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def tree_bytes(path: Path) -> int:
    """Sum the sizes of all files below ``path``, not of links; 0 when it does not exist."""
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                status = os.lstat(os.path.join(folder, name))  # noqa: PTH118 - os.walk speaks strings
                total += 0 if stat.S_ISLNK(status.st_mode) else status.st_size
    return total


def is_held_open(path: Path) -> bool:
    """Return whether a name is that of a deleted file that is still open; NFS and FUSE keep such files."""
    return path.name.startswith(_HELD_OPEN)


def remove_tree(path: Path) -> None:
    """Delete a directory and all below it; silent when it does not exist.

    Raise DiskError when another process holds a file in it open, see ``clear_tree``.
    """
    held = clear_tree(path)
    if held:
        raise DiskError(
            f"{path}: cannot be deleted while another process has {held[0].name} open "
            f"({len(held)} such files; lsof {shlex.quote(str(held[0]))} shows which); end it, then run "
            "the same command again"
        )


def clear_tree(path: Path) -> list[Path]:
    """Delete a directory and all below it, but for what others hold open; return that, after some seconds.

    NFS and FUSE keep a deleted file that a process of this host has open, under a hidden name in its
    directory, until it is closed. The directory stays with it.
    """
    begun = time.monotonic()
    while True:
        failed = _remove_all(path)
        held = [Path(folder, name) for folder, _, names in os.walk(path) for name in names]
        if not failed and not held:
            return []
        if time.monotonic() - begun > _HELD_OPEN_S:
            if failed and not (held and all(map(is_held_open, held))):
                raise failed[0]
            return held
        time.sleep(_HELD_OPEN_PAUSE_S)


def _remove_all(path: Path) -> list[OSError]:
    """Delete what can be; return why a directory or a file stayed in use, and raise what else fails."""
    failed = []

    def note(_: object, __: str, caught: tuple[type[BaseException], BaseException, object]) -> None:
        error = caught[1]
        if isinstance(error, FileNotFoundError):
            return  # closed, or deleted by another process, meanwhile
        number = error.errno or 0 if isinstance(error, OSError) else 0
        if not isinstance(error, OSError) or (number not in _NOT_EMPTY and meaning_of(number).when != "soon"):
            raise error
        failed.append(error)

    shutil.rmtree(path, onerror=note)
    return failed
