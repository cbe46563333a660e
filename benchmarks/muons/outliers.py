"""Memory of each verb where events have a million muons."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq

from benchmarks.campaigns import FIRST, run_verb
from benchmarks.muons.events import generate
from benchmarks.muons.raw import FLUSH, READER
from benchmarks.steppers import MUON_GAN
from benchmarks.table import show
from crpipe.events.batch import Events
from crpipe.workloads.muons.layout import nested_table

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.runner import Run

VERBS = (
    ("list", FIRST),
    ("stage", FIRST),
    ("split", FIRST),
    ("consolidate",),
    ("train", FIRST),
    ("train", "outliers"),
)


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


def outliers(
    run: Run,
    *,
    events: int = 100_000,
    outliers: int = 6,
    muons: int = 1_000_000,
    hidden: int = 64,
    budget: int = 200_000,
    all_muons: bool = False,
) -> None:
    """Run the verbs of a campaign, each in a process of its own, on ordinary events and large outliers.

    muons: in each outlier. budget: muons in a micro-batch. all_muons: train on whole bundles.
    """
    settings = {
        "run": "outliers",
        "source.uri": "raw/{range}/*.parquet",
        "source.reader": READER,
        "train.workload": MUON_GAN,
        "ranges.last": 999,
        "train.device": "cpu",
        "split.workers": 1,
        "split.validation_fraction": 0,
        "train.epochs": 1,
        "model.hidden": hidden,
        "load.budget_items": budget,
        "model.max_muons": 0 if all_muons else 32,
    }
    write_range(run.folder / "raw" / FIRST, events, outliers, muons)
    rows = []
    for verb in VERBS:
        mib, seconds = run_verb(settings, list(verb), run.folder)
        rows.append([" ".join(verb), f"{mib:.0f}", f"{seconds:.1f}"])
    show("largest resident set of each process", ["", "MiB", "s"], rows)
