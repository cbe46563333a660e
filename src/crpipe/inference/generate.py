"""Whole events for given event columns: a checkpoint and a table in, events out (``crpipe generate``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch

from crpipe.core.errors import ConfigError, FormatError, PluginError
from crpipe.events.batch import Events, cuts
from crpipe.events.layout import MULTIPLICITY, SOURCE_FILE, SOURCE_ROW
from crpipe.inference.checkpoints import Predictor
from crpipe.inference.inputs import RawInput, RequiredColumns, count_rows, event_rows
from crpipe.inference.output_file import check_suffix, write_in_parts
from crpipe.inference.predict import block_seed, check_generated, identity, origin, output_table
from crpipe.train.step import LESS_AT_ONCE, named_out_of_memory
from crpipe.train.workload import Generates, WorkloadCall

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from crpipe.campaign.campaign import Campaign
    from crpipe.core.text import Progress
    from crpipe.events.layout import Layout
    from crpipe.inference.checkpoints import LoadedModel

# Whole events as a flat table: one row for each item, with the columns of its event.


def item_rows(asked: Events, made: Events, layout: Layout) -> pa.Table:
    """Return one row for each item of ``made``; an event without items has none.

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


@named_out_of_memory(LESS_AT_ONCE)
def generate_files(
    campaign: Campaign,
    checkpoint: Path,
    inputs: Sequence[Path],
    out: Path,
    progress: Progress,
    *,
    multiplicity: str,
    cap: int,
    flat: bool = False,
    device: str = "auto",
    seed: int = 1,
) -> int:
    """Write one event for each row of the files, in their order; return the number of events.

    checkpoint: a checkpoint, or a receipt that points to one. multiplicity: ``predicted`` by the model,
    ``column`` (multiplicity of the table, or the number of items in raw files), a number for every event, or
    the name of the table's column; never more than ``cap``. flat: write one row for each item. The same call
    after a crash continues with the next part, and gives the same bytes.
    """
    check_suffix(out)
    config = campaign.config
    predictor = Predictor.open(campaign, checkpoint, device)
    workload, layout = predictor.trained.workload, predictor.layout
    if not isinstance(workload, Generates):
        raise ConfigError(f"{checkpoint}: {predictor.trained.name} generates no events; use `crpipe predict`")
    check_size(layout, multiplicity, cap)
    raw = RawInput(inputs, predictor.reader, campaign.tables)
    wanted = RequiredColumns.of(layout, workload.event_columns, _count_column(multiplicity))
    total = count_rows(inputs, raw, wanted)

    def rows(number: int, block: Events) -> Iterator[pa.Table]:
        made = generate_events(
            predictor,
            block,
            multiplicity=multiplicity,
            cap=cap,
            budget_items=config.load.budget_items,
            seed=block_seed(seed, number),
        )
        for asked, events in made:
            if flat:
                yield item_rows(asked, events, layout)
            else:
                yield output_table(predictor, asked, events, inputs)

    return write_in_parts(
        out,
        ["generate", multiplicity, cap, flat, *identity(campaign, predictor, inputs, [out.suffix], seed)],
        event_rows(inputs, wanted, raw, config.evaluate.batch_events),
        rows,
        lambda done: progress.update("generate", done, max(done, total)),
        origin("generate", predictor.trained, inputs, seed),
    )


def _count_column(multiplicity: str) -> str:
    """Name the column of a flat table that holds the multiplicities, if they are taken from there."""
    usual = multiplicity in (PREDICTED, COLUMN) or multiplicity.isdigit()
    return MULTIPLICITY if usual else multiplicity


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
    predictor: Predictor, block: Events, *, multiplicity: str, cap: int, budget_items: int, seed: int
) -> Iterator[tuple[Events, Events]]:
    """Yield what was asked for and what was made, in runs of at most ``budget_items`` items.

    block: event columns without items, its known multiplicities in the column ``multiplicity``. Raise
    ConfigError or FormatError for sizes that events of this layout cannot have.
    """
    trained, layout = predictor.trained, predictor.layout
    assert isinstance(trained.workload, Generates)
    check_size(layout, multiplicity, cap)
    generator = torch.Generator(predictor.device).manual_seed(seed)
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
        raise PluginError(f"{name}.multiplicities: expected {expected}, found {counts[row]}")
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
            raise PluginError(f"{trained.name}.multiplicities: expected {len(block)} numbers")
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
