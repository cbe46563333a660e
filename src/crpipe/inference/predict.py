"""Predictions for any raw files: a checkpoint and files in, one table out (``crpipe predict``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch

from crpipe import __version__
from crpipe.campaign.readers import check_needs
from crpipe.core.causes import is_plain
from crpipe.core.errors import ConfigError, FormatError, PluginError
from crpipe.core.files import sha256
from crpipe.events.batch import Events, offsets
from crpipe.events.layout import MULTIPLICITY, SOURCE_FILE, SOURCE_ROW
from crpipe.inference.checkpoints import Predictor
from crpipe.inference.inputs import RawInput
from crpipe.inference.output_file import check_suffix, write_in_parts
from crpipe.train.step import LESS_AT_ONCE, named_out_of_memory
from crpipe.train.workload import UsesTables, WorkloadCall, WritesTable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from crpipe.campaign.campaign import Campaign
    from crpipe.campaign.ledger import Tables
    from crpipe.core.text import Progress
    from crpipe.events.layout import Layout
    from crpipe.inference.checkpoints import LoadedModel
    from crpipe.train.workload import Columns

# Refuses predictions of files in which two events have the same key: nobody could tell their rows apart.


def unique_keys(blocks: Iterable[Events], key: tuple[str, ...], paths: Sequence[Path]) -> Iterator[Events]:
    """Pass blocks on; at their end raise FormatError when two events have the same values of ``key``.

    Holds the key, the file and the row of every event: with a key of two 8-byte columns 24 MB for a million
    events, and about as much again while they are compared.
    """
    if not key:
        yield from blocks
        return
    names = (*key, SOURCE_FILE, SOURCE_ROW)
    held: list[list[NDArray[Any]]] = [[] for _ in names]
    for block in blocks:
        for name, parts in zip(names, held, strict=True):
            parts.append(block.columns[name].copy())  # a view would hold the whole block
        yield block
    if held[0]:
        _refuse_doubled(key, [_joined(parts) for parts in held], paths)


def _joined(parts: list[NDArray[Any]]) -> NDArray[Any]:
    """Join the parts of one column, and let go of them."""
    whole = np.concatenate(parts)
    parts.clear()
    return whole


def _refuse_doubled(key: tuple[str, ...], columns: list[NDArray[Any]], paths: Sequence[Path]) -> None:
    *values, files, rows = columns
    order = np.lexsort(values)  # stable: events of one key stay in their order
    same = np.ones(len(order) - 1, bool)
    for each in values:
        ordered = each[order]
        same &= ordered[1:] == ordered[:-1]
    doubled = np.flatnonzero(same)
    if not len(doubled):
        return
    at = doubled[np.argmin(order[doubled + 1])]  # the first event whose key was there before
    first, second = (int(place) for place in order[at : at + 2])
    named = ", ".join(f"{name} {each[second]}" for name, each in zip(key, values, strict=True))
    file, other = (paths[files[place]] for place in (second, first))
    what = "have the file made again" if file == other else f"leave one of them out of --in, such as {file}"
    raise FormatError(
        f"{file}: row {rows[second]}: the key {named} is also that of row {rows[first]} of {other}, and a "
        f"prediction has one row for each key; {what}, or give the events numbers of their own "
        f"({len(doubled)} of {len(order)} events repeat a key)"
    )


# Predictions as rows: one row for each event, whatever a workload predicts.


def predict_block(
    trained: LoadedModel, events: Events, layout: Layout, generator: torch.Generator
) -> Events | Columns:
    """Predict for a block of events; raise PluginError when the workload fails or gives something else."""
    with WorkloadCall(trained.workload, "predict", events):
        found = trained.workload.predict(trained.model, events, generator)
    if isinstance(found, Events):
        check_generated(found, len(events), layout, f"{trained.name}.predict")
        return found
    return checked_columns(found, len(events), f"{trained.name}.predict")


def check_generated(found: Events, count: int, layout: Layout, method: str) -> None:
    """Raise PluginError unless there are ``count`` events of the layout's width and size."""
    width = found.items.shape[1] if found.items.ndim > 1 else 0
    if len(found) != count or width != len(layout.items):
        raise PluginError(
            f"{method}: expected {count} events with {len(layout.items)} item columns, "
            f"found {len(found)} events with {width}"
        )
    if layout.fixed and (found.multiplicity != layout.fixed).any():
        other = found.multiplicity[found.multiplicity != layout.fixed][0]
        raise PluginError(f"{method}: expected {layout.fixed} {layout.item} in each event, found {other}")


def checked_columns(found: Any, count: int, method: str) -> Columns:
    """Return the columns as arrays [count]; raise PluginError when they are something else.

    A column of lists is an array of objects, each of them an array [any length] of the same type.
    """
    if not isinstance(found, dict):
        raise PluginError(f"{method}: expected Events or a dict of arrays, found {type(found).__name__}")
    columns = {str(name): np.asarray(values) for name, values in found.items()}
    for name, values in columns.items():
        if values.shape != (count,):
            raise PluginError(
                f"{method}: the column {name} has the shape {list(values.shape)}, expected [{count}]"
            )
        if values.dtype == object and count:
            _check_lists(values, f"{method}: the column {name}")
    return columns


def _check_lists(values: NDArray[Any], what: str) -> None:
    """Raise PluginError for a column that holds some arrays, unless all are flat and of one simple type."""
    kinds = {
        (str(each.dtype), each.ndim) if isinstance(each, np.ndarray) else (type(each).__name__, -1)
        for each in values
    }
    (name, dimensions), *others = sorted(kinds, key=lambda kind: (-kind[1], kind[0]))
    if dimensions < 0 or (dimensions == 1 and name != "object" and not others):
        return
    found = ", ".join(f"{name} {'[]' * max(dimensions, 0)}".rstrip() for name, dimensions in sorted(kinds))
    raise PluginError(
        f"{what} holds {found}; a column of lists needs one flat array for each event, all of the same type: "
        "an empty one is np.empty(0, np.float32); crpipe.events.batch.cut_lists makes such a column"
    )


def predicted_columns(events: Events, prediction: Events | Columns) -> Columns:
    """Return the columns of a prediction.

    Of whole events: their multiplicity, and the event columns that are not the very arrays of ``events``.
    """
    if not isinstance(prediction, Events):
        return prediction
    own = {
        name: values
        for name, values in prediction.columns.items()
        if values is not events.columns.get(name) and name not in (SOURCE_FILE, SOURCE_ROW)
    }
    return own | {MULTIPLICITY: prediction.multiplicity}


def table_of(known: Columns, predicted: Columns) -> pa.Table:
    """Join the columns that identify an event and those that are predicted; PluginError for one in both."""
    twice = sorted(known.keys() & predicted.keys())
    if twice:
        raise PluginError(
            f"the workload predicts a column {twice[0]}, which is the name of a column that identifies the "
            f"event; call it predicted_{twice[0]}"
        )
    return pa.table({name: _array(values) for name, values in (known | predicted).items()})


def nested_table(events: Events, layout: Layout) -> pa.Table:
    """Return whole events: their event columns, and a list column ITEM_NAME for each item column."""
    starts = pa.array(events.offsets(), pa.int64())
    names = [name for name in events.columns if name not in (SOURCE_FILE, SOURCE_ROW)]
    columns = {name: _array(events.columns[name]) for name in names}
    for place, column in enumerate(layout.items):
        values = pa.array(np.ascontiguousarray(events.items[:, place]))
        columns[f"{layout.item}_{column.name}"] = pa.LargeListArray.from_arrays(starts, values)
    return pa.table(columns)


def _array(values: NDArray[Any]) -> pa.Array:
    if values.dtype == object and len(values) and isinstance(values[0], np.ndarray):
        # From the arrays' own type: that of lists which are all empty could not be found out.
        starts = offsets(np.fromiter(map(len, values), np.int64, len(values)))
        return pa.ListArray.from_arrays(pa.array(starts, pa.int32()), pa.array(np.concatenate(values)))
    return pa.array(np.ascontiguousarray(values))


@named_out_of_memory(LESS_AT_ONCE)
def predict_files(
    campaign: Campaign,
    checkpoint: Path,
    inputs: Sequence[Path],
    out: Path,
    progress: Progress,
    *,
    device: str = "auto",
    seed: int = 1,
    tables: Tables | None = None,
    columns: Sequence[str] = (),
) -> int:
    """Write the predictions for all events of the files, in their order; return the number of events.

    checkpoint: a checkpoint, or a receipt that points to one. out: the table to write, Parquet, CSV or ROOT.
    tables: side tables of these files in place of the campaign's, for the reader. columns: those of the table
    to write; empty: all. The same call after a crash continues with the next part, and gives the same bytes.
    Raise FormatError when two events have the same key.
    """
    check_suffix(out)
    predictor = Predictor.open(campaign, checkpoint, device)
    replaced = tables or {}
    raw = RawInput(inputs, predictor.reader, _reader_tables(campaign, predictor, replaced))
    total = raw.count()

    def rows(number: int, block: Events) -> Iterator[pa.Table]:
        prediction = predict_events(predictor, block, block_seed(seed, number))
        yield _selected(output_table(predictor, block, prediction, inputs), columns)

    blocks = raw.blocks(campaign.config.evaluate.batch_events, campaign.config.load.budget_items)
    shape = [out.suffix, *columns]
    return write_in_parts(
        out,
        ["predict", *identity(campaign, predictor, inputs, shape, seed, replaced)],
        unique_keys(blocks, predictor.layout.key, inputs),
        rows,
        lambda done: progress.update("predict", done, total),
        origin("predict", predictor.trained, inputs, seed),
    )


def predict_events(predictor: Predictor, block: Events, seed: int) -> Events | Columns:
    """Predict for a block of events, the same for the same seed."""
    with torch.no_grad():
        generator = torch.Generator(predictor.device).manual_seed(seed)
        return predict_block(predictor.trained, block, predictor.layout, generator)


def identity(
    campaign: Campaign,
    predictor: Predictor,
    inputs: Sequence[Path],
    shape: Sequence[str],
    seed: int,
    tables: Tables | None = None,
) -> list[Any]:
    """List everything that the output depends on, as JSON values; shape: its suffix and its columns."""
    config = campaign.config
    files = [[str(path), sha256(path)] for path in inputs]
    sizes = [config.evaluate.batch_events, config.load.budget_items]
    use = [seed, predictor.device.type, config.use_options()]
    hashes = {**campaign.table_keys, **{name: sha256(path) for name, path in (tables or {}).items()}}
    return [predictor.trained.sha256, files, list(shape), sizes, use, hashes]


def origin(verb: str, trained: LoadedModel, inputs: Sequence[Path], seed: int) -> dict[str, Any]:
    """Name where predictions come from, for output files that hold it."""
    return {
        "crpipe": __version__,
        "command": verb,
        "workload": trained.name,
        "reader": trained.checkpoint["keys"]["source.reader"],
        "checkpoint": trained.path.name,
        "sha256": trained.sha256,
        "seed": seed,
        "files": len(inputs),
    }


def _reader_tables(campaign: Campaign, predictor: Predictor, replaced: Tables) -> Tables:
    """Choose the side tables of the reader: the campaign's, but for those of these very files.

    Raise ConfigError for one that the reader does not read, or that the model was trained with.
    """
    trained, needs = predictor.trained, predictor.reader.needs
    used = trained.workload.needs if isinstance(trained.workload, UsesTables) else ()
    for name, path in replaced.items():
        if name not in needs:
            raise ConfigError(
                f"--table {name}: not a side table of this reader, which reads "
                f"{', '.join(needs) or 'none'}; leave it out"
            )
        if name in used:
            raise ConfigError(
                f"--table {name}: {trained.name} was trained with the campaign's {name}; leave it out, or "
                "train with the other one"
            )
        if not is_plain(path):
            raise ConfigError(f"--table {name}={path}: no such file")
    tables = {**campaign.tables, **replaced}
    check_needs(str(trained.checkpoint["keys"]["source.reader"]), needs, tables)
    return tables


def _selected(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    missing = [name for name in columns if name not in table.column_names]
    if missing:
        raise ConfigError(
            f"--columns: no column {missing[0]}; the prediction has {', '.join(table.column_names)}"
        )
    return table.select(list(columns)) if columns else table


def output_table(
    predictor: Predictor, block: Events, prediction: Events | Columns, inputs: Sequence[Path]
) -> pa.Table:
    """Return the rows of a block in the workload's own format, or one row for each event.

    Predicted columns follow the file, the row in it and the layout's key columns; whole events are their
    event columns and one list column for each item column.
    """
    workload, layout = predictor.trained.workload, predictor.layout
    if isinstance(workload, WritesTable):
        with WorkloadCall(workload, "table", block):
            return workload.table(block, prediction)
    if isinstance(prediction, Events):
        return nested_table(prediction, layout)
    known = {name: block.columns[name] for name in (SOURCE_ROW, *layout.key)}
    table = table_of(known, prediction)
    paths = np.array([str(path) for path in inputs], object)[block.columns[SOURCE_FILE]]
    return table.add_column(0, "path", pa.array(paths, pa.string()))


def block_seed(seed: int, number: int) -> int:
    """Derive the seed of one block."""
    return int(np.random.SeedSequence([seed, number]).generate_state(1, np.uint64)[0] >> 1)
