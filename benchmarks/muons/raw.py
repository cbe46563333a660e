"""Raw files like the real ones, and how fast they are scanned and split.

crpipe beside polars, duckdb and pyarrow (polars and duckdb: ``make bench`` installs
them). All work on the same files in the converter's schema, on one thread, in a fresh process each turn,
imports left out. ``scan`` counts events and muons; ``split`` does all that ``crpipe split`` does.
"""

from __future__ import annotations

import importlib
import importlib.util
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import campaigns
from benchmarks.runner import ONE_THREAD, Side, take_turns
from benchmarks.table import show
from crpipe.campaign.raw_files import SIZE_ONLY, Entry, StagedFile, Verification, write_staged
from crpipe.campaign.readers import ReaderChoice
from crpipe.core import checksums
from crpipe.core.files import read_json
from crpipe.workloads.muons.layout import nested_table

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.runner import Run
    from crpipe.config.loading import Config

RANGE = "0000000-0000999"
READER = "crpipe.workloads.muons.reading.parquet:Bundles"
DEPTHS = 100
PRIMARIES = 127  # in one file, as in the real ones
FLUSH = 10_000  # rows of a row group, as the converter writes them
Counts = tuple[int, int]


def write_files(folder: Path, count: int) -> Path:
    """Write so many raw files; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed in range(count):
        write_file(folder / f"{seed:07d}.parquet", seed)
    return folder


def write_file(path: Path, seed: int) -> None:
    """Write a file like the real ones: 18 % of events empty, median 3, few hold half of the muons."""
    random = np.random.default_rng(seed)
    size = random.lognormal(1.1, 1.3, PRIMARIES)
    size[random.random(PRIMARIES) < 5e-3] *= 300
    mean = np.outer(size, np.geomspace(2, 0.4, DEPTHS)).ravel()
    multiplicity = np.minimum(random.poisson(mean), 400_000)
    count, muons = len(mean), int(multiplicity.sum())
    columns: dict[str, Any] = {
        "primary_major_id": np.full(count, seed + 2**40),
        "primary_minor_id": np.repeat(np.arange(PRIMARIES), DEPTHS),
        "energy_gev": np.repeat(1e3 * size**1.2 * 10, DEPTHS),
        "zenith_rad": np.repeat(random.uniform(0, 1.2, PRIMARIES), DEPTHS),
        "mass_number": np.repeat(random.choice([1, 4, 14, 27, 56], PRIMARIES), DEPTHS),
        "depth_m": np.tile(np.linspace(1000, 2800, DEPTHS), PRIMARIES),
    }
    energy = random.lognormal(5, 1.3, (muons, 1))
    items = np.hstack([energy, random.normal(0, 15, (muons, 2))]).astype(np.float32)
    pq.write_table(nested_table(columns, multiplicity, items), path, row_group_size=FLUSH)


def scan_crpipe(folder: Path) -> Counts:
    """Decode every event, with all checks of the schema."""
    reader = ReaderChoice(READER).open()
    blocks = [
        (len(events), len(events.items)) for path in sorted(folder.iterdir()) for events in reader.rows(path)
    ]
    return sum(events for events, _ in blocks), sum(muons for _, muons in blocks)


def scan_pyarrow(folder: Path) -> Counts:
    """Read the muons' column row group by row group, take the lengths."""
    events = muons = 0
    for path in sorted(folder.iterdir()):
        with pq.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                table = file.read_row_group(group, columns=["muons"], use_threads=False)
                for chunk in table["muons"].chunks:
                    lengths = np.diff(chunk.offsets.to_numpy())
                    events += len(lengths)
                    muons += int(lengths.sum())
    return events, muons


def scan_polars(folder: Path) -> Counts:
    """Count with polars' lazy engine, streaming."""
    import polars  # noqa: PLC0415, ICN001 - only this contestant needs it

    lengths = polars.col("muons").list.len()
    query = polars.scan_parquet(folder / "*.parquet").select(lengths.sum(), lengths.len().alias("events"))
    row = query.collect(engine="streaming").row(0)
    return row[1], row[0]


def scan_duckdb(folder: Path) -> Counts:
    """Count with duckdb."""
    import duckdb  # noqa: PLC0415 - only this contestant needs it

    database = duckdb.connect(config={"threads": 1})
    query = f"SELECT count(*), sum(len(muons)) FROM '{folder}/*.parquet'"
    row = database.execute(query).fetchone()
    return row[0], int(row[1])


def staged_split(folder: Path) -> tuple[Config, Callable[[], Counts]]:
    """Stage raw files, linked in, because a split deletes them; return the split with one worker."""
    results = folder.parent / "results"
    shutil.rmtree(results, ignore_errors=True)
    config = campaigns.configured(
        {
            "results": results,
            "resources.split.cpus": 1,
            "split.outlier_above": 50_000,
            "ranges.last": 999,
            "source.reader": READER,
        }
    )
    raw = config.paths().raw(RANGE)
    raw.mkdir(parents=True)
    files = []
    for path in sorted(folder.iterdir()):
        (raw / path.name).hardlink_to(path)
        size = path.stat().st_size
        entry = Entry(path.name, path.as_uri(), size, None)
        files.append(StagedFile(entry, Verification(size, "", checksums.OWN, SIZE_ONLY)))
    write_staged(config.paths().staged(RANGE), files)
    campaign = campaigns.opened(config)

    def work() -> Counts:
        campaigns.split(campaign, RANGE)
        ledger = read_json(config.paths().ledger(RANGE))
        return ledger["events"]["listed"], ledger["items"]["listed"]

    return config, work


def split_crpipe(folder: Path) -> Counts:
    """Stage raw files and split them, ledger and all."""
    return staged_split(folder)[1]()


# Name: the work, and the package that it needs.
CONTESTANTS: dict[str, tuple[Callable[[Path], Counts], str]] = {
    "scan: crpipe": (scan_crpipe, "pyarrow"),
    "scan: pyarrow": (scan_pyarrow, "pyarrow"),
    "scan: polars": (scan_polars, "polars"),
    "scan: duckdb": (scan_duckdb, "duckdb"),
    "split: crpipe": (split_crpipe, "pyarrow"),
}


def side(name: str, folder: str) -> Callable[[], Counts]:
    """Prepare one contestant."""
    work, needs = CONTESTANTS[name]
    importlib.import_module(needs)
    np.asarray(pa.array([1]))  # Arrow's own late imports
    return lambda: work(Path(folder))


def scan(run: Run, *, files: int = 60, rounds: int = 5) -> None:
    """Compare scans and splits; ``files``: raw files of 12,700 events each."""
    folder = write_files(run.folder / "raw", files)
    size = sum(path.stat().st_size for path in folder.iterdir())
    reader = ReaderChoice(READER).open()
    totals = [reader.totals(path) for path in folder.iterdir()]
    expected = [sum(events for events, _ in totals), sum(muons for _, muons in totals)]
    present = [name for name, (_, needs) in CONTESTANTS.items() if importlib.util.find_spec(needs)]
    sides = [
        Side(name, f"{__name__}:side", {"name": name, "folder": folder}, environment=ONE_THREAD, fresh=True)
        for name in present
    ]
    take_turns(sides, rounds, warm=False)
    base = next((each.median("cpu") for each in sides if each.name == "scan: polars"), None)
    rows = []
    for each in sides:
        cpu, peak = each.median("cpu"), max(turn.peak for turn in each.turns)
        rows.append([each.name, f"{cpu:.2f}", size / cpu / 1e6, cpu / base if base else "", f"{peak:.0f}"])
        if any(
            turn.answer[0] != expected[0] or turn.answer[1] not in (expected[1], -1) for turn in each.turns
        ):
            print(f"{each.name}: {each.turns[0].answer} events and muons instead of {expected}")
    head = ["", "CPU s", "raw MB/s", "÷ polars' scan", "peak memory, MiB"]
    show(f"{files} files, {size / 1e6:.0f} MB: {expected[0]:,} events, {expected[1]:,} muons", head, rows)
    for name in CONTESTANTS.keys() - set(present):
        print(f"{name}: not run; no module {CONTESTANTS[name][1]}")
