"""Generate bundles: a checkpoint and a table of primaries in, rows of the converter's schema out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from crpipe.core.errors import ConfigError, FormatError
from crpipe.core.files import digest, remove_tree, replacing, sha256
from crpipe.events.batch import Events
from crpipe.events.layout import MULTIPLICITY
from crpipe.inference.checkpoints import open_checkpoint
from crpipe.workloads.muons.layout import PRIMARY, PRIMARY_IDS, RAW_MUONS, RAW_PRIMARY
from crpipe.workloads.muons.models.sampling import BundleGenerator
from crpipe.workloads.muons.nested_rows import SCHEMA, WRITER, nested_table

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from crpipe.core.progress import Progress
    from crpipe.inference.checkpoints import LoadedModel

EVENTS_AT_ONCE = 20_000
MUONS_AT_ONCE = 4_000_000


def generate_file(
    checkpoint: Path,
    primaries: Path,
    out: Path,
    *,
    multiplicity: str,
    cap: int,
    seed: int,
    progress: Progress,
) -> None:
    """Write ``out`` in the converter's schema, one row for each primary, in its order.

    multiplicity: ``predicted`` by the model, ``column`` (of the table, or the number of muons in its rows),
        or a number for every event; never more than ``cap``.
    Blocks are written to ``<out>.parts`` as they are done and joined at the end: the same command after a
    crash goes on with the next block, and the result is the same. Raise FormatError when the table holds no
    primaries, CheckpointError when the checkpoint is damaged or generates nothing.
    """
    trained = open_checkpoint(checkpoint)
    if not isinstance(trained.workload, BundleGenerator):
        raise ConfigError(f"{checkpoint}: {trained.checkpoint['keys']['train.workload']} generates no events")
    choice = _Multiplicity(multiplicity, cap)
    total = _count_rows(primaries)
    identity = digest([trained.sha256, sha256(primaries), multiplicity, cap, seed])
    parts = out.with_name(f"{out.name}.parts") / identity
    done = 0
    names = []
    for number, (events, given) in enumerate(_read_primaries(primaries)):
        names.append(parts / f"part-{number:06d}.parquet")
        if not names[-1].exists():
            generator = torch.Generator().manual_seed(_block_seed(seed, number))
            _write_block(names[-1], trained, events, choice, given, generator)
        done += len(events)
        progress.advance("generate", done, total)
    _join(names, out)
    remove_tree(parts.parent)


class _Multiplicity:
    """Where the number of muons of each event comes from."""

    def __init__(self, choice: str, cap: int) -> None:
        if choice not in {"predicted", "column"} and not choice.isdigit():
            raise ConfigError(f"--multiplicity {choice}: expected predicted, column or a number")
        self.choice, self.cap = choice, cap

    def of(
        self,
        trained: LoadedModel,
        events: Events,
        given: NDArray[np.int64] | None,
        generator: torch.Generator,
    ) -> NDArray[np.int64]:
        if self.choice == "predicted":
            assert isinstance(trained.workload, BundleGenerator)
            chosen = trained.workload.multiplicities(trained.model, events, generator)
        elif self.choice == "column":
            if given is None:
                raise FormatError(
                    f"--multiplicity column: the table has neither a column {MULTIPLICITY} nor {RAW_MUONS}"
                )
            chosen = given
        else:
            chosen = np.full(len(events), int(self.choice))
        return np.minimum(chosen, self.cap)


def _write_block(
    path: Path,
    trained: LoadedModel,
    events: Events,
    choice: _Multiplicity,
    given: NDArray[np.int64] | None,
    generator: torch.Generator,
) -> None:
    assert isinstance(trained.workload, BundleGenerator)
    counts = choice.of(trained, events, given, generator)
    with replacing(path) as part, pq.ParquetWriter(part, SCHEMA, **WRITER) as writer:
        for start, end in _runs(counts):
            some = events.part(start, end)
            made = trained.workload.predict(trained.model, some, generator, counts[start:end])
            writer.write_table(nested_table(made.columns, made.multiplicity, made.items))


def _runs(counts: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Cut a block into runs of at most MUONS_AT_ONCE muons; a larger event stands alone."""
    start, held = 0, 0
    for index, count in enumerate(counts.tolist()):
        if held and held + count > MUONS_AT_ONCE:
            yield start, index
            start, held = index, 0
        held += count
    if len(counts):
        yield start, len(counts)


def _count_rows(path: Path) -> int:
    try:
        rows: int = pq.read_metadata(path).num_rows
    except (OSError, pa.ArrowInvalid) as error:
        raise FormatError(f"--primaries {path}: not a Parquet file ({error})") from error
    return rows


def _read_primaries(path: Path) -> Iterator[tuple[Events, NDArray[np.int64] | None]]:
    """Yield blocks of conditions, and the multiplicities that stand beside them, if any."""
    row = 0
    with pq.ParquetFile(path, pre_buffer=False) as file:
        names = set(file.schema_arrow.names)
        wanted = [RAW_PRIMARY] if RAW_PRIMARY in names else [field.name for field in PRIMARY]
        missing = sorted(set(wanted) - names)
        if missing:
            raise FormatError(
                f"{path}: no column {RAW_PRIMARY}, and no {', '.join(missing)}; it has {', '.join(names)}"
            )
        wanted += [name for name in (*(field.name for field in PRIMARY_IDS), MULTIPLICITY) if name in names]
        wanted += [RAW_MUONS] if RAW_MUONS in names and MULTIPLICITY not in names else []
        for batch in file.iter_batches(EVENTS_AT_ONCE, columns=wanted):
            yield _conditions(path, batch, row), _given(batch)
            row += len(batch)


def _conditions(path: Path, batch: pa.RecordBatch, row: int) -> Events:
    names = batch.schema.names
    if RAW_PRIMARY in names:
        lists = batch.column(RAW_PRIMARY)
        wrong = np.flatnonzero(np.diff(lists.offsets.to_numpy()) != len(PRIMARY))
        if len(wrong):
            raise FormatError(
                f"{path}: column {RAW_PRIMARY}, row {row + wrong[0]}: expected {len(PRIMARY)} values"
            )
        values = lists.flatten().to_numpy(zero_copy_only=False)
        columns: dict[str, NDArray[Any]] = {
            field.name: values.reshape(-1, len(PRIMARY))[:, i].astype(np.float32)
            for i, field in enumerate(PRIMARY)
        }
    else:
        columns = {field.name: batch.column(field.name).to_numpy().astype(np.float32) for field in PRIMARY}
    for field in PRIMARY:
        legal = (columns[field.name] >= field.low) & (columns[field.name] <= field.high)
        if not legal.all():
            bad = int(np.flatnonzero(~legal)[0])
            raise FormatError(
                f"{path}: row {row + bad}: {field.name} = {columns[field.name][bad]:g} is impossible"
            )
    for number, field in enumerate(PRIMARY_IDS):
        columns[field.name] = (
            batch.column(field.name).to_numpy().astype(np.uint64)
            if field.name in names
            else np.arange(row, row + len(batch), dtype=np.uint64) * np.uint64(number)
        )
    return Events(columns, np.zeros(len(batch), np.uint32), np.zeros((0, 3), np.float32))


def _given(batch: pa.RecordBatch) -> NDArray[np.int64] | None:
    names = batch.schema.names
    if MULTIPLICITY in names:
        given: NDArray[np.int64] = batch.column(MULTIPLICITY).to_numpy().astype(np.int64)
        return given
    if RAW_MUONS in names:
        lengths: NDArray[np.int64] = np.diff(batch.column(RAW_MUONS).offsets.to_numpy()).astype(np.int64)
        return lengths
    return None


def _join(parts: list[Path], out: Path) -> None:
    with replacing(out) as part, pq.ParquetWriter(part, SCHEMA, **WRITER) as writer:
        for path in parts:
            with pq.ParquetFile(path, pre_buffer=False) as file:
                for group in range(file.num_row_groups):
                    writer.write_table(file.read_row_group(group))


def _block_seed(seed: int, number: int) -> int:
    return int(np.random.SeedSequence([seed, number]).generate_state(1, np.uint64)[0] >> 1)
