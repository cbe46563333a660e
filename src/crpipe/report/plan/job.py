"""What a plan is made from, as plain values: the configuration, and what a look at the source found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from crpipe.events.metric import Metric
    from crpipe.report.campaign_view import CampaignView


@dataclass(frozen=True, slots=True)
class Batching:
    """How events become steps.

    events: those of one batch. budget_items: most items that a micro-batch holds. ranks: batches that make up
    one step. epochs: passes over a link. per_step: batches that one step takes on each rank. held_out: share
    of the events that training never sees; judged: share of those that an evaluation judges on. Both are 0
    where files are held out.
    """

    events: int = 4096
    budget_items: int = 2_000_000
    ranks: int = 1
    epochs: int = 1
    per_step: int = 1
    held_out: float = 0.0
    judged: float = 0.0


@dataclass(frozen=True, slots=True)
class SeenFile:
    """One raw file as the configured reader reads it, and how many events the files beside it have.

    name: path or URI. reader: what read it. columns: dtype of each column of the file, or of the layout.
    files, bytes, events, items: sums over the files that were counted. rows: events that were read;
    groups: how many groups they belong to; doubt: why the group columns look wrong, mostly empty; largest:
    items of the largest; below: share of them that are no outliers. notes: what the reader converted, or did
    not read.
    """

    name: str
    reader: str
    columns: Mapping[str, str]
    files: int
    bytes: int
    events: int
    items: int
    rows: int
    groups: int
    largest: int
    below: float
    notes: tuple[str, ...] = ()
    doubt: str = ""


@dataclass(frozen=True, slots=True)
class SourceLook:
    """What a look at the source found.

    listed: files and bytes of each range that was listed now. file: one raw file, where one was read.
    notes: what was not looked at, and why. warnings: what keeps the source from being read now.
    problems: what is wrong, and what to type: the workflow would fail.
    """

    listed: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    file: SeenFile | None = None
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PlanJob:
    """What a plan is made from.

    source: URI or list file, as configured. look_ahead: ranges that may be staged ahead of training.
    range_files, range_bytes: one range as long as none is listed; bytes are None where nobody knows them
    before the files are staged, because a simulator writes them. held_out: what the configuration holds
    out, in words; metrics: the numbers of an evaluation. max_files: files taken of each range; 0: all.
    """

    view: CampaignView
    source: str
    look_ahead: int
    range_files: int
    range_bytes: int | None
    held_out: tuple[str, ...] = ()
    metrics: tuple[Metric, ...] = ()
    batching: Batching = Batching()
    max_files: int = 0
    seen: SourceLook = SourceLook()
