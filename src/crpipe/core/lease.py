"""Lease: at most one live job works on a directory, whoever started it twice; locks on file systems.

The kernel's lock decides. Some file systems keep locks within one host: so the holder also counts in the
lease file every few seconds, and who gets the lock first watches whether another host's holder still counts.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import platform
import threading
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crpipe.core.errors import CrpipeError, DiskError, LeaseError
from crpipe.core.files import disk_errors, make_folder, open_regular_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# The file system that a path is on, and whether a file lock there is seen by other hosts.


_MOUNTS = Path("/proc/self/mountinfo")
WAIT_S = 120.0  # for another job that does the same
# File systems of one host: whoever can open a file there asks the same kernel for its lock.
_OF_ONE_HOST = frozenset(
    ("apfs", "bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "ramfs", "tmpfs", "xfs", "zfs")
)
# File systems of several hosts whose locks all of them see, unless an option says otherwise.
_SHARED = frozenset(("ceph", "cifs", "gfs2", "gpfs", "nfs", "nfs4", "ocfs2", "smb3"))
_LOCAL_OPTIONS = frozenset(("localflock", "local_lock=all", "local_lock=flock", "noflock", "nolock"))


@dataclass(frozen=True, slots=True)
class Mount:
    """One mounted file system: where, of which type, with which options."""

    folder: str
    kind: str
    options: tuple[str, ...]

    def describe(self) -> str:
        """Name type and place, and the options that concern locks."""
        about = [option for option in self.options if option.endswith("lock") or "local_lock" in option]
        return " ".join([f"{self.kind} at {self.folder}", *([f"with {','.join(about)}"] if about else [])])

    def of_one_host(self) -> bool:
        """Return whether this is a disk of one host; others see it only where it is exported."""
        return self.kind in _OF_ONE_HOST

    def locks_are_per_host(self) -> bool:
        """Return whether two hosts might both get the same lock, as far as type and options show."""
        if self.of_one_host():
            return False
        if self.kind == "lustre":
            return "flock" not in self.options
        return self.kind not in _SHARED or not _LOCAL_OPTIONS.isdisjoint(self.options)


def mount_of(path: Path, mounts: Path = _MOUNTS) -> Mount | None:
    """Find the file system of ``path``, or of its nearest parent that exists; None where it is unknown.

    mounts: the kernel's list of mounts, which only Linux has.
    """
    while not path.exists() and path != path.parent:
        path = path.parent
    try:
        rows = os.fsdecode(mounts.read_bytes()).split("\n")
    except OSError:
        return None
    real, deepest = path.resolve(), None
    for row in rows:
        mount = _parse_mount(row)
        # Later rows are mounted over earlier ones at the same place.
        if (
            mount
            and real.is_relative_to(mount.folder)
            and (deepest is None or len(mount.folder) >= len(deepest.folder))
        ):
            deepest = mount
    return deepest


def _parse_mount(row: str) -> Mount | None:
    """Read one row: ``36 35 98:0 / /mnt rw,noatime shared:1 - lustre 10.0.0.1:/fs rw,flock``."""
    left, _, right = row.partition(" - ")
    before, after = left.split(" "), right.split(" ")
    if len(before) < 6 or len(after) < 3:  # noqa: PLR2004 - the fields of proc(5)
        return None
    # A space is written \040; all bytes but a few are written as they are.
    folder = os.fsdecode(os.fsencode(before[4]).decode("unicode_escape").encode("latin-1"))
    return Mount(folder, after[0], (*before[5].split(","), *after[2].split(",")))


Row = dict[str, Any]

BEAT_S = 10.0
WATCH_S = 2.5 * BEAT_S  # a holder that does not count for so long is dead
_SEEN_S = 6 * BEAT_S  # for reports alone: they do not watch
_GRACE_S = 0.5
_READS, _READ_AGAIN_S = 5, 0.1
_WIDTH = 512  # a row is written at once, over the one before
_NO_LOCKS = frozenset((errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK))


def owner_of(path: Path) -> str:
    """Describe who holds (or last held) the lease file."""
    return _holder_of(_read(path))


def is_held(path: Path) -> bool:
    """Return whether a live process holds the lease; never blocks, and never keeps it from anyone."""
    try:
        handle = open_regular_file(path, os.O_RDONLY)
    except (OSError, DiskError):
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False  # no locks here: nothing can hold one
    else:
        fresh = time.time() - os.fstat(handle).st_mtime < _SEEN_S
        return fresh and _is_elsewhere(_read(path))
    finally:
        os.close(handle)


def is_claimed(path: Path) -> bool:
    """Return whether a live process holds the lease, or one on another host did not give it back."""
    return is_held(path) or _is_elsewhere(_read(path))


@dataclass(slots=True)
class Lease:
    """A lease that this process holds."""

    path: Path
    handle: int
    row: Row
    _ended: threading.Event = field(default_factory=threading.Event)
    _beating: threading.Thread | None = None

    def check(self) -> None:
        """Raise LeaseError when another process took the lease over: this one was suspended, or cut off."""
        for _ in range(_READS):
            row = _read(self.path)
            if row:
                break
            time.sleep(_READ_AGAIN_S)  # a server that is down for a moment
        if row.get("id") != self.row["id"]:
            raise LeaseError(
                f"{self.path.parent}: taken over by {_holder_of(row)} while this job did not answer; that "
                "one goes on with it"
            )

    def refuse_if_taken(self) -> None:
        """Raise LeaseError where another process has the lease: what it does to the files is no error."""
        if _read(self.path).get("id", self.row["id"]) != self.row["id"]:
            self.check()

    def beat(self) -> None:
        """Count up until the lease ends or is lost."""
        while not self._ended.wait(BEAT_S):
            try:
                self.check()
                self.row["beat"] += 1
                self._write()
            except LeaseError:
                return
            except OSError:
                continue  # a full disk or a server that is down: the lock still holds

    def begin(self) -> None:
        """Write whose lease it is, and begin to count."""
        with disk_errors(self.path):
            self._write()
        self._beating = threading.Thread(target=self.beat, name="lease", daemon=True)
        self._beating.start()

    def end(self) -> None:
        """Write that the lease is free, so that nobody has to watch it; what does not work is no error."""
        self._ended.set()
        if self._beating is not None:
            self._beating.join()  # a count written later could reach the next file with this handle
        with contextlib.suppress(OSError):
            if _read(self.path).get("id") == self.row["id"]:
                self.row["ended"] = True
                self._write()

    def _write(self) -> None:
        line = json.dumps(self.row).encode().ljust(_WIDTH)
        os.pwrite(self.handle, line, 0)
        os.ftruncate(self.handle, len(line))
        os.fsync(self.handle)  # other hosts see what is on the server


@contextlib.contextmanager
def lease(
    folder: Path,
    *,
    say: Callable[[str], None],
    wait_s: float | None = None,
    stopped: Callable[[], bool] = bool,
    on_takeover: Callable[[Row], None] | None = None,
) -> Iterator[Lease]:
    """Hold ``folder/lease`` while the block runs; the kernel frees it when the process dies, however it dies.

    Wait at most ``wait_s`` seconds (None: WAIT_S) for a live owner to finish: it may be the orphan of a
    killed workflow that is just writing its snapshot. Report once through ``say`` whom the wait is for; then
    raise LeaseError.
    on_takeover: may raise before the lease of a process that died on another host is taken; gets its row.
    Raise DiskError where the file system has no locks.
    """
    path = folder / "lease"
    waiting = _Waiting(path, WAIT_S if wait_s is None else wait_s, say, stopped)
    handle = _acquired(path, waiting)
    try:
        before = _read(path)
        if _is_elsewhere(before):
            waiting.watch(before)
            if on_takeover is not None:
                on_takeover(before)
        row = {"host": platform.node(), "pid": os.getpid(), "since": round(time.time(), 3)}
        if os.environ.get("SLURM_JOB_ID"):
            row["slurm_job"] = os.environ["SLURM_JOB_ID"]
        held = Lease(path, handle, {**row, "id": uuid.uuid4().hex, "beat": 0, "ended": False})
        held.begin()
        try:
            yield held
        except (OSError, CrpipeError):
            held.refuse_if_taken()
            raise
        finally:
            held.end()
    finally:
        os.close(handle)


@dataclass(slots=True)
class _Waiting:
    """A wait for a live owner: how long at most, and whether it was reported."""

    path: Path
    wait_s: float
    say: Callable[[str], None]
    stopped: Callable[[], bool]
    begun: float = field(default_factory=time.monotonic)
    reported: bool = False

    def go_on(self, pause_s: float) -> None:
        """Report the wait once, and pause; raise LeaseError when it was long enough."""
        holder, waited = owner_of(self.path), time.monotonic() - self.begun
        if self.stopped() or waited >= self.wait_s:
            raise LeaseError(
                f"{self.path.parent}: already being worked on by {holder}; wait for it or stop it, "
                "then run the same command again"
            )
        if not self.reported:
            self.say(f"{self.path.parent}: waiting at most {self.wait_s:.0f} s for {holder} to finish")
            self.reported = True
        time.sleep(pause_s)

    def watch(self, row: Row) -> None:
        """Wait until a holder on another host has ended, or has not counted for some time.

        Its host's clock is not asked: only whether the number changes.
        """
        since = time.monotonic()
        while time.monotonic() - since < WATCH_S and _is_elsewhere(row):
            time.sleep(min(0.2, BEAT_S))
            now = _read(self.path)
            if now and (now.get("beat"), now.get("id")) != (row.get("beat"), row.get("id")):
                row, since = now, time.monotonic()
                if _is_elsewhere(row):
                    self.go_on(min(0.2, BEAT_S))


def _acquired(path: Path, waiting: _Waiting) -> int:
    """Open and lock the lease file; it may be removed and made again meanwhile, with its directory."""
    while True:
        with disk_errors(path):
            make_folder(path.parent)
            handle = open_regular_file(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            _lock(handle, path, waiting)
            if _is_at(handle, path):
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def _lock(handle: int, path: Path, waiting: _Waiting) -> None:
    # `is_held` shares the lock for a moment; only who holds it for longer is an owner.
    begun = time.monotonic()
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() - begun < _GRACE_S:
                time.sleep(0.02)
                continue
            waiting.go_on(0.2)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            mount = mount_of(path)
            raise DiskError(
                f"{path}: the file system ({mount.describe() if mount else 'of unknown type'}) has no file "
                f"locks ({error.strerror}): have it mounted with locks (Lustre: -o flock), or move the "
                "campaign to a file system that has them"
            ) from error
        else:
            return


def _is_at(handle: int, path: Path) -> bool:
    """Return whether the open file is still the one of this name."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def _is_elsewhere(row: Row) -> bool:
    """Return whether a process on another host wrote the row, and did not end its lease."""
    own_job = os.environ.get("SLURM_JOB_ID")
    requeued = own_job is not None and row.get("slurm_job") == own_job  # Slurm ended it before it began again
    return bool(row) and row.get("host") != platform.node() and not row.get("ended") and not requeued


def _read(path: Path) -> Row:
    """Read the row of a lease file; empty when there is none, or no whole one."""
    try:
        with open(open_regular_file(path, os.O_RDONLY)) as file:  # noqa: PTH123 - a descriptor, not a path
            row = json.load(file)
    except (OSError, ValueError, DiskError):
        return {}
    return row if isinstance(row, dict) else {}


def _holder_of(row: Row) -> str:
    if "pid" not in row or "host" not in row:
        return "an unknown process"
    job = f", Slurm job {row['slurm_job']}" if row.get("slurm_job") else ""
    return f"process {row['pid']} on {row['host']}{job}"
