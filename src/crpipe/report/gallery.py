"""Copy the figures of one folder into a new folder, which appears only when it is complete."""

import argparse
import shutil
from pathlib import Path

from crpipe.core.files import remove_tree
from crpipe.report.figure_context import FORMATS


def gather(source: Path, target: Path) -> None:
    """Copy the figures of ``source``, in all formats, into the folder ``target``; without any it is empty."""
    part = target.with_name(f"{target.name}.part")
    for old in (part, target):
        remove_tree(old)
    part.mkdir(parents=True)
    for figure in sorted(source.glob("*.svg")):
        for same in (figure.with_suffix(suffix) for suffix in FORMATS):
            if same.exists():
                shutil.copyfile(same, part / same.name)
    part.rename(target)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    words = parser.parse_args()
    gather(words.source, words.target)
