"""The readers that the loader is measured beside: each writes files in its own format and reads an epoch.

Imports stand inside the functions: whoever lacks one of these packages still measures the others.
"""

# ruff: noqa: PLC0415 - see above
from __future__ import annotations

import contextlib
import importlib
import sys
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from benchmarks import steppers
from benchmarks.muons.events import BATCH, PRIMARY, Batch, collate, primaries, samples
from crpipe.events.batch import Events, offsets
from crpipe.loading.loader import Loader

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ROW_GROUP = 65_536
PARQUET = {
    "use_dictionary": False,
    "write_statistics": False,
    "use_byte_stream_split": True,
    "compression": "zstd",
    "compression_level": 1,
    "max_rows_per_page": 1 << 30,
    "write_page_checksum": True,
}


def write_npy(folder: Path, events: Events) -> None:
    """Plain arrays."""
    np.save(folder / "muons.npy", events.items)
    np.save(folder / "primaries.npy", primaries(events))
    np.save(folder / "multiplicity.npy", events.multiplicity)


def copy_arrays(folder: Path) -> Iterator[Batch]:
    """Copy the same bytes out of memory-mapped arrays, batch by batch, in order: nothing can be faster."""
    muons, prims, multiplicity = (
        np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("muons", "primaries", "multiplicity")
    )
    ends = offsets(multiplicity)
    for start in range(0, len(multiplicity), BATCH):
        stop = min(start + BATCH, len(multiplicity))
        parts = prims[start:stop], multiplicity[start:stop].astype(np.int64), muons[ends[start] : ends[stop]]
        yield Batch(*(torch.from_numpy(np.array(part)) for part in parts))


def write_shard(folder: Path, events: Events) -> None:
    """One shard, shuffled events in row groups, and its manifest."""
    source = np.arange(len(events), dtype=np.uint32)
    columns = {**events.columns, "source_file": source, "source_row": source}
    whole = Events(columns, events.multiplicity, events.items)
    parts = (whole.part(low, min(low + ROW_GROUP, len(whole))) for low in range(0, len(whole), ROW_GROUP))
    steppers.write_shard(folder, parts)


def read_crpipe(folder: Path) -> Iterator[Batch]:
    """Read with the loader of this project, shuffled, checksums verified, primaries' ids included."""
    loader = Loader(folder, "train", batch_events=BATCH, seed=(1,), epochs=1)
    with contextlib.closing(loader.batches()) as stream:
        for events, _ in stream:
            parts = primaries(events), events.multiplicity.astype(np.int64), events.items
            yield Batch(*map(torch.from_numpy, parts))


def read_row_groups(folder: Path) -> Iterator[Batch]:
    """Read the shard by pyarrow alone, in order, checksums verified: no loader of it can be faster."""
    shards = [next(folder.glob(f"*.{part}.parquet")) for part in ("events", "muons")]
    files = [pq.ParquetFile(path, page_checksum_verification=True) for path in shards]
    for group in range(files[0].metadata.num_row_groups):
        events, muons = (file.read_row_group(group, use_threads=False) for file in files)
        prims = np.stack([events[field.name].to_numpy() for field in PRIMARY], axis=1)
        items = np.stack([column.to_numpy() for column in muons.columns], axis=1)
        counts = events["multiplicity"].to_numpy().astype(np.int64)
        yield Batch(*map(torch.from_numpy, (prims, counts, items)))


def _nested(events: Events, low: int, high: int) -> pa.Table:
    ends = events.offsets()[low : high + 1]
    values = events.items[ends[0] : ends[-1]]
    inner = pa.ListArray.from_arrays(np.arange(0, 3 * len(values) + 1, 3, np.int32), pa.array(values.ravel()))
    muons = pa.ListArray.from_arrays((ends - ends[0]).astype(np.int32), inner)
    prims = primaries(events)[low:high]
    return pa.table(
        {
            "primary": pa.ListArray.from_arrays(np.arange(0, prims.size + 1, 4, np.int32), prims.ravel()),
            "muons": muons,
        }
    )


def write_raw(folder: Path, events: Events) -> None:
    """Files as the simulation's converter writes them: lists of lists."""
    for number, low in enumerate(range(0, len(events), 12_500)):
        pq.write_table(_nested(events, low, min(low + 12_500, len(events))), folder / f"{number:04d}.parquet")


def read_cr_muons(clone: Path, folder: Path, *, per_event: bool = False) -> Iterator[Batch]:
    """Read raw files with the earlier system's own code."""
    from torch.utils.data import DataLoader

    sys.path.insert(0, str(clone / "training"))
    try:
        theirs = importlib.import_module("hf_dataloader")
    finally:
        sys.path.pop(0)
    files = sorted(str(path) for path in folder.glob("*.parquet"))
    if per_event:
        dataset = theirs.get_hf_dataset(files, file_format="parquet")
        stream = DataLoader(dataset, batch_size=BATCH, collate_fn=theirs.hf_collate_fn)
    else:
        dataset = theirs.get_parquet_batch_dataset(files, batch_size=BATCH)
        stream = DataLoader(dataset, batch_size=None)
    for muons, _, prims, counts in stream:
        yield Batch(prims.float(), counts.long(), muons)


def write_lists(folder: Path, events: Events) -> None:
    """Parquet with one flat list of muon values per event: what general loaders read best."""
    for number, low in enumerate(range(0, len(events), ROW_GROUP)):
        part = events.part(low, min(low + ROW_GROUP, len(events)))
        ends = (part.offsets() * 3).astype(np.int32)
        muons = pa.ListArray.from_arrays(ends, pa.array(part.items.ravel()))
        primary = pa.FixedSizeListArray.from_arrays(pa.array(primaries(part).ravel()), 4)
        table = pa.table({"primary": primary, "muons": muons})
        pq.write_table(table, folder / f"{number:03d}.parquet", row_group_size=10_000, **PARQUET)


def read_datasets_arrow(folder: Path) -> Iterator[Batch]:
    """Hugging Face datasets at its best: files in random order, Arrow tables through a buffer of one file.

    The tables become tensors by hand, with what this project knows about Arrow; nothing verifies the pages.
    """
    import datasets

    datasets.disable_progress_bars()
    files = sorted(map(str, folder.glob("*.parquet")))
    stream = datasets.load_dataset("parquet", data_files=files, split="train", streaming=True)
    for batch in stream.shuffle(seed=1, buffer_size=ROW_GROUP).with_format("arrow").iter(batch_size=BATCH):
        lists = batch["muons"].combine_chunks()
        prims = batch["primary"].combine_chunks().flatten().to_numpy().reshape(-1, 4)
        muons = lists.flatten().to_numpy().reshape(-1, 3)
        counts = np.diff(lists.offsets.to_numpy()).astype(np.int64) // 3
        yield Batch(torch.from_numpy(prims.copy()), torch.from_numpy(counts), torch.from_numpy(muons.copy()))


def write_litdata(folder: Path, events: Events) -> None:
    """LitData's chunks of 64 MB."""
    from litdata.streaming.writer import BinaryWriter

    writer = BinaryWriter(str(folder), chunk_bytes=1 << 26)
    for row, (primary, muons) in enumerate(samples(events)):
        writer[row] = (primary, muons.ravel())
    writer.done()
    writer.merge()


def read_litdata(folder: Path) -> Iterator[Batch]:
    """LitData: its own streaming loader, shuffled."""
    from litdata import StreamingDataLoader, StreamingDataset

    dataset = StreamingDataset(str(folder), shuffle=True, seed=1)
    yield from StreamingDataLoader(dataset, batch_size=BATCH, collate_fn=collate)
