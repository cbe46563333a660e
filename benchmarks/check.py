"""How fast `crpipe check` proves a range, beside sha256 of the same files and nothing else.

One command: ``python benchmarks/check.py``. Files like the real ones are split and their outliers
consolidated; then check and hashing take turns in one process, and the table shows medians: MB/s by the
clock and of CPU time, of the bytes of all shards.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from data import READER, write_file
from side_by_side import compared

from crpipe.campaign.campaign import Campaign
from crpipe.check.check import check, open_files
from crpipe.config.loading import load_config
from crpipe.core.files import sha256
from crpipe.core.text import Silent
from crpipe.source.listing import list_range
from crpipe.source.stage import stage_range
from crpipe.split.outliers import consolidate_outliers
from crpipe.split.split import split_range

if TYPE_CHECKING:
    from collections.abc import Callable

    from crpipe.config.loading import Config


def make(root: Path, files: int) -> Config:
    """Write raw files, and bring them through list, stage, split and consolidate."""
    config = load_config(
        (),
        (
            f"source.uri=file://{root}/raw/{{range}}/*.parquet",
            f"source.reader={READER}",
            "train.workload=crpipe.workloads.muons:MuonGan",
            f"results={root}/results",
            f"runs={root}/runs",
            f"ranges.last={files - 1}",
            f"ranges.step={files}",
            "split.threshold=10000",
            "split.workers=1",
        ),
    )
    name = str(config.all_ranges()[0])
    folder = root / "raw" / name
    folder.mkdir(parents=True)
    for number in range(files):
        write_file(folder / f"{number:07d}.parquet", number)
    campaign = Campaign.open(config)
    list_range(Campaign.open(config), name, Silent())
    stage_range(Campaign.open(config), name, Silent())
    split_range(campaign, name, Silent())
    consolidate_outliers(campaign, Silent())
    config.paths().staged(name).unlink()
    return config


def measured(work: Callable[[], object], size: int) -> tuple[float, float]:
    """Return MB/s by the clock and of CPU time."""
    clock, cpu = time.perf_counter(), time.process_time()
    work()
    return size / 1e6 / (time.perf_counter() - clock), size / 1e6 / (time.process_time() - cpu)


def main() -> None:
    """Make the files, let both take turns, print medians."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--jobs", type=int, default=1, help="processes of the check")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        config = make(Path(root), args.files)
        paths = config.paths()
        shards = sorted(
            path for part in ("*.events.parquet", "*.muons.parquet") for path in paths.results.rglob(part)
        )
        size = sum(path.stat().st_size for path in shards)

        def prove() -> None:
            report = check(open_files(config), (), Silent(), processes=args.jobs)
            if report.errors or report.counts["bytes"] < size:
                raise SystemExit(f"not sound: {report}")

        contestants = {"sha256 alone": lambda: [sha256(path) for path in shards], "crpipe check": prove}
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in contestants}
        for _ in range(args.rounds):
            for name, work in contestants.items():
                found[name].append(measured(work, size))
        print(f"{len(shards)} files with {size / 1e6:.0f} MB, {args.rounds} rounds")
        print("| | MB/s | MB per CPU s |\n|---|---|---|")
        for name, rows in found.items():
            clock, cpu = (statistics.median(each) for each in zip(*rows, strict=True))
            print(f"| {name} | {clock:.0f} | {cpu:.0f} |")
        alone, ours = found.values()
        ratios = [own[1] / bare[1] for own, bare in zip(ours, alone, strict=True)]
        print(f"crpipe check / sha256: {compared('check of shards, CPU', 'sha256 alone', ratios)}")


if __name__ == "__main__":
    main()
