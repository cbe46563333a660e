"""Fails one file operation of a real process with one errno (failing.c). Linux with a C compiler."""

import os
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")


def failing(folder, operation, number, path, nth=1):
    """Return the environment in which the nth (0: each) operation on a path with this text fails.

    operation: open, read, write, fsync, rename; renamed: it is done, and fails all the same.
    """
    library = folder / "failing.so"
    if not library.exists():
        subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", library, SOURCE, "-ldl"], check=True)
    return os.environ | {"LD_PRELOAD": str(library), "FAIL": f"{operation}:{number}:{nth}:{path}"}


def crpipe(*words, env=None, cwd=None):
    """Run a verb; return the finished process with its output as text."""
    command = [sys.executable, "-m", "crpipe", *map(str, words)]
    return subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True, check=False)
