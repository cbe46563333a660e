"""What a disk holds after a power cut: names and contents that nobody flushed are lost, each for itself.

Real processes are watched (file_ops.py). A file counts as far as its last fsync, and so does a name, by the
last fsync of its directory: not by that of the file. After CrashMonkey (Mohan et al., OSDI 2018).
"""

import os
import random
import shutil
import stat
from contextlib import suppress
from dataclasses import dataclass

from file_ops import FileOps

WAYS = {
    "nothing": "nothing that was not flushed survives",
    "deletions": "only deletions survive",
    "names": "names survive, and contents end where they were flushed",
    "zeros": "names and lengths survive, contents that were not flushed are zeros",
    "contents": "contents survive, names do not",
}

END = "the end"


@dataclass(frozen=True)
class Node:
    """A file, a link or a directory: its mode, its time, and the bytes of a file or the target of a link."""

    inode: int
    mode: int
    time_ns: int
    content: bytes = b""

    def key(self):
        return self.mode, self.content


@dataclass(frozen=True)
class Cut:
    """One state of a disk: path -> Node, and the moment: the operation that was not executed any more."""

    way: str
    moment: str
    tree: dict[str, Node]

    def content(self, name):
        """Return the bytes of a file; None where there is none."""
        return self.tree[name].content if name in self.tree else None

    def write(self, folder):
        """Make the state; several names of one file stay that."""
        first, folders = {}, []
        for name, node in sorted(self.tree.items()):
            path = folder / name
            if stat.S_ISDIR(node.mode):
                path.mkdir(parents=True, exist_ok=True)
                folders.append((path, node))
            elif node.inode in first:
                path.hardlink_to(first[node.inode])
            elif stat.S_ISLNK(node.mode):
                path.symlink_to(os.fsdecode(node.content))
            else:
                path.write_bytes(node.content)
                path.chmod(stat.S_IMODE(node.mode))
                os.utime(path, ns=(node.time_ns, node.time_ns))
                first[node.inode] = path


class Disk:
    """A directory, and what of it is on the disk; all that is there at the beginning is."""

    def __init__(self, root):
        self.root = root
        self._handles = {}  # inode -> descriptor, so that no inode's number is used again
        self._contents = {}
        self._names = {}
        self._top = self._keep(root)
        self._begin(root, self._top)

    def close(self):
        for handle in self._handles.values():
            os.close(handle)

    def flush(self, operation):
        """Record an fsync: the names in a directory, or the bytes of a file."""
        handle = operation.opened()
        try:
            found = os.fstat(handle)
            if stat.S_ISDIR(found.st_mode):
                self._names[found.st_ino] = self._now_in(operation.path)
            else:
                if found.st_ino not in self._handles:
                    self._handles[found.st_ino] = os.dup(handle)
                self._contents[found.st_ino] = _bytes_of(handle, found)
        finally:
            os.close(handle)

    def after(self, way):
        """Build the tree of a power cut at this moment."""
        tree = {}
        self._add(tree, "", self.root, self._top, way)
        return tree

    def _begin(self, path, inode):
        self._names[inode] = names = self._now_in(path)
        for name, child in names.items():
            found = os.fstat(self._handles[child])
            if stat.S_ISDIR(found.st_mode):
                self._begin(path / name, child)
            else:
                self._contents[child] = _bytes_of(self._handles[child], found)

    def _now_in(self, folder):
        found = {}
        with suppress(FileNotFoundError):
            for name in sorted(path.name for path in folder.iterdir()):
                with suppress(FileNotFoundError):  # a temporary file of another process
                    found[name] = self._keep(folder / name)
        return found

    def _keep(self, path):
        inode = path.lstat().st_ino
        if inode not in self._handles:
            flags = os.O_PATH | os.O_NOFOLLOW if path.is_symlink() else os.O_RDONLY
            self._handles[inode] = os.open(path, flags)
        return inode

    def _add(self, tree, name, now, inode, way):
        """Add a directory's content; ``now``: its present path, if it still has its name."""
        names = self._names.get(inode, {})
        if way in ("names", "zeros"):
            names = self._now_in(now)
        elif way == "deletions":
            # What another file has replaced was not deleted.
            kept = {name for name, each in names.items() if os.fstat(self._handles[each]).st_nlink}
            names = {name: names[name] for name in names if name in kept or os.path.lexists(now / name)}
        for child, number in names.items():
            found = os.fstat(self._handles[number])
            path = f"{name}/{child}" if name else child
            if stat.S_ISDIR(found.st_mode):
                tree[path] = Node(number, found.st_mode, found.st_mtime_ns)
                self._add(tree, path, now / child, number, way)
            else:
                content = self._content(number, found, way)
                tree[path] = Node(number, found.st_mode, found.st_mtime_ns, content)

    def _content(self, inode, found, way):
        flushed = self._contents.get(inode, b"")
        if way not in ("contents", "zeros"):
            return flushed
        now = _bytes_of(self._handles[inode], found)
        if way == "contents":
            return flushed if flushed == now else now
        return flushed[: len(now)] + bytes(len(now) - len(flushed[: len(now)]))


def _bytes_of(handle, found):
    if stat.S_ISLNK(found.st_mode):
        return os.fsencode(os.readlink("", dir_fd=handle))
    return os.pread(handle, found.st_size, 0)


def cuts(root, folder, run, *, ignore=()):
    """Run ``run(variables)``, which starts processes; list the states of ``root`` after a power cut in them.

    ignore: names of files that no result depends on. The last ones, one of each way, are after its end.
    """
    disk, found, seen = Disk(root), [], set()

    def cut(moment):
        for way in WAYS:
            tree = disk.after(way)
            key = hash(frozenset((n, e.key()) for n, e in tree.items() if n.rpartition("/")[2] not in ignore))
            if key not in seen or moment == END:
                seen.add(key)
                found.append(Cut(way, moment, tree))

    def before(operation):
        if operation.path.is_relative_to(root):
            cut(f"{operation.what} {operation.path.relative_to(root)}")
            if operation.what == "fsync":
                disk.flush(operation)

    try:
        with FileOps(folder, before) as files:
            run(files.variables)
        cut(END)
    finally:
        disk.close()
    return found


def chosen(found, count, seed):
    """Choose some cuts, as many of each way as there are."""
    choice = random.Random(seed)
    piles = [[cut for cut in found if cut.way == way] for way in WAYS]
    for pile in piles:
        choice.shuffle(pile)
    picked = [pile[number] for number in range(len(found)) for pile in piles if number < len(pile)]
    return picked[:count]


def made(cut, folder):
    """Make the state of a cut in an empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    cut.write(folder)
    return folder
