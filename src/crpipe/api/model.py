"""The trained model of a checkpoint, for events and tables in memory."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from crpipe.core.causes import is_present
from crpipe.core.errors import ConfigError, DataError, FormatError
from crpipe.core.paths import LARGE_ROLES, ROLES
from crpipe.core.ranges import pick
from crpipe.events.batch import Events, concatenate
from crpipe.events.layout import MULTIPLICITY, Layout
from crpipe.inference.inputs import RawInput, RequiredColumns, column_rows
from crpipe.inference.predictor import COLUMN, PREDICTED, Predictor, nested_table, table_of
from crpipe.loading.loader import Loader
from crpipe.train.step import named_out_of_memory
from crpipe.train.workload import Columns, Generates

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping, Sequence

    import pyarrow as pa
    from torch import nn

    from crpipe.campaign.campaign import Campaign
    from crpipe.campaign.records import Tables

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

    def __init__(self, predictor: Predictor, tables: Tables) -> None:
        """Take a loaded checkpoint and the campaign's side tables."""
        trained = predictor.trained
        self._predictor = predictor
        self._tables = tables
        self.module = trained.model
        self.path = trained.path
        self.step = trained.checkpoint["counters"]["step"]
        self.workload = trained.name

    @property
    def layout(self) -> Layout:
        """Names, types, units and legal values of the columns of events and items."""
        return self._predictor.layout

    def read(self, *paths: str | Path, batch_events: int = 20_000) -> Iterator[Events]:
        """Yield the events of raw files, as the reader of the training reads them.

        Raise FormatError for a file in another schema, or with an impossible item.
        """
        raw = RawInput(tuple(map(Path, paths)), self._predictor.reader, self._tables)
        raw.count()  # before the first block, a missing file
        yield from raw.blocks(batch_events, _BUDGET_ITEMS)

    def predict(self, events: Events, *, seed: int = 1) -> Columns | Events:
        """Predict for N events: arrays [N] by name, with units in the names; or N whole events.

        events: a batch of ``CampaignRun.shards`` or of ``read``. A generator predicts an event: one that it
        makes for the columns of each given event. Raise PluginError when the workload fails.
        """
        with named_out_of_memory("give fewer events at once"):
            return self._predictor.predict(events, seed)

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
        multiplicity: ``"predicted"`` by the model, ``"column"`` (``multiplicity`` of the rows), the name of
            another column, or a number for every event; never more than ``cap``.
        seed: of everything random; the same seed gives the same events.

        Raise ConfigError for a workload that generates nothing, FormatError for a missing column or an
        impossible value.
        """
        workload = self._predictor.trained.workload
        if not isinstance(workload, Generates):
            raise ConfigError(f"{self.path}: {self.workload} generates no events; use model.predict")
        how, table = str(multiplicity), _record_batch(rows)
        in_table = how not in (PREDICTED, COLUMN) and not how.isdecimal()
        if in_table and how not in table.schema.names:
            raise ConfigError(
                f"multiplicity {how}: expected {PREDICTED}, {COLUMN}, a number or a column of the rows"
            )
        required = RequiredColumns.of(self.layout, workload.event_columns, how if in_table else MULTIPLICITY)
        pairs = self._predictor.generate(
            column_rows(table, required, "rows"),
            multiplicity=how,
            cap=cap,
            budget_items=_BUDGET_ITEMS,
            seed=seed,
        )
        with named_out_of_memory("give fewer rows at once, or a lower cap"):
            return concatenate([events.copy() for _, events in pairs])

    def frame(self, events: Events, prediction: Columns | None = None) -> pl.DataFrame:
        """Return one row for each event: its columns, and a list column ITEM_NAME for each item column.

        prediction: the arrays that ``predict`` gave for these events, put beside their columns in place of
            the items.
        """
        if prediction is None:
            table = nested_table(events, self.layout)
        else:
            table = table_of(events.columns, dict(prediction))
        frame = pl.from_arrow(table)
        assert isinstance(frame, pl.DataFrame)
        return frame


def _record_batch(rows: pl.DataFrame | Mapping[str, Any] | Events) -> pa.RecordBatch:
    if isinstance(rows, Events):
        rows = {**rows.columns, MULTIPLICITY: rows.multiplicity}
    try:
        frame = rows if isinstance(rows, pl.DataFrame) else pl.DataFrame(dict(rows))
    except (TypeError, ValueError, pl.exceptions.PolarsError) as error:
        raise FormatError(f"rows: not columns of one length by name ({error})") from error
    if frame.is_empty():
        raise FormatError("rows: none; give at least one")
    return frame.to_arrow().combine_chunks().to_batches()[0]


# The events of a campaign as batches of numpy arrays.


MOST_ITEMS = 4_000_000  # of a batch of outliers


class EventBatches:
    """Batches of events of one part, shuffled; each ``for`` loop begins from the start.

    events, items: how many there are in an epoch. layout: names, types and units of the columns.
    """

    events: int
    items: int
    layout: Layout

    def __init__(self, loader: Loader) -> None:
        """Take a loader whose shards are checked."""
        self._loader = loader
        self.events = loader.events
        self.items = loader.items
        self.layout = loader.layout

    def __len__(self) -> int:
        """Count the batches of one epoch."""
        return self._loader.batches_per_epoch

    def __iter__(self) -> Generator[Events]:
        """Yield the batches of all epochs; raise ShardError for a damaged shard."""
        with contextlib.closing(self._loader.batches()) as stream:
            for events, _ in stream:
                yield events


def open_batches(
    campaign: Campaign, part: str, ranges: Sequence[str], *, batch_events: int, epochs: int, seed: int
) -> EventBatches:
    """Open the shards of some ranges, or of all that are split."""
    if part not in ROLES:
        raise ConfigError(f"part {part!r}: unknown; legal: {', '.join(ROLES)}")
    for name, value, least in (("batch_events", batch_events, 1), ("epochs", epochs, 1), ("seed", seed, 0)):
        if value < least:
            raise ConfigError(f"{name}: {value}; it is at least {least}")
    named = [ranges] if isinstance(ranges, str) else ranges
    selected = [name if "-" in name else pick(name, campaign.ranges, "range") for name in named]
    folders = list(_folders(campaign, part, selected))
    if not folders:
        raise DataError(f"{campaign.paths.results}: no range is split yet; run `crpipe run` first")
    most = MOST_ITEMS if part in LARGE_ROLES else None  # thousands of them may not fit into memory
    return EventBatches(
        Loader(folders, part, batch_events=batch_events, seed=(seed,), epochs=epochs, max_items=most)
    )


def _folders(campaign: Campaign, part: str, selected: Sequence[str]) -> Generator[Path]:
    for name in selected or campaign.ranges:
        outliers = part in LARGE_ROLES
        manifest = campaign.paths.outlier_manifest(name) if outliers else campaign.paths.shard_manifest(name)
        if is_present(manifest):
            yield manifest.parent
        elif selected:
            raise DataError(f"{manifest}: missing; run `crpipe split {name}` first")
