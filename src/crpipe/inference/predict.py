"""`crpipe predict` and `crpipe generate`: a checkpoint and files in, one table of rows or events out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from crpipe import __version__
from crpipe.campaign.readers import check_needs
from crpipe.core.causes import is_plain
from crpipe.core.errors import ConfigError
from crpipe.core.files import sha256
from crpipe.events.layout import MULTIPLICITY
from crpipe.inference.checkpoints import use_key
from crpipe.inference.inputs import RawInput, RequiredColumns, count_rows, event_rows, unique_keys
from crpipe.inference.output_file import check_suffix, write_in_parts
from crpipe.inference.predictor import COLUMN, PREDICTED, Predictor, check_size, item_rows
from crpipe.train.step import LESS_AT_ONCE, named_out_of_memory
from crpipe.train.workload import Generates, UsesTables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    import pyarrow as pa

    from crpipe.campaign.campaign import Campaign
    from crpipe.campaign.records import Tables
    from crpipe.core.text import Progress
    from crpipe.events.batch import Events


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRequest:
    """What both verbs are asked for; the same request after a crash continues, and gives the same bytes.

    checkpoint: a checkpoint, or a receipt that points to one. out: the table to write, Parquet, CSV or ROOT.
    device: auto, cpu, cuda or mps. seed: of everything random.
    """

    campaign: Campaign
    checkpoint: Path
    inputs: Sequence[Path]
    out: Path
    device: str = "auto"
    seed: int = 1

    def open_predictor(self) -> Predictor:
        """Load the model; raise ConfigError first for a table that cannot be written, or is read as well."""
        check_suffix(self.out)
        if self.out.resolve() in {path.resolve() for path in self.inputs}:
            raise ConfigError(
                f"--out {self.out}: also named with --in, and would be replaced; name another file"
            )
        return Predictor.open(self.campaign, self.checkpoint, self.device)

    def write(
        self,
        predictor: Predictor,
        settings: Sequence[Any],
        blocks: Iterable[Events],
        rows: Callable[[Events, int], Iterable[pa.Table]],
        advance: Callable[[int], None],
    ) -> int:
        """Write ``rows(block, seed of the block)`` of all blocks; return the number of events.

        settings: everything that the rows depend on; first the verb.
        """
        trained = predictor.trained
        origin = {
            "crpipe": __version__,
            "command": settings[0],
            "workload": trained.name,
            "reader": trained.checkpoint["keys"]["source.reader"],
            "checkpoint": trained.path.name,
            "sha256": trained.sha256,
            "seed": self.seed,
            "files": len(self.inputs),
        }
        return write_in_parts(
            self.out,
            list(settings),
            blocks,
            lambda number, block: rows(block, block_seed(self.seed, number)),
            advance,
            origin,
        )

    def identity(
        self, predictor: Predictor, columns: Sequence[str] = (), tables: Tables | None = None
    ) -> list[Any]:
        """List what the rows of both verbs depend on, as JSON values."""
        config, trained = self.campaign.config, predictor.trained
        files = [[str(path), sha256(path)] for path in self.inputs]
        sizes = [config.evaluate.batch_events, config.load.max_items]
        use = [self.seed, predictor.device.type, use_key(config.use_options())]
        hashes = {**self.campaign.table_keys, **{name: sha256(path) for name, path in (tables or {}).items()}}
        return [trained.sha256, files, [self.out.suffix, *columns], sizes, use, hashes]


def block_seed(seed: int, number: int) -> int:
    """Derive the seed of one block."""
    return int(np.random.SeedSequence([seed, number]).generate_state(1, np.uint64)[0] >> 1)


@named_out_of_memory(LESS_AT_ONCE)
def predict_files(
    request: TableRequest, progress: Progress, *, tables: Tables | None = None, columns: Sequence[str] = ()
) -> int:
    """Write the predictions for all events of the files, in their order; return the number of events.

    tables: side tables of these files in place of the campaign's, for the reader. columns: those of the table
    to write; empty: all. Raise FormatError when two events have the same key.
    """
    predictor, config, inputs = request.open_predictor(), request.campaign.config, request.inputs
    replaced = tables or {}
    raw = RawInput(inputs, predictor.reader, _reader_tables(request.campaign, predictor, replaced))
    total = raw.count()

    def rows(block: Events, seed: int) -> Iterator[pa.Table]:
        prediction = predictor.predict(block, seed)
        yield _selected(predictor.table(block, prediction, inputs), columns)

    blocks = raw.blocks(config.evaluate.batch_events, config.load.max_items)
    return request.write(
        predictor,
        ["predict", *request.identity(predictor, columns, replaced)],
        unique_keys(blocks, predictor.layout.key, inputs),
        rows,
        lambda done: progress.update("predict", done, total),
    )


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
    return table.select([*dict.fromkeys(columns)]) if columns else table


@named_out_of_memory(LESS_AT_ONCE)
def generate_files(
    request: TableRequest, progress: Progress, *, multiplicity: str, cap: int, flat: bool = False
) -> int:
    """Write one event for each row of the files, in their order; return the number of events.

    multiplicity: ``predicted`` by the model, ``column`` (multiplicity of the table, or the number of items in
    raw files), a number for every event, or the name of the table's column; never more than ``cap``. flat:
    write one row for each item.
    """
    predictor, campaign, inputs = request.open_predictor(), request.campaign, request.inputs
    workload, layout, config = predictor.trained.workload, predictor.layout, campaign.config
    if not isinstance(workload, Generates):
        raise ConfigError(
            f"{request.checkpoint}: {predictor.trained.name} generates no events; use `crpipe predict`"
        )
    check_size(layout, multiplicity, cap)
    raw = RawInput(inputs, predictor.reader, campaign.tables)
    in_table = multiplicity not in (PREDICTED, COLUMN) and not multiplicity.isdecimal()
    required = RequiredColumns.of(layout, workload.event_columns, multiplicity if in_table else MULTIPLICITY)
    total = count_rows(inputs, raw, required)

    def rows(block: Events, seed: int) -> Iterator[pa.Table]:
        budget = config.load.max_items
        for asked, events in predictor.generate(
            block, multiplicity=multiplicity, cap=cap, budget_items=budget, seed=seed
        ):
            if flat:
                yield item_rows(asked, events, layout)
            else:
                yield predictor.table(asked, events, inputs)

    return request.write(
        predictor,
        ["generate", multiplicity, cap, flat, *request.identity(predictor)],
        event_rows(inputs, required, raw, config.evaluate.batch_events),
        rows,
        lambda done: progress.update("generate", done, max(done, total)),
    )
