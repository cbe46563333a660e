"""What a local folder holds: its names, and the usual ending of its files; for messages about a typo."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from pathlib import Path

MOST = 100_000  # names of one folder that are read for a message


def names_in(folder: Path, most: int | None = MOST) -> list[str] | None:
    """Name what is in a folder, at most so many; None when it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in itertools.islice(entries, most)]
    except OSError:
        return None


def usual_pattern(folder: Path) -> str:
    """Return the pattern of the most frequent type of file; ``*`` where there is no file."""
    try:
        with os.scandir(folder) as entries:
            files = [entry.name for entry in itertools.islice(entries, MOST) if entry.is_file()]
    except OSError:
        return "*"
    endings = Counter(Path(name).suffix for name in files)
    return f"*{endings.most_common(1)[0][0]}" if endings else "*"


def is_folder(path: Path) -> bool:
    """Return whether a path is a directory; not where a directory above it may not be entered."""
    try:
        return path.is_dir()
    except OSError:
        return False
