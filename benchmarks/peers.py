"""How other systems are named: ``--peer NAME=PLACE``, and what each PLACE has to be.

PLACE is a clone, or, for ``before``, a checkout or a commit of crpipe. ``--prepare NAME`` prints
the commands that make it. Peers of PyPI are those of the extra ``bench``, with the versions of
constraints.txt: ``make bench`` installs them into an environment of its own.
"""

from __future__ import annotations

import argparse
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("numpy", "pyarrow", "torch", "polars", "duckdb", "datasets", "litdata")


@dataclass(frozen=True)
class Peer:
    """A system that is compared: where it comes from, at which commit, and what it needs."""

    repository: str
    commit: str
    install: str = ""

    def commands(self, name: str) -> list[str]:
        """Return the commands that prepare it, and the option that names it then."""
        url = f"https://github.com/{self.repository}"
        more = [f"pip install {self.install}"] if self.install else []
        return [
            f"git clone {url} {name}",
            f"git -C {name} checkout {self.commit}",
            *more,
            f"--peer {name}={name}",
        ]


PEERS = {
    "cr_muons": Peer("briedel/cr_muons", "bdff8ed"),
    "iceaggr": Peer("timinar/iceaggr", "314ef3b", install="pyyaml"),
    "xec-ml-wl": Peer("weiyuanli-icepp/xec-ml-wl", "cfa1a5c", install="uproot psutil"),
}
BEFORE = "before"  # another commit of crpipe


def named(text: str) -> tuple[str, str]:
    """Read NAME=PLACE; the place exists, or is a commit of crpipe."""
    name, _, place = text.partition("=")
    if name not in (*PEERS, BEFORE) or not place:
        names = ", ".join((*PEERS, BEFORE))
        raise argparse.ArgumentTypeError(f"{text}: expected NAME=PLACE with one of {names}")
    if Path(place).exists():
        return name, str(Path(place).absolute())
    if name == BEFORE and _git(ROOT, "rev-parse", "--verify", "-q", f"{place}^{{commit}}"):
        return name, place
    raise argparse.ArgumentTypeError(f"{text}: {place} does not exist")


def missing(name: str) -> str:
    """Return how to give a peer that was not given."""
    what = "a checkout or commit of crpipe" if name == BEFORE else f"{PEERS[name].repository}"
    return f"{name}: not run; give {what} with --peer {name}=PLACE (python -m benchmarks --prepare {name})"


def checkout(place: str, folder: Path) -> Path:
    """Return a checkout of crpipe: the place itself, or a worktree of the commit in ``folder``."""
    if Path(place).exists():
        return Path(place)
    target = folder / f"crpipe-{place.replace('/', '-')}"
    subprocess.run(["git", "-C", ROOT, "worktree", "add", "-f", "--detach", target, place], check=True)
    return target


def commit_of(place: str | Path) -> str:
    """Return commit and date of a clone, or what names a commit."""
    folder = Path(place)
    text = _git(folder, "log", "-1", "--format=%h of %cs") if folder.is_dir() else ""
    return text or str(place)


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", folder, *words], capture_output=True, text=True, check=False)
    return done.stdout.strip()
