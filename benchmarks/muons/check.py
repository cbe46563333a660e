"""How fast `crpipe check` proves a range, beside sha256 of the same files and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import campaigns
from benchmarks.muons.raw import READER, write_files
from benchmarks.runner import Side, ratios, take_turns
from benchmarks.table import show
from crpipe.core.files import sha256

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.runner import Run
    from crpipe.config.loading import Config


def configured(root: Path, files: int) -> Config:
    """Configure a campaign of one range."""
    return campaigns.configured(
        {
            "source.uri": f"file://{root}/raw/{{range}}/*.parquet",
            "source.reader": READER,
            "train.workload": "crpipe.workloads.muons:MuonGan",
            "results": root / "results",
            "runs": root / "runs",
            "ranges.last": files - 1,
            "ranges.size": files,
            "split.outlier_above": 10_000,
            "resources.split.cpus": 1,
        }
    )


def shards_of(root: Path) -> list[Path]:
    """List the shards of a campaign."""
    return sorted(path for part in ("events", "muons") for path in root.rglob(f"*.{part}.parquet"))


def side(name: str, root: str, files: int, jobs: int) -> Callable[[], None]:
    """Prepare the check, or the hashing of the same shards."""
    config, shards = configured(Path(root), files), shards_of(Path(root) / "results")
    size = sum(path.stat().st_size for path in shards)

    def check() -> None:
        findings, read = campaigns.check(config, jobs)
        if findings or read < size:
            raise SystemExit(f"not sound: {findings}, {read} bytes of {size}")

    def hashing() -> None:
        for path in shards:
            sha256(path)

    return check if name == "crpipe check" else hashing


def check(run: Run, *, files: int = 100, rounds: int = 7, jobs: int = 1) -> None:
    """Check shards of so many raw files; ``jobs``: processes of the check."""
    config = configured(run.folder, files)
    name = str(config.all_ranges()[0])
    write_files(run.folder / "raw" / name, files)
    campaigns.split_all(config)
    campaigns.consolidate(campaigns.opened(config))
    config.paths().staged(name).unlink()
    shards = shards_of(config.paths().results)
    size = sum(path.stat().st_size for path in shards)
    given = {"root": run.folder, "files": files, "jobs": jobs}
    sides = [
        Side(name, f"{__name__}:side", {"name": name, **given}) for name in ("sha256 alone", "crpipe check")
    ]
    take_turns(sides, rounds)
    rows = [[each.name, *(size / 1e6 / each.median(what) for what in ("wall", "cpu"))] for each in sides]
    show(f"{len(shards)} files with {size / 1e6:.0f} MB, {rounds} rounds", ["", "MB/s", "MB per CPU s"], rows)
    print(
        "crpipe check / sha256:", run.compared("check of shards, CPU", "sha256 alone", ratios(*sides, "cpu"))
    )
