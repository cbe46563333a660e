"""Predictions for any raw files: a checkpoint and files in, one table out (``crpipe predict``)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch

from crpipe import __version__
from crpipe.core.causes import is_plain
from crpipe.core.errors import ConfigError
from crpipe.core.files import sha256
from crpipe.events.batch import Events
from crpipe.events.layout import SOURCE_FILE, SOURCE_ROW
from crpipe.inference.checkpoints import open_checkpoint, open_its_reader
from crpipe.inference.inputs import RawInput
from crpipe.inference.output.unique_keys import unique_keys
from crpipe.inference.parts import check_suffix, write_in_parts
from crpipe.inference.rows import nested_table, predict_block, table_of
from crpipe.split.readers import check_needs
from crpipe.train.ranks import find_device, use_threads
from crpipe.train.records.device_memory import LESS_AT_ONCE, named_out_of_memory
from crpipe.train.workload import UsesTables, WorkloadCall, WritesTable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from pathlib import Path

    from crpipe.core.progress import Progress
    from crpipe.events.layout import Layout
    from crpipe.events.tables import Tables
    from crpipe.inference.checkpoints import LoadedModel
    from crpipe.split.readers import Reader
    from crpipe.train.workload import Columns


@dataclass(frozen=True, slots=True)
class PredictJob:
    """One use of a checkpoint on files.

    checkpoint: a checkpoint, or a receipt that points to one. inputs: the files to read. out: the table to
    write, Parquet, CSV or ROOT. tables, table_keys: the campaign's copies of the side tables, their hashes.
    batch_events, budget_items: most events and items of one block. own_tables: side tables of these files in
    place of the campaign's, for the reader. columns: those of the table to write; empty: all. use_options: of
    the workload, those that no checkpoint depends on. named: what the checkpoint may name besides what
    crpipe includes.
    """

    checkpoint: Path
    inputs: tuple[Path, ...]
    out: Path
    tables: Tables
    table_keys: Mapping[str, Any]
    batch_events: int
    budget_items: int
    seed: int
    device: str
    threads: int
    own_tables: Mapping[str, Path] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    use_options: Mapping[str, Any] = field(default_factory=dict)
    named: Collection[str] = ()


@named_out_of_memory(LESS_AT_ONCE)
def predict_files(job: PredictJob, progress: Progress) -> int:
    """Write the predictions for all events of the files, in their order; return the number of events.

    The same command after a crash continues with the next part, and gives the same bytes. Raise FormatError
    when two events have the same key.
    """
    check_suffix(job.out)
    use_threads(job.threads)
    device = find_device(job.device)
    trained = open_checkpoint(job.checkpoint, device, job.tables, job.table_keys, job.use_options, job.named)
    reader = open_its_reader(trained)
    source = RawInput(job.inputs, reader, _reader_tables(job, trained, reader))
    total = source.count()

    def rows(number: int, block: Events) -> Iterator[pa.Table]:
        found = predict_events(trained, reader.layout, block, block_seed(job.seed, number), device)
        yield _selected(output_table(trained, reader.layout, block, found, job.inputs), job.columns)

    blocks = source.blocks(job.batch_events, job.budget_items)
    return write_in_parts(
        job.out,
        ["predict", *identity(job, trained, device)],
        unique_keys(blocks, reader.layout.key, job.inputs),
        rows,
        lambda done: progress.advance("predict", done, total),
        origin("predict", job, trained),
    )


def predict_events(
    trained: LoadedModel, layout: Layout, block: Events, seed: int, device: torch.device
) -> Events | Columns:
    """Predict for a block of events, the same for the same seed."""
    with torch.no_grad():
        return predict_block(trained, block, layout, torch.Generator(device).manual_seed(seed))


def identity(job: PredictJob, trained: LoadedModel, device: torch.device) -> list[Any]:
    """Give everything that the output depends on, as JSON values."""
    files = [[str(path), sha256(path)] for path in job.inputs]
    sizes = [job.batch_events, job.budget_items]
    tables = {**job.table_keys, **{name: sha256(path) for name, path in job.own_tables.items()}}
    shape = [job.out.suffix, *job.columns]
    use = [job.seed, device.type, dict(job.use_options)]
    return [trained.sha256, files, shape, sizes, use, tables]


def origin(verb: str, job: PredictJob, trained: LoadedModel) -> dict[str, Any]:
    """Say where predictions come from, for output files that hold it."""
    return {
        "crpipe": __version__,
        "command": verb,
        "workload": trained.name,
        "reader": trained.checkpoint["keys"]["source.reader"],
        "checkpoint": trained.path.name,
        "sha256": trained.sha256,
        "seed": job.seed,
        "files": len(job.inputs),
    }


def _reader_tables(job: PredictJob, trained: LoadedModel, reader: Reader) -> Tables:
    """Give the side tables of the reader: the campaign's, but for those of these very files.

    Raise ConfigError for one that the reader does not read, or that the model was trained with.
    """
    used = trained.workload.needs if isinstance(trained.workload, UsesTables) else ()
    for name, path in job.own_tables.items():
        if name not in reader.needs:
            raise ConfigError(
                f"--table {name}: not a side table of this reader, which reads "
                f"{', '.join(reader.needs) or 'none'}; leave it out"
            )
        if name in used:
            raise ConfigError(
                f"--table {name}: {trained.name} was trained with the campaign's {name}; leave it out, or "
                "train with the other one"
            )
        if not is_plain(path):
            raise ConfigError(f"--table {name}={path}: no such file")
    tables = {**job.tables, **job.own_tables}
    check_needs(str(trained.checkpoint["keys"]["source.reader"]), reader.needs, tables)
    return tables


def _selected(table: pa.Table, columns: tuple[str, ...]) -> pa.Table:
    missing = [name for name in columns if name not in table.column_names]
    if missing:
        raise ConfigError(
            f"--columns: no column {missing[0]}; the prediction has {', '.join(table.column_names)}"
        )
    return table.select(list(columns)) if columns else table


def output_table(
    trained: LoadedModel,
    layout: Layout,
    block: Events,
    prediction: Events | Columns,
    inputs: tuple[Path, ...],
) -> pa.Table:
    """Give the rows of a block in the workload's own format, or one row for each event.

    Predicted columns follow the file, the row in it and the layout's key columns; whole events are their
    event columns and one list column for each item column.
    """
    if isinstance(trained.workload, WritesTable):
        with WorkloadCall(trained.workload, "table", block):
            return trained.workload.table(block, prediction)
    if isinstance(prediction, Events):
        return nested_table(prediction, layout)
    known = {name: block.columns[name] for name in (SOURCE_ROW, *layout.key)}
    table = table_of(known, prediction)
    paths = np.array([str(path) for path in inputs], object)[block.columns[SOURCE_FILE]]
    return table.add_column(0, "path", pa.array(paths, pa.string()))


def block_seed(seed: int, number: int) -> int:
    """Derive the seed of one block."""
    return int(np.random.SeedSequence([seed, number]).generate_state(1, np.uint64)[0] >> 1)
