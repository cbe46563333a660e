"""What the split of a range costs from 0.25 to 10 GB.

One worker splits each size in a process of its own; raw files are not in the page cache. They are those of
``scan``; beyond the first 20, the muons of one of these under ids of their own. ``--peer before=COMMIT``
splits the same files in turn. ``--folder``: on the disk that is measured; files that are there are used
again.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import peers, table
from benchmarks.muons.raw import FLUSH, staged_split, write_file
from benchmarks.runner import ONE_THREAD, ROOT, Side, ratios, take_turns
from crpipe.core import files

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.runner import Run

GB = 10**9
DRAWN = 20


def generate(folder: Path, size: float) -> list[Path]:
    """Write raw files until they hold ``size`` bytes; return those that do."""
    folder.mkdir(parents=True, exist_ok=True)
    paths: list[Path] = []
    drawn: list[pa.Table] = []
    while size > 0:
        seed = len(paths)
        path = folder / f"{seed:07d}.parquet"
        if not path.exists() and seed < DRAWN:
            write_file(path, seed)
        elif not path.exists():
            drawn = drawn or [pq.read_table(each) for each in paths[:DRAWN]]
            table = drawn[seed % DRAWN]
            ids = pa.array(np.full(len(table), seed + 2**40, np.uint64))
            pq.write_table(table.set_column(0, table.schema.field(0), ids), path, row_group_size=FLUSH)
        paths.append(path)
        size -= path.stat().st_size
    return paths


def side(folder: str, count: int, scratch: str) -> tuple[Callable[[], dict[str, str]], Callable[[], None]]:
    """Prepare a split of the first raw files of a folder."""
    raw = Path(scratch) / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    for path in sorted(Path(folder).iterdir())[:count]:
        files.drop_page_cache(path)
        if not (raw / path.name).exists():
            (raw / path.name).hardlink_to(path)
    _, split = staged_split(raw)
    answer: dict[str, str] = {}

    def work() -> dict[str, str]:
        split()
        return answer

    def tidy() -> None:
        digest = hashlib.sha256()
        for path in sorted((raw.parent / "results").rglob("*.parquet")):
            digest.update(f"{path.name} {files.sha256(path)}".encode())
        answer["digest"] = digest.hexdigest()

    return work, tidy


def compare(run: Run, gigabytes: float, rounds: int, other: Path | None) -> None:
    """Split one size in turns."""
    folder = run.folder / "raw"
    paths = generate(folder, gigabytes * GB)
    size = sum(path.stat().st_size for path in paths)
    sides = [
        Side(
            name,
            f"{__name__}:side",
            {"folder": folder, "count": len(paths), "scratch": run.folder / name},
            root=root,
            environment=ONE_THREAD,
            fresh=True,
        )
        for name, root in (("crpipe", ROOT), (peers.BEFORE, other))
        if root
    ]
    take_turns(sides, rounds, warm=False)
    rows = []
    for each in sides:
        rates = table.spread([size / turn.cpu / 1e6 for turn in each.turns], 0)
        memory = f"{max(turn.peak for turn in each.turns):.0f}"
        times = [f"{each.median(what):.2f}" for what in ("user", "system")]
        rows.append([each.name, rates, size / each.median() / 1e6, *times, memory])
    head = ["", "MB/s per core", "by the clock", "user s", "system s", "peak memory, MiB"]
    table.show(f"{gigabytes:g} GB", head, rows)
    if other:
        same = len({turn.answer["digest"] for each in sides for turn in each.turns}) == 1
        shown = table.spread(ratios(sides[1], sides[0], "cpu"))
        print(f"faster by {shown}; all files are {'the same' if same else 'NOT the same'}", flush=True)


def split(run: Run, *, sizes: tuple[float, ...] = (0.25, 1.0, 4.0), rounds: int = 5) -> None:
    """Split ranges of so many GB of raw files."""
    place = run.given.get(peers.BEFORE)
    other = peers.checkout(place, run.folder) if place else None
    for size in sizes:
        compare(run, size, rounds, other)
