"""Copy the SVG files of one folder into a new folder, which appears only when it is complete."""

import argparse
import shutil
from pathlib import Path


def gather(source: Path, target: Path) -> None:
    """Copy ``source/*.svg`` into the folder ``target``; without figures it is empty."""
    part = target.with_name(f"{target.name}.part")
    for old in (part, target):
        shutil.rmtree(old, ignore_errors=True)
    part.mkdir(parents=True)
    for figure in sorted(source.glob("*.svg")):
        shutil.copyfile(figure, part / figure.name)
    part.rename(target)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    words = parser.parse_args()
    gather(words.source, words.target)
