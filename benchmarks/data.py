"""How fast raw files are scanned and split: crpipe beside polars, duckdb, pyarrow and plain decompression.

One command: ``python benchmarks/data.py`` (polars and duckdb come with ``pip install -c constraints.txt -e
.[bench]``). All work on the same generated files in the converter's schema, on one thread, in a fresh
process each; the contestants take turns, and the table shows the median of their CPU time, imports left
out, and the largest memory.
``scan`` counts events and muons; ``split`` does all that ``crpipe split`` does.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from peak import peak_mib

from crpipe.campaign.campaign import Campaign
from crpipe.campaign.readers import ReaderChoice
from crpipe.config.loading import load_config
from crpipe.core.files import read_json
from crpipe.core.text import Silent
from crpipe.split.split import split_range
from crpipe.workloads.muons.layout import nested_table

if TYPE_CHECKING:
    from collections.abc import Callable

    from crpipe.config.loading import Config

RANGE = "0000000-0000999"
READER = "crpipe.workloads.muons.reading.parquet:Bundles"
DEPTHS = 100
PRIMARIES = 127  # in one file, as in the real ones
FLUSH = 10_000  # rows of a row group, as the converter writes them
ONE_THREAD = {"POLARS_MAX_THREADS": "1", "OMP_NUM_THREADS": "1", "ARROW_IO_THREADS": "1"}
CODECS = {"SNAPPY": "snappy", "ZSTD": "zstd"}
Counts = tuple[int, int]


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


def floor(folder: Path) -> Counts:
    """Read and decompress every page of the muons' column, and nothing else: no reader can be faster."""
    events = 0
    for path in sorted(folder.iterdir()):
        data = memoryview(path.read_bytes())
        footer = pq.read_metadata(path)
        events += footer.num_rows
        for group in range(footer.num_row_groups):
            column = footer.row_group(group).column(footer.num_columns - 1)
            codec = pa.Codec(CODECS[column.compression])
            start = column.dictionary_page_offset or column.data_page_offset
            end = start + column.total_compressed_size
            while start < end:
                (plain, packed), start = page_header(data, start)
                codec.decompress(data[start : start + packed], plain)
                start += packed
    return events, -1


def page_header(data: memoryview, at: int) -> tuple[tuple[int, int], int]:
    """Read a page's header (Thrift compact protocol): its sizes (plain, compressed), and where it ends."""
    sizes: dict[int, int] = {}
    number = depth = 0
    outer: list[int] = []
    while True:
        head, at = data[at], at + 1
        if head == 0:
            if not depth:
                return (sizes[2], sizes[3]), at
            depth, number = depth - 1, outer.pop()
            continue
        number += head >> 4
        kind = head & 15
        if kind == 12:  # a structure inside
            outer.append(number)
            depth, number = depth + 1, 0
        elif kind == 8:  # bytes: statistics
            length, at = varint(data, at)
            at += length
        elif kind > 2:  # an integer; 1 and 2 are booleans, which have no value
            value, at = varint(data, at)
            if not depth:
                sizes[number] = value >> 1  # zigzag of a positive number


def varint(data: memoryview, at: int) -> tuple[int, int]:
    """Read a variable-length integer: value, and where it ends."""
    value = shift = 0
    while True:
        byte, at = data[at], at + 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at


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
    """Let polars' lazy engine count, streaming."""
    import polars  # noqa: PLC0415, ICN001 - only this contestant needs it

    lengths = polars.col("muons").list.len()
    query = polars.scan_parquet(folder / "*.parquet").select(lengths.sum(), lengths.len().alias("events"))
    row = query.collect(engine="streaming").row(0)
    return row[1], row[0]


def scan_duckdb(folder: Path) -> Counts:
    """Let duckdb count."""
    import duckdb  # noqa: PLC0415 - only this contestant needs it

    database = duckdb.connect(config={"threads": 1})
    query = f"SELECT count(*), sum(len(muons)) FROM '{folder}/*.parquet'"
    row = database.execute(query).fetchone()
    return row[0], int(row[1])


def staged_split(folder: Path) -> Config:
    """Stage raw files for a split with one worker; they are linked in, because a split deletes them."""
    results = folder.parent / "results"
    shutil.rmtree(results, ignore_errors=True)
    overrides = (f"results={results}", "split.workers=1", "split.threshold=50000", "ranges.last=999")
    config = load_config((), (*overrides, f"source.reader={READER}"))
    raw = config.paths().raw(RANGE)
    raw.mkdir(parents=True)
    rows = []
    for path in sorted(folder.iterdir()):
        (raw / path.name).hardlink_to(path)
        row = {"path": path.name, "size": path.stat().st_size, "state": "staged"}
        rows.append(row | dict.fromkeys(("uri", "reason", "checksum", "algorithm", "verified"), ""))
    pq.write_table(pa.Table.from_pylist(rows), config.paths().staged(RANGE))
    return config


def split_staged(config: Config) -> Counts:
    """Split, ledger and all."""
    split_range(Campaign.open(config), RANGE, Silent())
    ledger = read_json(config.paths().ledger(RANGE))
    return ledger["events"]["listed"], ledger["items"]["listed"]


def split_crpipe(folder: Path) -> Counts:
    """Stage raw files and split them."""
    return split_staged(staged_split(folder))


@dataclass
class Contestant:
    """One row of the table; ``needs`` names a package that may be missing."""

    name: str
    work: Callable[[Path], Counts]
    needs: str = "pyarrow"
    cpu: list[float] = field(default_factory=list)
    mib: list[float] = field(default_factory=list)


CONTESTANTS = [
    Contestant("read and decompress", floor),
    Contestant("scan: crpipe", scan_crpipe),
    Contestant("scan: pyarrow", scan_pyarrow),
    Contestant("scan: polars", scan_polars, "polars"),
    Contestant("scan: duckdb", scan_duckdb, "duckdb"),
    Contestant("split: crpipe", split_crpipe),
]


def work_alone(index: int, folder: Path) -> None:
    """Do one contestant's work in this process and print what it took as JSON."""
    contestant = CONTESTANTS[index]
    if contestant.needs != "pyarrow":
        importlib.import_module(contestant.needs)
    np.asarray(pa.array([1]))  # Arrow's own late imports
    started = time.process_time()
    counts = contestant.work(folder)
    cpu = time.process_time() - started
    print(json.dumps({"counts": counts, "cpu": cpu, "mib": peak_mib()}))


def take_turn(index: int, folder: Path, expected: Counts) -> None:
    """Run a contestant in a process of its own; it must find every event and muon."""
    command = [sys.executable, __file__, "--alone", str(index), str(folder)]
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | ONE_THREAD)
    result = json.loads(run.stdout)
    contestant = CONTESTANTS[index]
    contestant.cpu.append(result["cpu"])
    contestant.mib.append(result["mib"])
    if result["counts"][0] != expected[0] or result["counts"][1] not in (expected[1], -1):
        print(f"{contestant.name}: found {result['counts']} events and muons instead of {expected}")


def table(present: list[Contestant], size: int) -> None:
    """Print medians, and each against polars' scan."""
    base = next((statistics.median(each.cpu) for each in present if each.name == "scan: polars"), None)
    print(f"{'':22}{'CPU s':>8}{'raw MB/s':>10}{'MiB':>7}{'polars scans':>14}")
    for each in present:
        cpu = statistics.median(each.cpu)
        ratio = f"{cpu / base:.2f}" if base else "-"
        print(f"{each.name:22}{cpu:8.2f}{size / cpu / 1e6:10.0f}{max(each.mib):7.0f}{ratio:>14}")


def main() -> None:
    """Generate, measure in turns, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, default=60, help="raw files of 12,700 events each")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each contestant")
    parser.add_argument("--folder", type=Path, help="where to generate; default: a temporary directory")
    parser.add_argument("--alone", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.alone:
        work_alone(int(options.alone[0]), Path(options.alone[1]))
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name) / "raw"
        folder.mkdir()
        for seed in range(options.files):
            write_file(folder / f"{seed:07d}.parquet", seed)
        size = sum(path.stat().st_size for path in folder.iterdir())
        reader = ReaderChoice(READER).open()
        totals = [reader.totals(path) for path in folder.iterdir()]
        expected = sum(events for events, _ in totals), sum(muons for _, muons in totals)
        print(f"{options.files} files, {size / 1e6:.0f} MB: {expected[0]} events, {expected[1]} muons")
        present = [each for each in CONTESTANTS if importlib.util.find_spec(each.needs)]
        for each in CONTESTANTS:
            if each not in present:
                print(f"{each.name}: skipped; no module {each.needs}")
        for _, each in itertools.product(range(options.rounds), present):
            take_turn(CONTESTANTS.index(each), folder, expected)
    table(present, size)


if __name__ == "__main__":
    main()
