"""How fast trained models are used, and the memory that it takes.

The first call makes a campaign through the verbs; later ones with the same ``--folder`` use it again. The
contestants take turns, each in a process of one thread that has done the same once before, so that imports
do not count.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from benchmarks import campaigns
from benchmarks.muons.raw import READER, write_file
from benchmarks.runner import ONE_THREAD, Side, take_turns
from benchmarks.steppers import MUON_GAN
from benchmarks.table import show
from crpipe.campaign.readers import ReaderChoice

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.runner import Run

    Work = Callable[[], int]

RANGE_FILES = 28
FILE_EVENTS = 12_700
PEER = "cr_muons"
SETTINGS: dict[str, object] = {
    "source.uri": "raw/{range}/*.parquet",
    "source.reader": READER,
    "train.workload": MUON_GAN,
    "ranges.size": RANGE_FILES,
    "split.outlier_above": 300,
    "split.validation_fraction": 0.8,
    "resources.split.cpus": 1,
    "load.batch_size": 512,
    "model.multiplicity_learning_rate": 0.01,
    "train.device": "cpu",
    "train.threads": 1,
    "train.passes_per_link": 1,
    "train.validate_every": 0,
}
SIZES = (10_000, 100_000, 1_000_000)
SECTIONS = {"evaluate": ("evaluate",), "predict": ("predict",), "generate": ("generate", PEER)}
EVENTS = {"evaluate": 40_000, "predict": 100_000, "generate": 100_000}


def make(folder: Path, files: int) -> list[str]:
    """Run a campaign's verbs as far as the first link, unless it is there; return its ranges."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = SETTINGS | {"ranges.last": files - 1}
    config = campaigns.configured(settings)
    names = list(map(str, config.all_ranges()))
    if (folder / config.paths().receipt(names[0])).exists():
        return names
    for name in names:
        target = folder / "raw" / name
        target.mkdir(parents=True, exist_ok=True)
        for number in range(*(int(text) + end for end, text in enumerate(name.split("-")))):
            write_file(target / f"{number:07d}.parquet", number)
        for verb in ("list", "stage", "split"):
            campaigns.run_verb(settings, [verb, name], folder)
    campaigns.run_verb(settings, ["train", names[0]], folder, **ONE_THREAD)
    return names


def raw_files(size: int) -> list[Path]:
    """Name raw files of about so many events."""
    return sorted(Path("raw").rglob("*.parquet"))[: max(1, round(size / FILE_EVENTS))]


def table_of(size: int) -> pa.Table:
    """Make a flat table of primaries with multiplicities, in the order that the earlier system wants."""
    reader = ReaderChoice(READER).open()
    blocks = [events.copy() for path in raw_files(size) for events in reader.rows(path)]
    names = ("energy_gev", "zenith_rad", "mass_number", "time", "depth_m")
    columns = {
        name: np.concatenate([block.columns.get(name, np.zeros(len(block), np.float32)) for block in blocks])
        for name in names
    }
    columns["multiplicity"] = np.concatenate([block.multiplicity for block in blocks]).astype(np.int64)
    return pa.table(columns)


def verb(words: list[str], settings: dict[str, object]) -> Callable[[], None]:
    """Prepare a verb in this process."""
    options = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    return lambda: campaigns.call([*options, *words])


def evaluation(words: list[str], settings: dict[str, object]) -> Work:
    """Prepare an evaluation; its work returns the number of events that were judged."""
    work = verb(words, settings)

    def judged() -> int:
        work()
        newest = max(Path("runs").rglob("predictions.parquet"), key=lambda path: path.stat().st_mtime)
        return int(pq.read_metadata(newest).num_rows)

    return judged


def earlier(clone: Path, path: Path, out: Path) -> Work:
    """Prepare the earlier system's batch inference of a table, with weights as it starts with."""
    sys.path.insert(0, str(clone))
    from utils import batch_infer  # type: ignore[import-not-found]  # noqa: PLC0415 - of the clone

    words = ["batch_infer", "--input", str(path), "--output", str(out), "--counts-column", "multiplicity"]
    words += ["--device", "cpu", "--denormalize", "--model-checkpoint", "", "--counts-mode", "column"]

    def work() -> int:
        with mock.patch.object(sys, "argv", words):
            batch_infer.main()
        return int(pq.read_metadata(path).num_rows)

    return work


def side(name: str, folder: str, scratch: str, files: int, size: int, clone: str) -> Work:
    """Prepare one contestant."""
    torch.set_num_threads(1)
    os.chdir(folder)
    own = Path(scratch)
    own.mkdir(parents=True, exist_ok=True)
    settings = SETTINGS | {"ranges.last": files - 1, "evaluate.events": size}
    config = campaigns.configured(settings)
    ranges = list(map(str, config.all_ranges()))
    receipt = config.paths().receipt(ranges[0])
    if name == "evaluate":
        words = [name, ranges[-1], "--checkpoint", str(receipt)]
        return evaluation(words, settings)
    inputs, out, more = raw_files(size), own / "out.parquet", ["--device", "cpu"]
    if name != "predict":
        inputs = [own / "primaries.parquet"]
        pq.write_table(table_of(size), inputs[0])
        more += ["--flat", "--multiplicity", "column"]
    if name == PEER:
        return earlier(Path(clone), inputs[0], own / "theirs.parquet")
    given = [word for path in inputs for word in ("--in", str(path))]
    work = verb([name, "--checkpoint", str(receipt), *given, "--out", str(out), *more], settings)
    rows = sum(pq.read_metadata(path).num_rows for path in inputs)
    return lambda: (out.unlink(missing_ok=True), work(), rows)[-1]


def verbs(
    run: Run,
    *,
    only: tuple[str, ...] = (*SECTIONS, "memory"),
    rounds: int = 5,
    files: int = 112,
    size: int = 0,
) -> None:
    """Measure verbs; ``memory``: their peaks for growing numbers of events.

    files: raw files, 28 in each range. size: about so many events, in place of each verb's.
    """
    run.known(only, (*SECTIONS, "memory"))
    clone, folder = run.peer(PEER), run.folder / "muons"
    make(folder, files)

    def sides_of(names: tuple[str, ...], events: int) -> list[Side]:
        given = {"folder": folder, "files": files, "size": events, "clone": str(clone or "")}
        places = {
            name: folder / "scratch" / name.replace(" ", "-") for name in names if name != PEER or clone
        }
        return [
            Side(name, f"{__name__}:side", given | {"name": name, "scratch": place}, environment=ONE_THREAD)
            for name, place in places.items()
        ]

    for name in (each for each in SECTIONS if each in only):
        sides = sides_of(SECTIONS[name], size or EVENTS[name])
        take_turns(sides, rounds)
        rows: list[list[object]] = []
        for each in sides:
            count, peak = each.turns[0].answer, f"{max(turn.mib for turn in each.turns):.0f}"
            faster = run.faster(f"{name}, CPU", sides[0], each, by="cpu") if each is not sides[0] else ""
            cost = 1e6 * each.median("cpu") / count
            rows.append([each.name, count, count / each.median(), cost, peak, faster])
        head = ["", "events", "events/s", "CPU µs an event", "peak MiB above", "crpipe is faster by"]
        show(f"{name}, {rounds} rounds", head, rows)
    for events in SIZES if "memory" in only else ():
        peaks = []
        for each in sides_of(tuple(SECTIONS), size or events):
            take_turns([each], 1)
            peaks.append(f"{each.turns[0].mib:.0f} ({each.turns[0].answer:,})")
        show(f"memory, {size or events:,} events", ["", *SECTIONS], [["MiB above", *peaks]])
