"""Is this checkout as fast as another commit? Split, loader, staging and training step, in turn.

    python -m benchmarks against --peer before=COMMIT

Each checkout does the same work, as its own benchmarks describe it, in a process of its own that stays alive;
the two take turns. A row ends when the 95 % interval of the median ratio of their CPU times is narrower than
``--width``, or after ``--rounds``. A ratio above 1 means that this checkout needs more time.
"""

# ruff: noqa: PLC0415 - a work imports what it needs alone
from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import peers, table
from benchmarks.runner import ROOT, Side, ratios, take_turns

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.runner import Run

BEFORE = "before"
ONE = {"OMP_NUM_THREADS": "1", "ARROW_IO_THREADS": "1"}


def split(folder: Path) -> Callable[[], object]:
    """Split 48 raw files of 12,700 events with one worker, ledger and all."""
    from benchmarks.muons.raw import split_crpipe, write_files

    raw = write_files(folder / "raw", 48)
    return lambda: split_crpipe(raw)


def loader(folder: Path) -> Callable[[], object]:
    """Read an epoch of 2,000,000 events in batches of 4,096, shuffled, checksums verified."""
    from benchmarks.muons import readers
    from benchmarks.muons.events import generate

    readers.write_shard(folder, generate(2_000_000))
    return lambda: [None for _ in readers.read_crpipe(folder)] and None


def staging(folder: Path) -> Callable[[], object]:
    """List and stage 300 local files."""
    from benchmarks import campaigns
    from benchmarks.muons.raw import READER, write_files

    raw, results, name = folder / "raw", folder / "results", "0000000-0000299"
    write_files(raw, 300)
    settings = {"results": results, "source.uri": f"{raw}/*.parquet", "ranges.last": 299}
    config = campaigns.configured({**settings, "source.reader": READER})

    def work() -> None:
        shutil.rmtree(results, ignore_errors=True)
        campaigns.list_files(config, name)
        campaigns.stage(config, name)

    return work


def training(_: Path) -> Callable[[], object]:
    """Train MuonGan for two steps of 48,000 events (the setting of the earlier system's README)."""
    import torch

    from benchmarks.muons.training import SETTINGS, ours
    from crpipe.train.ranks import World

    step = ours(SETTINGS[0], "float32", World(0, 1, torch.device("cpu")))
    return lambda: [step() for _ in range(2)] and None


WORKS = {each.__name__: each for each in (split, loader, staging, training)}


def side(name: str) -> Callable[[], object]:
    """Prepare a work in a folder of its own, on the disk that AGAINST_DIR names."""
    work = WORKS[name](Path(tempfile.mkdtemp(dir=os.environ.get("AGAINST_DIR"))))

    def quiet() -> None:
        work()

    return quiet


def against(run: Run, *, only: tuple[str, ...] = tuple(WORKS), rounds: int = 25, width: float = 0.02) -> None:
    """Compare each piece of work with the commit or checkout that ``--peer before=`` names."""
    place = run.given.get(BEFORE)
    if not place:
        sys.exit(peers.missing(BEFORE))
    other = peers.checkout(place, run.folder)
    rows = []
    for name in only:
        given: dict[str, Any] = {"arguments": {"name": name}, "environment": ONE}
        work = f"{__name__}:side"
        sides = [Side("here", work, **given), Side(BEFORE, work, root=other, **given)]
        take_turns(sides, rounds, width=width)
        found = ratios(sides[0], sides[1], "cpu")
        low, high = table.interval(found)
        middle = f"{sorted(found)[len(found) // 2]:.3f} ({low:.3f}..{high:.3f})"
        rows.append([name, f"{sides[0].median('cpu'):.2f}", middle, len(found)])
    table.show(f"this checkout ÷ {place}", ["", "CPU s", "ratio, interval", "rounds"], rows)
    if other.parent == run.folder:
        subprocess.run(["git", "-C", ROOT, "worktree", "remove", "--force", other], check=True)
