"""What training on the largest outliers takes in memory, beside training on ordinary events.

One command: ``python benchmarks/outliers.py``. A range is generated in which a few events hold a million
muons each; the verbs of a campaign then run on it, each in a process of its own, and the table shows the
largest resident set of each. ``--all-muons`` trains on whole bundles instead of windows.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from events import generate
from peak import run_verb

from crpipe.events.batch import Events
from crpipe.workloads.muons.layout import nested_table

RANGE = "0000000-0000999"
VERBS = (
    ("list", RANGE),
    ("stage", RANGE),
    ("split", RANGE),
    ("consolidate",),
    ("train", RANGE),
    ("train", "outliers"),
)
FLUSH = 10_000  # rows of a row group, as the converter writes them


def write_range(folder: Path, ordinary: int, outliers: int, muons: int) -> None:
    """Write one file of ordinary events, and one in which the outliers are among small events."""
    folder.mkdir(parents=True)
    write_file(folder / "0.parquet", generate(ordinary))
    few = generate(10 * outliers)
    random = np.random.default_rng(2)
    multiplicity = np.minimum(few.multiplicity, 100)
    multiplicity[5::10] = muons
    items = random.lognormal(3.0, 1.0, (int(multiplicity.sum()), 3)).astype(np.float32)
    write_file(folder / "1.parquet", Events(few.columns, multiplicity, items))


def write_file(path: Path, events: Events) -> None:
    """Write events as the converter does; values that these primaries must not have are replaced."""
    columns: dict[str, Any] = dict(events.columns)
    columns["zenith_rad"] = columns["zenith_rad"] % 1.5
    columns["mass_number"] = 1 + columns["mass_number"] % 55
    pq.write_table(nested_table(columns, events.multiplicity, events.items), path, row_group_size=FLUSH)


def main() -> None:
    """Generate, run the verbs in their order, print a line for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", type=int, default=100_000, help="ordinary events")
    parser.add_argument("--outliers", type=int, default=6, help="events of so many muons")
    parser.add_argument("--muons", type=int, default=1_000_000, help="muons in each of these")
    parser.add_argument("--hidden", type=int, default=64, help="width of the networks")
    parser.add_argument("--budget", type=int, default=200_000, help="muons in a micro-batch")
    parser.add_argument("--all-muons", action="store_true", help="train on whole bundles")
    given = parser.parse_args()
    settings = [
        "run=outliers",
        "source.uri=raw/{range}/*.parquet",
        "source.reader=crpipe.workloads.muons.reading.parquet:Bundles",
        "train.workload=crpipe.workloads.muons:MuonGan",
        "ranges.last=999",
        "train.device=cpu",
        "split.workers=1",
        "split.validation_fraction=0",
        "train.epochs=1",
        f"model.hidden={given.hidden}",
        f"load.budget_items={given.budget}",
        f"model.max_muons={0 if given.all_muons else 32}",
    ]
    with tempfile.TemporaryDirectory() as name:
        write_range(Path(name) / "raw" / RANGE, given.events, given.outliers, given.muons)
        for verb in VERBS:
            mib, seconds = run_verb(settings, list(verb), Path(name))
            print(f"{' '.join(verb):24}{mib:8.0f} MiB{seconds:8.1f} s", flush=True)


if __name__ == "__main__":
    main()
