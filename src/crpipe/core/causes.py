"""What caused an exception: the machine (its disk, file server or memory), or the code of a plug-in.

Any exception comes in; one line with its place goes out. An exception of neither may be one of the data.
Nothing else in crpipe judges an errno.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar

from crpipe.core.errors import (
    CrpipeError,
    DiskError,
    HostMemoryError,
    MachineError,
    PlaceError,
    PluginError,
    UnseenError,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

Answer = TypeVar("Answer")


class Meaning(NamedTuple):
    """What one errno means.

    when: soon (the same operation again, within seconds), later (the same command again), person (somebody
    has to change something first). text: what is wrong, and what to do.
    """

    when: Literal["soon", "later", "person"]
    text: str


_FULL = "free some space"
_SERVER = "the file server does not answer: see whether it is there"
_DEVICE = "the disk or its file server failed: see `dmesg`, or ask whoever runs it"
_LIMIT = "raise the limit (ulimit -n), or run fewer jobs on this machine"
_THREADS = (
    "no process or thread can be started, too many or too little memory: raise the limit (ulimit -u, "
    "ulimit -v, or that of the container), or run fewer jobs on this machine"
)
_LIBRARY = (
    "a library cannot be loaded, too little memory or a file system mounted with noexec: raise the limit "
    "(ulimit -v, or that of the container), or see `mount`"
)
_DENIED = (
    "permission denied: make it writable, or readable, for you (its owner: chmod -R u+rwX,g+rwX; for what is "
    "made from now on: umask 002)"
)
_KEYS = "your ticket or key for the file system is not valid: get a new one (kinit, aklog)"
_TAKEN = "a file is where a directory is needed: move it away"

MEANINGS = {
    errno.EINTR: Meaning("soon", "interrupted"),
    errno.EAGAIN: Meaning("soon", f"the file system asks to try again, or {_THREADS}"),
    errno.EBUSY: Meaning("soon", "in use"),
    errno.ETXTBSY: Meaning("soon", "in use"),
    errno.ESTALE: Meaning("soon", "the file server forgot the open file, or another host replaced it"),
    errno.EDEADLK: Meaning("soon", "another process holds a lock"),
    errno.ENOENT: Meaning("later", "it, or its directory, is not there: see whether somebody removed it"),
    errno.ENOTEMPTY: Meaning("later", "something wrote into the directory while it was deleted"),
    errno.ENOSPC: Meaning("later", f"the disk is full: {_FULL}"),
    errno.EDQUOT: Meaning("later", f"the quota is used up: {_FULL}"),
    errno.EIO: Meaning("later", _DEVICE),
    errno.EREMOTEIO: Meaning("later", _DEVICE),
    errno.ENODEV: Meaning("later", _DEVICE),
    errno.ENXIO: Meaning("later", _DEVICE),
    errno.ENOMEDIUM: Meaning("later", _DEVICE),
    errno.EROFS: Meaning("later", "the file system is read-only: see why, or choose another directory"),
    errno.EMFILE: Meaning("later", f"too many open files of this process: {_LIMIT}"),
    errno.ENFILE: Meaning("later", "too many open files on this machine: run fewer jobs on it"),
    errno.ENOMEM: Meaning("later", "not enough memory: give the job more, or run fewer on this machine"),
    errno.ENOBUFS: Meaning("later", "not enough memory of the system: run fewer jobs on this machine"),
    errno.ENOLCK: Meaning("later", "the file server gives no locks: see whether its lock service runs"),
    errno.EPIPE: Meaning("later", "whoever read the output has ended"),
    errno.EBADF: Meaning("later", "the file was closed while it was in use"),
    errno.EINVAL: Meaning("later", "the file system refuses the operation: see how it is mounted"),
    **dict.fromkeys(
        (
            *(errno.ETIMEDOUT, errno.ENOTCONN, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN),
            *(errno.ENETUNREACH, errno.ENETRESET, errno.ECONNRESET, errno.ECONNREFUSED, errno.ECONNABORTED),
            *(errno.ESHUTDOWN, errno.ECOMM, errno.EPROTO, errno.ENOLINK, errno.EREMOTE, errno.ETIME),
        ),
        Meaning("later", _SERVER),
    ),
    errno.EACCES: Meaning("person", _DENIED),
    errno.EPERM: Meaning("person", _DENIED),
    errno.ENOKEY: Meaning("person", _KEYS),
    errno.EKEYEXPIRED: Meaning("person", _KEYS),
    errno.EKEYREVOKED: Meaning("person", _KEYS),
    errno.EKEYREJECTED: Meaning("person", _KEYS),
    errno.EEXIST: Meaning("person", _TAKEN),
    errno.ENOTDIR: Meaning("person", _TAKEN),
    errno.EISDIR: Meaning("person", "a directory is where a file is needed: move it away"),
    errno.ENAMETOOLONG: Meaning("person", "the name is too long for the file system: choose a shorter place"),
    errno.ELOOP: Meaning("person", "links lead to each other: see `ls -l`"),
    errno.EFBIG: Meaning("person", "larger than the file system or `ulimit -f` allows: raise the limit"),
    errno.EMLINK: Meaning("person", "the directory is full: choose another file system"),
    errno.EXDEV: Meaning("person", "on two file systems: keep the campaign's directory on one"),
    errno.ENOSYS: Meaning("person", "the file system cannot do this: choose another one"),
    errno.EOPNOTSUPP: Meaning("person", "the file system cannot do this: choose another one"),
    errno.EUCLEAN: Meaning("person", "the file system is damaged: have it checked (fsck)"),
}
_UNKNOWN = Meaning("later", "the system refused it")
# What a mistake of a program looks like as well: in a plug-in they are not taken for the machine's.
OF_PROGRAMS = frozenset(
    (
        *(errno.ENOENT, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENOTEMPTY),
        *(errno.EINVAL, errno.EBADF, errno.EOVERFLOW),
    )
)
_MISSING = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
OF_FORM = frozenset((errno.EINVAL, errno.EOVERFLOW, errno.EFBIG))  # also of a place that wrong bytes name
_CLASSES: dict[str, type[MachineError]] = {"soon": DiskError, "later": DiskError, "person": PlaceError}
_BY_TEXT = re.compile(r"\berrno[ =:]+(\d+)", re.IGNORECASE)  # libraries of C quote it: HDF5, fsspec
_NAMES = {os.strerror(each): each for each in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE)}
_NAMES["error closing file"] = errno.EIO  # all that Arrow says of any
_NAMED = re.compile(f"({'|'.join(_NAMES)})")
_MEMORY = re.compile(
    r"bad_alloc|cannot allocate memory|can't allocate memory|unable to allocate|memory allocation failed|"
    r"malloc of size|realloc of size",
    re.IGNORECASE,
)
_BY_WORDS = {  # of Python; Arrow; the loader of libraries
    re.compile("can't start new thread|[Ff]ailed to launch worker thread"): _THREADS,
    re.compile("failed to map segment from shared object"): _LIBRARY,
}
_ASKED = re.compile(r"(?:size|allocate) (\d+(?:\.\d+)?)(?: ([KMGTPE])iB)?")
_UNITS = "KMGTPE"
# More bytes at once than any event has, of a file of this size: such a length was read from wrong bytes.
_NEVER, _EXPANDS, _GIB = 1 << 40, 10_000, 1 << 30
_PLAIN = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM))  # said by the text
_SOMEWHERE = "standard output, a log or a temporary file"
_WHAT = dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EROFS), "cannot write")
_SOON_S, _PAUSE_S = 5.0, 0.05


def number_of(error: BaseException) -> int:
    """Return the errno of an exception, of a library's text if it is only there; 0: it has none."""
    if isinstance(error, OSError) and error.errno:
        return int(error.errno)
    if isinstance(error, OSError | RuntimeError):
        text = str(error)
        if match := _BY_TEXT.search(text):
            return int(match[1])
        if match := _NAMED.search(text):
            return _NAMES[match[1]]
    return 0


def meaning_of(number: int) -> Meaning:
    """Return the meaning of an errno; one that is not in the table may pass."""
    return MEANINGS.get(number, _UNKNOWN)


def machine_error(
    error: BaseException | None,
    path: Path | str | None = None,
    leave: frozenset[int] = frozenset(),
    behind: frozenset[int] | None = None,
) -> MachineError | None:
    """Translate an exception that is, or was caused by, an error of the machine; else give nothing.

    path: what is read or written, where the error does not name it. leave: errno that are not judged here.
    behind: the same for errors that it was raised after, which need not be its cause.
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, MachineError):
            return error
        number = number_of(error)
        said = next((text for words, text in _BY_WORDS.items() if words.search(str(error))), "")
        if not number and said:
            return MachineError(f"{path or 'this job'}: {said}, then run the same command again")
        if not number and lacks_memory(error, path):
            return _no_memory(error, path)
        if number and number not in leave:
            return _refused(error, number, path)
        leave = leave | OF_PROGRAMS if behind is None else behind
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return None


def lacks_memory(error: BaseException, path: Path | str | None = None) -> bool:
    """Return whether an exception says that there is too little memory, for a size that can be meant."""
    if isinstance(error, CrpipeError) or type(error).__name__ == "OutOfMemoryError":  # the last: of a GPU
        return False
    text = str(error)
    if not (isinstance(error, MemoryError) or _MEMORY.search(text)):
        return False
    request = _ASKED.search(text)
    return request is None or float(request[1]) * _unit(request[2]) < _most_of(path)


def _most_of(path: Path | str | None) -> int:
    """Return the bytes that a reader may need at once for one file."""
    try:
        return min(_NEVER, max(_GIB, _EXPANDS * Path(path).stat().st_size)) if path else _NEVER
    except (OSError, ValueError):
        return _NEVER


def _unit(letter: str | None) -> int:
    return 1 << (10 * (_UNITS.index(letter) + 1)) if letter else 1


def _no_memory(error: BaseException, path: Path | str | None) -> HostMemoryError:
    text = " ".join(str(error).split())
    quoted = f" ({text[:200]})" if text else ""
    return HostMemoryError(
        f"{path or 'this job'}: not enough memory{quoted}; nothing is wrong with the data: give the job more "
        "memory or run fewer jobs on this machine, then run the same command again"
    )


def _refused(error: BaseException, number: int, path: Path | str | None) -> MachineError:
    named = getattr(error, "filename2", None) or getattr(error, "filename", None)
    where = (os.fsdecode(named) if isinstance(named, str | bytes) else named) or path
    if isinstance(where, str | Path) and os.path.islink(where):  # noqa: PTH114 - never raises
        where = os.path.realpath(where)  # a raw file that is read in place
    if isinstance(where, str | Path) and number == errno.EACCES:
        where = _closed(Path(where))
    meaning = meaning_of(number)
    cause = "" if number in _PLAIN else f"{os.strerror(number)} ({errno.errorcode.get(number, number)}): "
    kind = HostMemoryError if number == errno.ENOMEM else _CLASSES[meaning.when]
    return kind(
        f"{where or _SOMEWHERE}: {_WHAT.get(number, 'cannot read or write')}: {cause}{meaning.text}, "
        "then run the same command again"
    )


def _closed(path: Path) -> Path:
    """Return what has to be opened for a path: the directory that refuses it, or the path itself."""

    def refuses(each: Path, access: int) -> bool:
        return os.path.lexists(each) and not os.access(each, access)

    for folder in reversed(path.parents):
        if refuses(folder, os.X_OK):
            return folder
    return path.parent if refuses(path.parent, os.W_OK) and not refuses(path, os.R_OK) else path


class MachineWatch:
    """Raise the MachineError of an exception in the block that is the machine's; all others pass unchanged.

    path: what is read or written in the block, where the exception does not name it.
    leave: errno that the block's caller judges.
    """

    def __init__(self, path: Path | str | None = None, leave: frozenset[int] = frozenset()) -> None:
        self._path, self._leave = path, leave

    def __enter__(self) -> None:
        """Begin the block."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Raise the MachineError in place of the block's exception."""
        if isinstance(error, Exception) and not isinstance(error, CrpipeError):
            refuse_machine_error(error, self._path, self._leave)


def refuse_machine_error(
    error: BaseException,
    path: Path | str | None = None,
    leave: frozenset[int] = frozenset(),
    behind: frozenset[int] | None = None,
) -> None:
    """Raise the MachineError of an exception that is the machine's; else return: the bytes may be wrong."""
    refusal = machine_error(error, path, leave, behind)
    if refusal is not None:
        raise refusal from error


class plugin_errors:  # noqa: N801 - a context manager, read like a function
    """Turn any exception inside the block into a PluginError that begins with ``what``.

    The errors of crpipe itself pass unchanged, and so do KeyboardInterrupt and SystemExit. An error of the
    machine (a full disk, too little memory) is not blamed on the code: it becomes a MachineError.
    path: a file that is there and that the code reads. An error of the machine that its library hid behind
    another one, a FormatError too, is found, and a file that cannot be opened is the machine's.
    """

    def __init__(self, what: str, path: Path | None = None) -> None:
        self._what, self._path = what, path

    def __enter__(self) -> None:
        """Begin the block."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Raise PluginError in place of the block's exception."""
        if self._path is not None and isinstance(error, Exception):
            refuse_machine_error(error, self._path, OF_FORM, OF_FORM)
        if isinstance(error, Exception) and not isinstance(error, CrpipeError):
            refuse_machine_error(error, leave=OF_PROGRAMS)
            raise PluginError(f"{self._what}: {_line_of(error)}") from error


def _line_of(error: Exception) -> str:
    """Return kind, text and place of an exception on one line: ``KeyError: 'x' (mylab/hits.py, line 12)``."""
    text = " ".join(str(error).split())
    trace = traceback.extract_tb(error.__traceback__)
    # An import that fails ends in frames of Python's own import system, in files like <frozen importlib>.
    frames = [] if trace and trace[-1].filename.startswith("<") else trace
    if not frames:
        return f"{type(error).__name__}: {text}"
    last = frames[-1]
    file = "/".join(Path(last.filename).parts[-2:])
    return f"{type(error).__name__}: {text} ({file}, line {last.lineno})"


def retry_io(operation: Callable[[], Answer], path: Path | None = None) -> Answer:
    """Run an operation, and retry it for some seconds where the table says: soon.

    Also where a file was not found that is there: its name may be seen late. path: the file, where the error
    does not name it.
    """
    end = time.monotonic() + _SOON_S
    while True:
        try:
            return operation()
        except OSError as error:
            number = number_of(error)
            again = meaning_of(number).when == "soon" or (number == errno.ENOENT and is_seen(error, path))
            if not again or time.monotonic() > end:
                raise
        time.sleep(_PAUSE_S)


def is_seen(error: OSError, path: Path | None) -> bool:
    """Return whether a file that was not found is there; ``path`` where the error does not name it."""
    missing = error.filename or path
    if not isinstance(missing, Path | str):
        return False
    _ask_again(Path(missing).parent)
    return Path(missing).exists()


def is_there(path: Path) -> bool:
    """Return whether a file that a record names exists, after some seconds: another host may see it late."""
    end = time.monotonic() + _SOON_S
    while not retry_io(path.exists):
        if time.monotonic() > end:
            return False
        time.sleep(_PAUSE_S)
        _ask_again(path.parent)
    return True


def look_at(path: Path) -> os.stat_result | None:
    """Return the status of what may be missing, or None. A first no is asked again, past any cache."""
    try:
        return retry_io(path.stat)
    except ValueError:  # a name that none can have
        return None
    except OSError as error:
        if error.errno in _MISSING:
            return None
        raise


def is_present(path: Path) -> bool:
    """Return whether a name is there, of whatever; see ``look_at``."""
    return look_at(path) is not None


def is_folder(path: Path) -> bool:
    """Return whether a name is there, and is a directory; see ``look_at``."""
    status = look_at(path)
    return status is not None and stat.S_ISDIR(status.st_mode)


def is_plain(path: Path) -> bool:
    """Return whether a name is there, and is a file; see ``look_at``."""
    status = look_at(path)
    return status is not None and stat.S_ISREG(status.st_mode)


def _ask_again(folder: Path) -> None:
    """Open a directory: where names are cached, its server is asked for them again."""
    # The last: what is in a directory may be read where its names may not.
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
        os.close(os.open(folder, os.O_RDONLY))


def expect(path: Path, record: Path, otherwise: str) -> None:
    """Raise UnseenError unless a file that ``record`` names is seen within some seconds.

    otherwise: what to do when it is gone for good.
    """
    if not is_there(path):
        raise UnseenError(
            f"{path}: not seen on this machine, though {record} names it. A file server may show it late: "
            f"run the same command again. Only where somebody deleted it, it is missing; {otherwise}"
        )
