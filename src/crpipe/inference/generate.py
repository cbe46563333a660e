"""Whole events for given event columns: a checkpoint and a table in, events out (``crpipe generate``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch

from crpipe.core.errors import ConfigError, ForeignError, FormatError
from crpipe.events.batch import Events, cuts
from crpipe.events.layout import MULTIPLICITY, SOURCE_FILE, SOURCE_ROW
from crpipe.inference.checkpoints import open_checkpoint, open_its_reader
from crpipe.inference.inputs import RawInput, Wanted, count_rows, event_rows
from crpipe.inference.output_file import check_suffix, write_in_parts
from crpipe.inference.predict import block_seed, check_generated, identity, origin, output_table
from crpipe.train.ranks import find_device, use_threads
from crpipe.train.step import LESS_AT_ONCE, named_out_of_memory
from crpipe.train.workload import Generates, WorkloadCall

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from crpipe.core.text import Progress
    from crpipe.events.layout import Layout
    from crpipe.inference.checkpoints import LoadedModel
    from crpipe.inference.predict import PredictJob

# Whole events as a flat table: one row for each item, with the columns of its event.


def item_rows(asked: Events, made: Events, layout: Layout) -> pa.Table:
    """Give one row for each item of ``made``; an event without items has none.

    Columns: ``source_file`` and ``source_row`` of the event in the input (from 0), the event columns of the
    layout, and ITEM_NAME for each item column.
    """
    columns: dict[str, NDArray[Any]] = {name: asked.columns[name] for name in (SOURCE_FILE, SOURCE_ROW)}
    columns |= {field.name: made.columns[field.name] for field in layout.events if field.name in made.columns}
    rows = {name: pa.array(np.repeat(values, made.multiplicity)) for name, values in columns.items()}
    for place, field in enumerate(layout.items):
        rows[f"{layout.item}_{field.name}"] = pa.array(np.ascontiguousarray(made.items[:, place]))
    return pa.table(rows)


PREDICTED, COLUMN = "predicted", "column"


@dataclass(frozen=True, slots=True)
class GenerateJob:
    """One generation.

    use: checkpoint, files and sizes, as for predictions. multiplicity: ``predicted`` by the model,
    ``column`` (multiplicity of the table, or the number of items in raw files), a number for every event, or
    the name of the table's column; never more than ``cap``. flat: write one row for each item.
    """

    use: PredictJob
    multiplicity: str
    cap: int
    flat: bool = False

    @property
    def count_column(self) -> str:
        """The column of a flat table that holds the multiplicities, if they are taken from there."""
        chosen = self.multiplicity
        return MULTIPLICITY if chosen in (PREDICTED, COLUMN) or chosen.isdigit() else chosen


@named_out_of_memory(LESS_AT_ONCE)
def generate_files(job: GenerateJob, progress: Progress) -> int:
    """Write one event for each row of the files, in their order; return the number of events.

    The same command after a crash continues with the next part, and gives the same bytes.
    """
    use = job.use
    check_suffix(use.out)
    use_threads(use.threads)
    device = find_device(use.device)
    trained = open_checkpoint(use.checkpoint, device, use.tables, use.table_keys, use.use_options, use.named)
    if not isinstance(trained.workload, Generates):
        raise ConfigError(f"{use.checkpoint}: {trained.name} generates no events; use `crpipe predict`")
    reader = open_its_reader(trained)
    check_size(reader.layout, job.multiplicity, job.cap)
    raw = RawInput(use.inputs, reader, use.tables)
    wanted = Wanted.of(reader.layout, trained.workload.event_columns, job.count_column)
    total = count_rows(use.inputs, raw, wanted)

    def rows(number: int, block: Events) -> Iterator[pa.Table]:
        made = generate_events(
            trained,
            reader.layout,
            block,
            multiplicity=job.multiplicity,
            cap=job.cap,
            budget_items=use.budget_items,
            seed=block_seed(use.seed, number),
            device=device,
        )
        for asked, events in made:
            if job.flat:
                yield item_rows(asked, events, reader.layout)
            else:
                yield output_table(trained, reader.layout, asked, events, use.inputs)

    return write_in_parts(
        use.out,
        ["generate", job.multiplicity, job.cap, job.flat, *identity(use, trained, device)],
        event_rows(use.inputs, wanted, raw, use.batch_events),
        rows,
        lambda done: progress.advance("generate", done, max(done, total)),
        origin("generate", use, trained),
    )


def check_size(layout: Layout, multiplicity: str, cap: int) -> None:
    """Raise ConfigError when events of a layout of fixed size are asked for with another one."""
    for name, asked in (("multiplicity", multiplicity), ("cap", str(cap))):
        wrong = (
            asked.isdigit() and (int(asked) < layout.fixed or name != "cap") and int(asked) != layout.fixed
        )
        if layout.fixed and wrong:
            raise ConfigError(
                f"{name} {asked}: each event has {layout.fixed} {layout.item}; leave it out, or give "
                f"{layout.fixed}{' or more' if name == 'cap' else ''}"
            )


def generate_events(
    trained: LoadedModel,
    layout: Layout,
    block: Events,
    *,
    multiplicity: str,
    cap: int,
    budget_items: int,
    seed: int,
    device: torch.device,
) -> Iterator[tuple[Events, Events]]:
    """Yield what was asked for and what was made, in runs of at most ``budget_items`` items.

    block: event columns without items, its known multiplicities in the column ``multiplicity``. Raise
    ConfigError or FormatError for sizes that events of this layout cannot have.
    """
    assert isinstance(trained.workload, Generates)
    check_size(layout, multiplicity, cap)
    generator = torch.Generator(device).manual_seed(seed)
    given = block.columns.pop(MULTIPLICITY, None)
    with torch.no_grad():
        counts = _multiplicity(multiplicity, cap, trained, block, given, generator)
        _check_counts(counts, layout, multiplicity, trained.name)
        for first, last in cuts(counts, len(counts), budget_items):
            asked = block.part(first, last)
            with WorkloadCall(trained.workload, "generate", asked):
                made = trained.workload.generate(trained.model, asked, counts[first:last], generator)
            check_generated(made, len(asked), layout, f"{trained.name}.generate")
            yield asked, made


def _check_counts(counts: NDArray[np.int64], layout: Layout, multiplicity: str, name: str) -> None:
    """Raise an error for the first event whose multiplicity the layout does not allow."""
    wrong = counts != layout.fixed if layout.fixed else counts < 0
    if not wrong.any():
        return
    row = int(np.argmax(wrong))
    expected = f"{layout.fixed} {layout.item} in each event" if layout.fixed else f"0 or more {layout.item}"
    if multiplicity == PREDICTED:
        raise ForeignError(f"{name}.multiplicities: expected {expected}, found {counts[row]}")
    raise FormatError(
        f"multiplicity {multiplicity}: row {row} of its block: expected {expected}, found {counts[row]}"
    )


def _multiplicity(
    multiplicity: str,
    cap: int,
    trained: LoadedModel,
    block: Events,
    given: NDArray[Any] | None,
    generator: torch.Generator,
) -> NDArray[np.int64]:
    if multiplicity == PREDICTED:
        assert isinstance(trained.workload, Generates)
        with WorkloadCall(trained.workload, "multiplicities", block):
            chosen = trained.workload.multiplicities(trained.model, block, generator)
        if np.shape(chosen) != (len(block),):
            raise ForeignError(f"{trained.name}.multiplicities: expected {len(block)} numbers")
    elif multiplicity.isdigit():
        chosen = np.full(len(block), int(multiplicity))
    else:
        if given is None:
            raise FormatError(
                f"--multiplicity {COLUMN}: the table has no column {MULTIPLICITY}; give the name of the "
                "column in place of `column`"
            )
        chosen = given
    return np.minimum(np.asarray(chosen, np.int64), cap)
