"""A trained model that predicts or generates: blocks of events in, checked predictions and their rows out."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa
import torch

from crpipe.core.errors import ConfigError, FormatError, PluginError
from crpipe.events.batch import Events, cuts, offsets
from crpipe.events.layout import MULTIPLICITY, SOURCE_FILE, SOURCE_ROW, Layout
from crpipe.inference.checkpoints import LoadedModel, open_its_reader, open_model
from crpipe.train.answers import check_generated, checked_columns
from crpipe.train.ranks import find_device, use_threads
from crpipe.train.workload import Columns, Generates, WorkloadCall, WritesTable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from crpipe.campaign.campaign import Campaign
    from crpipe.campaign.readers import Reader

PREDICTED, COLUMN = "predicted", "column"  # where the multiplicities of generated events come from


@dataclass(frozen=True)
class Predictor:
    """A loaded model and the device that it computes on; the same seed gives the same predictions."""

    trained: LoadedModel
    device: torch.device

    @classmethod
    def open(cls, campaign: Campaign, checkpoint: Path, device: str) -> Self:
        """Load a checkpoint, or the one that a receipt points to, with the campaign's options of its use.

        device: auto, cpu, cuda or mps. Raise what ``open_checkpoint`` raises.
        """
        use_threads(campaign.config.train.threads)
        where = find_device(device)
        return cls(open_model(campaign, checkpoint, where, campaign.config.use_options()), where)

    @cached_property
    def reader(self) -> Reader:
        """The reader of the files that it was trained on; raises what ``open_its_reader`` raises."""
        return open_its_reader(self.trained)

    @property
    def layout(self) -> Layout:
        """Columns of events and items, as the reader has them."""
        return self.reader.layout

    def predict(self, events: Events, seed: int, layout: Layout | None = None) -> Events | Columns:
        """Predict for a block of events; layout: where it is known, no reader has to be opened.

        Raise PluginError when the workload fails or gives something else.
        """
        workload, method = self.trained.workload, f"{self.trained.name}.predict"
        generator = torch.Generator(self.device).manual_seed(seed)
        with torch.no_grad(), WorkloadCall(workload, "predict", events):
            prediction = workload.predict(self.trained.model, events, generator)
        if isinstance(prediction, Events):
            check_generated(prediction, len(events), layout or self.layout, method)
            return prediction
        return checked_columns(prediction, len(events), method)

    def generate_given(self, events: Events, seed: int, layout: Layout) -> Events:
        """Generate events of the columns and sizes of a block; raise PluginError when the workload fails."""
        workload, method = self.trained.workload, f"{self.trained.name}.generate"
        assert isinstance(workload, Generates)
        generator = torch.Generator(self.device).manual_seed(seed)
        counts = np.asarray(events.multiplicity, np.int64)
        with torch.no_grad(), WorkloadCall(workload, "generate", events):
            generated = workload.generate(self.trained.model, events, counts, generator)
        check_generated(generated, len(events), layout, method)
        return generated

    def generate(
        self, block: Events, *, multiplicity: str, cap: int, budget_items: int, seed: int
    ) -> Iterator[tuple[Events, Events]]:
        """Yield what was asked for and what was generated, in runs of at most ``budget_items`` items.

        block: event columns without items, its known multiplicities in the column ``multiplicity``.
        multiplicity: ``predicted`` by the model, a number for every event, or else that of the block; never
        more than ``cap``. Raise ConfigError or FormatError for sizes that events of this layout cannot have.
        """
        trained, layout = self.trained, self.layout
        assert isinstance(trained.workload, Generates)
        check_size(layout, multiplicity, cap)
        generator = torch.Generator(self.device).manual_seed(seed)
        given = block.columns.pop(MULTIPLICITY, None)
        with torch.no_grad():
            counts = np.minimum(self._multiplicities(multiplicity, block, given, generator), cap)
            _check_counts(counts, layout, multiplicity, trained.name)
            for first, last in cuts(counts, len(counts), budget_items):
                part = block.part(first, last)
                with WorkloadCall(trained.workload, "generate", part):
                    events = trained.workload.generate(trained.model, part, counts[first:last], generator)
                check_generated(events, len(part), layout, f"{trained.name}.generate")
                yield part, events

    def _multiplicities(
        self, multiplicity: str, block: Events, given: NDArray[Any] | None, generator: torch.Generator
    ) -> NDArray[np.int64]:
        if multiplicity.isdecimal():
            return np.full(len(block), int(multiplicity), np.int64)
        if multiplicity == PREDICTED:
            workload = self.trained.workload
            assert isinstance(workload, Generates)
            with WorkloadCall(workload, "multiplicities", block):
                counts = workload.multiplicities(self.trained.model, block, generator)
            if np.shape(counts) != (len(block),):
                raise PluginError(f"{self.trained.name}.multiplicities: expected {len(block)} numbers")
            return np.asarray(counts, np.int64)
        if given is None:
            raise FormatError(
                f"--multiplicity {COLUMN}: the table has no column {MULTIPLICITY}; give the name of the "
                "column in place of `column`"
            )
        return np.asarray(given, np.int64)

    def table(self, block: Events, prediction: Events | Columns, inputs: Sequence[Path]) -> pa.Table:
        """Return the rows of a block in the workload's own format, or one row for each event.

        Predicted columns follow the file, the row in it and the layout's key columns; whole events are their
        event columns and one list column for each item column.
        """
        workload = self.trained.workload
        if isinstance(workload, WritesTable):
            with WorkloadCall(workload, "table", block):
                return workload.table(block, prediction)
        if isinstance(prediction, Events):
            return nested_table(prediction, self.layout)
        identity = {name: block.columns[name] for name in (SOURCE_ROW, *self.layout.key)}
        table = table_of(identity, prediction)
        paths = np.array([str(path) for path in inputs], object)[block.columns[SOURCE_FILE]]
        return table.add_column(0, "path", pa.array(paths, pa.string()))


# Checks of what is asked for.


def check_size(layout: Layout, multiplicity: str, cap: int) -> None:
    """Raise ConfigError for sizes that are none, and for another one than that of events of a fixed size."""
    for name, given in (("multiplicity", multiplicity), ("cap", str(cap))):
        if (given.isdecimal() or name == "cap") and not 0 <= int(given) < 1 << 63:
            raise ConfigError(f"{name} {given}: expected a number from 0, below 2^63")
        wrong = (
            given.isdecimal() and (int(given) < layout.fixed or name != "cap") and int(given) != layout.fixed
        )
        if layout.fixed and wrong:
            raise ConfigError(
                f"{name} {given}: each event has {layout.fixed} {layout.item}; leave it out, or give "
                f"{layout.fixed}{' or more' if name == 'cap' else ''}"
            )


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


# Predictions as tables: one row for each event, or for each item.


def predicted_columns(events: Events, prediction: Events | Columns) -> Columns:
    """Return the columns of a prediction.

    Of whole events: their multiplicity, and the event columns that are not the very arrays of ``events``.
    """
    if not isinstance(prediction, Events):
        return prediction
    columns = {
        name: values
        for name, values in prediction.columns.items()
        if values is not events.columns.get(name) and name not in (SOURCE_FILE, SOURCE_ROW)
    }
    return columns | {MULTIPLICITY: prediction.multiplicity}


def table_of(identity: Columns, predicted: Columns) -> pa.Table:
    """Join the columns that identify an event and those that are predicted; PluginError for one in both.

    A predicted column ``p`` [N, K] becomes the columns ``p_0``, ``p_1``, ….
    """
    predicted = _single(predicted)
    twice = sorted(identity.keys() & predicted.keys())
    if twice:
        raise PluginError(
            f"the workload predicts a column {twice[0]}, which is the name of a column that identifies the "
            f"event; call it predicted_{twice[0]}"
        )
    return pa.table({name: _array(values) for name, values in (identity | predicted).items()})


def _single(columns: Columns) -> Columns:
    """Divide columns of several numbers for each event; PluginError for a name that is there already."""
    single = {name: values for name, values in columns.items() if values.ndim == 1}
    for name, values in columns.items():
        if values.ndim > 1:
            parts = {f"{name}_{number}": part for number, part in enumerate(values.T)}
            if twice := sorted(parts.keys() & single.keys()):
                raise PluginError(
                    f"the workload predicts a column {twice[0]}, which is also the name of a column of "
                    f"{name} [{len(values)}, {len(parts)}]; call one of them otherwise"
                )
            single |= parts
    return single


def nested_table(events: Events, layout: Layout) -> pa.Table:
    """Return whole events: their event columns, and a list column ITEM_NAME for each item column."""
    starts = pa.array(events.offsets(), pa.int64())
    names = [name for name in events.columns if name not in (SOURCE_FILE, SOURCE_ROW)]
    items = {
        name: pa.LargeListArray.from_arrays(starts, values)
        for name, values in _item_columns(events, layout).items()
    }
    return pa.table({name: _array(events.columns[name]) for name in names} | items)


def item_rows(inputs: Events, events: Events, layout: Layout) -> pa.Table:
    """Return one row for each item of ``events``; an event without items has none.

    Columns: ``source_file`` and ``source_row`` of the event in the input (from 0), the event columns of the
    layout, and ITEM_NAME for each item column.
    """
    columns: Columns = {name: inputs.columns[name] for name in (SOURCE_FILE, SOURCE_ROW)}
    names = [field.name for field in layout.events if field.name in events.columns]
    columns |= {name: events.columns[name] for name in names}
    rows = {name: pa.array(np.repeat(values, events.multiplicity)) for name, values in columns.items()}
    return pa.table(rows | _item_columns(events, layout))


def _item_columns(events: Events, layout: Layout) -> dict[str, pa.Array]:
    return {
        f"{layout.item}_{field.name}": _array(events.items[:, column])
        for column, field in enumerate(layout.items)
    }


def _array(values: NDArray[Any]) -> pa.Array:
    if values.dtype == object and len(values) and isinstance(values[0], np.ndarray):
        # From the arrays' own type: that of lists which are all empty could not be found out.
        starts = offsets(np.fromiter(map(len, values), np.int64, len(values)))
        return pa.ListArray.from_arrays(pa.array(starts, pa.int32()), pa.array(np.concatenate(values)))
    return pa.array(np.ascontiguousarray(values))
