"""The file system that a path is on, and whether a file lock there is seen by other hosts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_MOUNTS = Path("/proc/self/mountinfo")
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

    place: str
    kind: str
    options: tuple[str, ...]

    def describe(self) -> str:
        """Name type and place, and the options that concern locks."""
        about = [option for option in self.options if option.endswith("lock") or "local_lock" in option]
        return " ".join([f"{self.kind} at {self.place}", *([f"with {','.join(about)}"] if about else [])])

    def of_one_host(self) -> bool:
        """Return whether this is a disk of one host; others see it only where it is exported."""
        return self.kind in _OF_ONE_HOST

    def may_lock_locally(self) -> bool:
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
        rows = mounts.read_text(errors="replace").splitlines()
    except OSError:
        return None
    real, found = path.resolve(), None
    for row in rows:
        mount = _read(row)
        # Later rows are mounted over earlier ones at the same place.
        if (
            mount
            and real.is_relative_to(mount.place)
            and (found is None or len(mount.place) >= len(found.place))
        ):
            found = mount
    return found


def _read(row: str) -> Mount | None:
    """Read one row: ``36 35 98:0 / /mnt rw,noatime shared:1 - lustre 10.0.0.1:/fs rw,flock``."""
    left, _, right = row.partition(" - ")
    before, after = left.split(" "), right.split(" ")
    if len(before) < 6 or len(after) < 3:  # noqa: PLR2004 - the fields of proc(5)
        return None
    place = before[4].encode().decode("unicode_escape")  # a space is written \040
    return Mount(place, after[0], (*before[5].split(","), *after[2].split(",")))
