"""A folder whose deleted files stay under a hidden name as long as they are open, as on NFS.

A bindfs mount where the kernel lets us mount one; else, or where asked, by a library that is preloaded.
"""

import shutil
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")


def why_not_mounted():
    """Return why this machine cannot mount a folder by FUSE; empty where it can."""
    if not Path("/dev/fuse").exists():
        return "no /dev/fuse"
    return "" if shutil.which("bindfs") else "no bindfs (apt-get install bindfs fuse3)"


@contextmanager
def hiding(folder, *, preloaded=False):
    """Return a folder inside of an empty one, and the variables that processes need in it."""
    reason = "asked for" if preloaded else why_not_mounted()
    if not reason:
        disk, place = folder / "disk", folder / "mounted"
        for each in (disk, place):
            each.mkdir(parents=True)
        done = subprocess.run(["bindfs", disk, place], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            try:
                yield place, {}
            finally:
                subprocess.run(["fusermount3", "-u", "-z", place], check=True)
            return
        reason = done.stderr.strip()
    sys.stderr.write(f"\nNO BINDFS MOUNT ({reason}): hidden names are made by a preloaded library instead\n")
    with _preloaded(folder) as given:
        yield given


@contextmanager
def _preloaded(folder):
    place, library = folder / "preloaded", folder / "hidden_names.so"
    place.mkdir(parents=True)
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", library, SOURCE, "-ldl"], check=True)
    ended = threading.Event()
    sweeper = threading.Thread(target=_sweep, args=(place, ended), daemon=True)
    sweeper.start()
    try:
        yield place, {"LD_PRELOAD": str(library), "HIDDEN_NAMES": f"{place}/"}
    finally:
        ended.set()
        sweeper.join()


def _sweep(place, ended):
    """Delete the hidden names of files that nobody has open any more."""
    while not ended.wait(0.05):
        hidden = list(place.rglob(".nfs*"))
        opened = _open_files() if hidden else set()
        for path in hidden:
            with suppress(OSError):
                if (path.stat().st_dev, path.stat().st_ino) not in opened:
                    path.unlink()


def _open_files():
    found = set()
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):
            state = link.stat()
            found.add((state.st_dev, state.st_ino))
    return found
