"""The trained model of a checkpoint, for events and tables in memory."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from crpipe.core.errors import ConfigError, FormatError
from crpipe.events.batch import Events, concatenate
from crpipe.events.layout import MULTIPLICITY
from crpipe.inference.checkpoints import open_its_reader
from crpipe.inference.generate import COLUMN, PREDICTED, generate_events
from crpipe.inference.inputs import RawInput, Wanted, column_rows
from crpipe.inference.predict import predict_events
from crpipe.inference.rows import nested_table, table_of
from crpipe.train.records.device_memory import named_out_of_memory
from crpipe.train.workload import Generates

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa
    import torch
    from torch import nn

    from crpipe.events.layout import Layout
    from crpipe.events.tables import Tables
    from crpipe.inference.checkpoints import LoadedModel
    from crpipe.split.readers import Reader
    from crpipe.train.workload import Columns

_BUDGET_ITEMS = 4_000_000
_CAP = 1_000_000


class TrainedModel:
    """The model of one checkpoint, its averaged weights in place, ready to use.

    module: the torch module, in evaluation mode. path: the checkpoint. step: of the whole chain.
    workload: its name, as module:Name. layout: the columns of events and items.
    """

    module: nn.Module
    path: Path
    step: int
    workload: str

    def __init__(self, trained: LoadedModel, tables: Tables, device: torch.device) -> None:
        """Take a loaded checkpoint and the campaign's side tables."""
        self._trained = trained
        self._tables = tables
        self._device = device
        self.module = trained.model
        self.path = trained.path
        self.step = trained.checkpoint["counters"]["step"]
        self.workload = trained.name

    @cached_property
    def _reader(self) -> Reader:
        return open_its_reader(self._trained)

    @property
    def layout(self) -> Layout:
        """Names, types, units and legal values of the columns of events and items."""
        return self._reader.layout

    def read(self, *paths: str | Path, batch_events: int = 20_000) -> Iterator[Events]:
        """Yield the events of raw files, as the reader of the training reads them.

        Raise FormatError for a file in another schema, or with an impossible item.
        """
        raw = RawInput(tuple(map(Path, paths)), self._reader, self._tables)
        raw.count()  # before the first block, a missing file
        yield from raw.blocks(batch_events, _BUDGET_ITEMS)

    def predict(self, events: Events, *, seed: int = 1) -> Columns | Events:
        """Predict for N events: arrays [N] by name, with units in the names; or N whole events.

        events: a batch of ``CampaignRun.shards`` or of ``read``. A generator predicts an event: one that it
        makes for the columns of each given event. Raise ForeignError when the workload fails.
        """
        with named_out_of_memory("give fewer events at once"):
            return predict_events(self._trained, self.layout, events, seed, self._device)

    def generate(
        self,
        rows: pl.DataFrame | Mapping[str, Any] | Events,
        *,
        multiplicity: int | str = PREDICTED,
        cap: int = _CAP,
        seed: int = 1,
    ) -> Events:
        """Make one event for each row, in their order; return N events with M items [M, K].

        rows: the event columns that the workload reads, as a polars frame, as arrays [N] (or numbers) by
            name, or a batch of events, whose items are not looked at. A column that only identifies an event
            may be missing.
        multiplicity: ``"predicted"`` by the model, ``"column"`` (of the rows), or a number for every event;
            never more than ``cap``.
        seed: of everything random; the same seed gives the same events.

        Raise ConfigError for a workload that generates nothing, FormatError for a missing column or an
        impossible value.
        """
        workload = self._trained.workload
        if not isinstance(workload, Generates):
            raise ConfigError(f"{self.path}: {self.workload} generates no events; use model.predict")
        how = str(multiplicity)
        if how not in (PREDICTED, COLUMN) and not how.isdigit():
            raise ConfigError(f"multiplicity {how}: expected {PREDICTED}, {COLUMN} or a number")
        wanted = Wanted.of(self.layout, workload.event_columns)
        made = generate_events(
            self._trained,
            self.layout,
            column_rows(_record_batch(rows), wanted, "rows"),
            multiplicity=how,
            cap=cap,
            budget_items=_BUDGET_ITEMS,
            seed=seed,
            device=self._device,
        )
        with named_out_of_memory("give fewer rows at once, or a lower cap"):
            return concatenate([events.copy() for _, events in made])

    def frame(self, events: Events, prediction: Columns | None = None) -> pl.DataFrame:
        """Give one row for each event: its columns, and a list column ITEM_NAME for each item column.

        prediction: what ``predict`` gave for these events; its columns are put beside those of the events,
            in place of the items.
        """
        if prediction is None:
            table = nested_table(events, self.layout)
        else:
            table = table_of(events.columns, dict(prediction))
        found = pl.from_arrow(table)
        assert isinstance(found, pl.DataFrame)
        return found


def _record_batch(rows: pl.DataFrame | Mapping[str, Any] | Events) -> pa.RecordBatch:
    if isinstance(rows, Events):
        rows = {**rows.columns, MULTIPLICITY: rows.multiplicity}
    frame = rows if isinstance(rows, pl.DataFrame) else pl.DataFrame(dict(rows))
    if frame.is_empty():
        raise FormatError("rows: none; give at least one")
    return frame.to_arrow().combine_chunks().to_batches()[0]
