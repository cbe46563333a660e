"""The JSON files of a campaign and its runs as classes; those of ledgers and shards are beside them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from crpipe.core.causes import is_present, is_there, retry_io
from crpipe.core.errors import DataError
from crpipe.core.files import size
from crpipe.core.paths import BEST, DELETED_CHECKPOINTS
from crpipe.core.records import WRITTEN, Record, RecordTable
from crpipe.core.text import counted, shorten

if TYPE_CHECKING:
    from pathlib import Path

_SHOWN = 200  # characters of a cause


@dataclass(frozen=True, kw_only=True)
class ChosenThreshold(Record):
    """threshold.json: the threshold that a quantile of the events in some ranges gave."""

    quantile: float
    ranges: tuple[str, ...]
    threshold: int
    events: int


@dataclass(frozen=True, kw_only=True)
class SkippedRange(Record, files="skipped/*"):
    """skipped/RANGE.json: a range that stayed bad, and was left out by ``ranges.on_failure: skip``.

    verb: what failed, in so many attempts, and ``kind`` and ``cause`` of its last error. files, bytes: of its
    listing, none of them read; None where there is none. time: of the decision, in seconds.
    """

    range: str
    verb: str
    kind: str
    cause: str
    attempts: int
    log: str
    time: float
    files: int | None = field(default=None, metadata=WRITTEN)
    bytes: int | None = field(default=None, metadata=WRITTEN)

    def loss(self) -> str:
        """Describe what is missing from the campaign."""
        listed = "not listed" if self.files is None else counted(self.files, "file")
        return f"{listed}{'' if self.bytes is None else f', {size(self.bytes)}'}"

    def describe(self) -> str:
        """Describe in one line what is missing, and why."""
        tried = counted(self.attempts, "attempt")
        return f"{self.range} ({self.loss()}): {self.verb} failed in {tried}: {shorten(self.cause, _SHOWN)}"


@dataclass(frozen=True, kw_only=True)
class SplitKey(Record):
    """key.json of a finished split: what it follows from; staged: digest of the raw files' rows."""

    data: str
    threshold: int
    staged: str | None = None


@dataclass(frozen=True, kw_only=True)
class MultiplicityHistogram(Record, files="*.histogram.json"):
    """Events of a range by multiplicity, per bin [edges[i], edges[i + 1]); their weights, if any."""

    edges: tuple[int, ...]
    events: tuple[int, ...]
    weights: tuple[Any, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class SideTable(Record):
    """What is recorded about one side table: where it was, and the copy, whose path is relative."""

    uri: str
    path: str
    size: int
    sha256: str
    mtime: Any = field(default=None, metadata=WRITTEN)
    verified: Any = None


@dataclass(frozen=True, kw_only=True)
class SideTables(RecordTable, files="tables.json"):
    """tables.json: the side tables by their names in ``source.tables``: files that hold for all ranges.

    Such as a geometry or a list of dead channels; the tables job stages each once, verified.
    """

    rows: Mapping[str, SideTable]


Tables = Mapping[str, "Path"]  # the name in source.tables -> the verified copy


def read_tables(record: Path) -> Mapping[str, SideTable]:
    """Read tables.json by the names of the tables; empty when the campaign has no side tables yet."""
    tables = SideTables.read_if_any(record)
    return tables.rows if tables else {}


def table_paths(record: Path) -> dict[str, Path]:
    """Find the copy of each side table; raise DataError when one is missing or has another size."""
    paths = {}
    for name, row in read_tables(record).items():
        path = record.parent / row.path
        if not is_there(path) or retry_io(path.stat).st_size != row.size:
            raise DataError(
                f"{path}: the copy of table {name} is missing or has another size; delete {record} and run "
                "the same command again"
            )
        paths[name] = path
    return paths


def table_keys(record: Path) -> dict[str, str]:
    """Return the hashes of the side tables as keys for a fingerprint: {"tables.NAME": sha256}."""
    return {f"tables.{name}": row.sha256 for name, row in read_tables(record).items()}


@dataclass(frozen=True, kw_only=True)
class Receipt(Record, files="ranges/*"):
    """The receipt of a finished link: its checkpoint, what that follows from, and the last numbers.

    parent: hash of the checkpoint that the link began with; empty for none. stopped: why it ended early.
    """

    range: str
    checkpoint: str
    sha256: str
    key: str
    parent: str
    fingerprint: str
    ranges: tuple[str, ...]
    round: int
    step: int
    events: int
    items: int
    skipped: int
    metrics: Any = None
    numerics: Any = None
    stopped: Any = None


@dataclass(frozen=True, kw_only=True)
class BestReceipt(Record, files=f"ranges/*{BEST}"):
    """The receipt of the best checkpoint of a link."""

    range: str
    key: str
    checkpoint: str
    sha256: str
    step: int
    metric: str
    value: float


@dataclass(frozen=True, kw_only=True)
class DeletedCheckpoint(Record):
    """A checkpoint that `crpipe clean` deleted: its receipt, its size and when."""

    receipt: Receipt
    bytes: int
    time: float


@dataclass(frozen=True, kw_only=True)
class DeletedCheckpoints(RecordTable, files=DELETED_CHECKPOINTS):
    """dropped.json: the deleted checkpoints by their links."""

    rows: Mapping[str, DeletedCheckpoint]


@dataclass(frozen=True, kw_only=True)
class LoadedWeights(Record):
    """init_from.json: which weights the first link took from another checkpoint, and which were left out."""

    checkpoint: str
    sha256: str
    loaded: Mapping[str, str]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    warning: str | None = None


@dataclass(frozen=True, kw_only=True)
class Divergence(Record):
    """Why the training of a link diverged, so that a retry does not repeat it."""

    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedFile(Record):
    """One file of a pack. uri: where it is, if not in the pack."""

    size: int
    sha256: str
    uri: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PackRecord(Record):
    """pack.json, the first member of a pack: what it is, who made it, and every other file in it.

    kind: what it holds, see `crpipe.packs.archive`. name: of the link or range. key: what its result follows
    from. files: by their names below a campaign's folder. seal: digest of all the rest.
    """

    format: int
    version: str
    kind: str
    run: str
    name: str
    key: str
    files: Mapping[str, PackedFile]
    seal: str = field(default="", metadata=WRITTEN)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackFailure(Record):
    """failed.json of a pack that came back: the error that ended its work for good, and where."""

    kind: str
    error: str
    exit_code: int
    host: str
    log: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedSlice(Record):
    """One row of slices.jsonl: the steps of a link that were trained in one piece, and where.

    begun_with, left: sha256 of the snapshots (or checkpoints) before and after; begun_with of fresh weights
    is empty. start_seconds: until the first step. stopped: what ended it; empty at the link's end.
    """

    from_step: int
    to_step: int
    begun_with: str
    left: str
    seconds: float
    start_seconds: float
    host: str
    numerics: str
    stopped: str


def read_slices(path: Path) -> list[TrainedSlice]:
    """Read slices.jsonl; none where there is no file. Raise DataError when it is damaged."""
    if not is_present(path):
        return []
    try:
        return [TrainedSlice.from_json(json.loads(line)) for line in retry_io(path.read_text).splitlines()]
    except ValueError as error:
        raise DataError(
            f"{path}: damaged ({error}); delete it: nothing but `crpipe check` and `status` reads it"
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class BinRow(Record):
    """One bin of a table: what real and generated events have there, and what is compared.

    kind: ratio (generated over real) or difference (generated minus real), which is ``value``. p: chance of
    such a deviation between equal samples. None: there is nothing, or a division by nothing.
    """

    bin: str
    kind: str
    p: float
    real: float | None = field(default=None, metadata=WRITTEN)
    generated: float | None = field(default=None, metadata=WRITTEN)
    value: float | None = field(default=None, metadata=WRITTEN)
    error: float | None = field(default=None, metadata=WRITTEN)

    @property
    def ideal(self) -> float:
        """The value of equal samples."""
        return 0.0 if self.kind == "difference" else 1.0


@dataclass(frozen=True, kw_only=True)
class EvaluationRecord(Record):
    """metrics.json of an evaluation: what was compared, and the numbers of each kind by the metric's name.

    checkpoint: its hash. effective_groups: of weighted events, as many groups of one weight know as much.
    metrics: what each metric of the workload is. baseline, again: of a baseline, and of a second simulation
    of the same events. halves: of one half of the truth, judged by the other one. differences: for each of
    these, by its name, the model's numbers minus its own. tables: rows in bins.
    """

    checkpoint: str
    step: int | None = None
    part: str | None = None
    events: int | None = None
    groups: int | None = None
    effective_groups: float | None = None
    metrics: tuple[Mapping[str, Any], ...] | None = None
    values: Mapping[str, Any] | None = None
    baseline: Mapping[str, Any] | None = None
    again: Mapping[str, Any] | None = None
    halves: Mapping[str, Any] | None = None
    differences: Mapping[str, Mapping[str, float]] | None = None
    tables: Mapping[str, tuple[BinRow, ...]] | None = None
