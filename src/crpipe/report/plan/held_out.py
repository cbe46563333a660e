"""What ``crpipe plan`` says, before training, of the events that judge a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from crpipe.core.causes import is_present
from crpipe.core.destinations import HELD_OUT, roles_of
from crpipe.core.errors import DataError
from crpipe.core.files import read_json_if_any
from crpipe.events.ledger_file import read_sums
from crpipe.report.text import counted, number

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from crpipe.core.destinations import Part
    from crpipe.events.metric import Metric
    from crpipe.report.campaign_view import CampaignView

WARNING = "WARNING"
_ROWS = 1 << 16  # of a table in memory at a time


def describe_held_out(
    view: CampaignView, shares: Sequence[str], metrics: Sequence[Metric], expected: int | None = None
) -> Iterator[str]:
    """Yield lines, the first one of a warning with ``WARNING`` before it.

    shares: what the configuration holds out, in words. metrics: the numbers of an evaluation. expected:
    groups that judge, as far as they can be estimated before any range is split.
    """
    if not shares:
        yield f"{WARNING} nothing is held out: an evaluation has no numbers. Before the first range is split,"
        yield "set split.validation_fraction above 0, or split.validation_files"
        return
    paths = view.paths
    split = [
        name
        for name in view.ranges
        if is_present(paths.ledger(name)) and is_present(paths.multiplicity(name))
    ]
    if not split or view.layout is None:
        yield ", ".join(shares)
        if expected is not None:
            yield from _expected(expected, metrics)
        elif any(metric.groups > 1 for metric in metrics):
            yield f"{_needed(metrics)}; plan again once a range is split"
        return
    if len(split) == len(view.ranges):
        yield from _trained_on(view, split)
    yield from _judged_on(view, split, metrics)


def _expected(groups: int, metrics: Sequence[Metric]) -> Iterator[str]:
    short = [metric.title for metric in metrics if metric.groups > groups]
    if not short:
        yield f"about {counted(groups, 'group')} of them, enough for every number"
        return
    yield f"{WARNING} about {counted(groups, 'group')} of held-out events are expected:"
    yield f"not enough for {', '.join(short)}"
    yield f"{_needed(metrics)}:"
    yield "raise split.validation_fraction (or test_fraction), or add files"


def count_groups(view: CampaignView, ranges: Sequence[str], enough: int) -> tuple[Part, int]:
    """Count the groups of the part that judges, at most about ``enough``, in ranges that are split.

    The part is the test part where any of the ranges has test events, as in an evaluation.
    """
    roles = {name: _roles(view, name) for name in ranges}
    for part in reversed(HELD_OUT):
        holding = [name for name in ranges if not roles[name].isdisjoint(roles_of(part))]
        if holding:
            return part, _count(view, holding, part, enough)
    return HELD_OUT[0], 0


def _roles(view: CampaignView, name: str) -> set[str]:
    paths = view.paths.shard_manifest(name), view.paths.outlier_manifest(name)
    manifests = [found for path in paths if (found := read_json_if_any(path))]
    return {shard["role"] for found in manifests for shard in found["shards"] if shard["events"]}


def _count(view: CampaignView, ranges: Sequence[str], part: Part, enough: int) -> int:
    """Read the multiplicity tables until there are ``enough`` groups."""
    assert view.layout is not None
    names = list(view.layout.group)
    of_part = pc.field("destination").isin(list(roles_of(part)))
    found: set[tuple[object, ...]] = set()
    for name in ranges:
        path = view.paths.multiplicity(name)
        try:
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(_ROWS, columns=[*names, "destination"]):
                    mine = pa.Table.from_batches([batch]).filter(of_part)
                    rows = mine.group_by(names).aggregate([]).to_pylist()
                    found.update(tuple(row.values()) for row in rows)
                    if len(found) >= enough:
                        return len(found)
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{path}: damaged ({error}); `crpipe check` says what to type") from error
    return len(found)


def _judged_on(view: CampaignView, split: Sequence[str], metrics: Sequence[Metric]) -> Iterator[str]:
    most = max((metric.groups for metric in metrics), default=1)
    part, groups = count_groups(view, split, most)
    if groups >= most:
        yield f"{number(most)} groups of {part} events or more: enough groups for every number"
        return
    whole = len(split) == len(view.ranges)
    seen = "" if whole else f" in {number(len(split))} of {counted(len(view.ranges), 'range')}"
    yield f"{WARNING} the {part} events have {counted(groups, 'group')}{seen}:"
    short = [metric.title for metric in metrics if metric.groups > groups]
    few = "not enough" if whole else "if the others hold no more, too few"
    yield f"{few} for {', '.join(short)}"
    yield f"{_needed(metrics)}: hold out more in a new results directory and run, or add files"


def _needed(metrics: Sequence[Metric]) -> str:
    least, most = (pick((metric.groups for metric in metrics), default=1) for pick in (min, max))
    if least == most:
        return f"an evaluation needs at least {counted(most, 'group')}"
    return f"an evaluation needs at least {counted(least, 'group')}, and {number(most)} for all numbers"


def _trained_on(view: CampaignView, split: Sequence[str]) -> Iterator[str]:
    ledgers = [read_sums(view.paths.ledger(name))["events"] for name in split]
    if not sum(ledger["train"] + ledger["outliers"] for ledger in ledgers):
        yield f"{WARNING} no event is left to train on:"
        yield "lower split.validation_fraction in a new results directory and run, or add files"
