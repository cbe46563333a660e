"""Events, steps and hours of a campaign: counted in split ranges, else estimated from a few files."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from crpipe.core.errors import CrpipeError
from crpipe.core.journal import METRICS_BYTES, Row, metric_rows, tail
from crpipe.core.paths import HELD_OUT, Paths
from crpipe.report.estimates import SourceLook, known_volume
from crpipe.report.jobs import JobAttempt, attempts_of
from crpipe.report.work_state import RangeFiles, median_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from crpipe.campaign.campaign import Campaign

FEW_STEPS = 100  # of a link: fewer hardly train a model, and hardly show a trend
GOOD_STEPS = 500
LEAST_BATCH, MOST_PASSES = 64, 50
_DATA_VERBS = ("stage", "convert", "split")


@dataclass(frozen=True, slots=True)
class EventCounts:
    """Events and items of all ranges; those that training sees, by range; ``exact`` where all are split."""

    events: int
    items: int
    trained: dict[str, float]
    exact: bool


@dataclass(frozen=True, slots=True)
class Rate:
    """Events that training took in a second, and where that was measured."""

    events_per_s: float
    where: str


@dataclass(frozen=True, slots=True)
class Hours:
    """Seconds that the whole campaign takes, at measured rates; None where nothing was measured.

    range_s: staging and splitting of one range. why: what kept the rate of training from being measured.
    """

    training_s: float | None
    rate: Rate | None
    data_s: float | None
    range_s: dict[str, float]
    why: str = ""


def estimate_events(
    campaign: Campaign, seen: SourceLook, files: Mapping[str, RangeFiles]
) -> EventCounts | None:
    """Add up the events; None as long as no range is split and no file was read."""
    file, parts = seen.file, campaign.config.split
    split = {
        name: (ledger.events.listed, ledger.items.listed, ledger.events.train)
        for name in campaign.ranges
        if files[name].is_split and (ledger := files[name].ledger)
    }
    sizes = {name: known_volume(campaign, seen, name)[1] for name in campaign.ranges if name not in split}
    sizes_known = [size for size in sizes.values() if size is not None]
    usual = sum(sizes_known) / len(sizes_known) if sizes_known else None
    counts: dict[str, tuple[float, ...]] = dict(split)
    if file is not None and file.bytes:
        share = file.below * (1 - sum(getattr(parts, f"{part}_fraction") for part in HELD_OUT))
        for name, size in sizes.items():
            taken = usual if size is None else size
            if taken is not None:
                ratio = taken / file.bytes
                counts[name] = (file.events * ratio, file.items * ratio, file.events * ratio * share)
    if not counts:
        return None
    means = [sum(column) / len(counts) for column in zip(*counts.values(), strict=True)]
    every = [counts.get(name, tuple(means)) for name in campaign.ranges]
    events, items = (round(sum(row[place] for row in every)) for place in (0, 1))
    trained = {name: row[2] for name, row in zip(campaign.ranges, every, strict=True)}
    return EventCounts(events, items, trained, exact=len(split) == len(campaign.ranges))


def steps_of_links(campaign: Campaign, events: EventCounts, batches: int) -> list[int]:
    """Count the steps of each link on bulk events, at least one; ``batches``: of a step on each rank.

    The last batch of a pass is as large as the others or smaller, and so is the last step of a link.
    """
    train = campaign.config.train
    at_once = campaign.config.load.batch_size * train.ranks
    trained = [
        sum(events.trained[name] for name in link.ranges) for link in campaign.chain.links if link.ranges
    ]
    return [
        max(1, math.ceil(math.ceil(each / at_once) * train.passes_per_link / batches)) for each in trained
    ]


def better_sizes(batch_events: int, passes: int, steps: float) -> tuple[int, int]:
    """Choose a batch and passes with which training has about GOOD_STEPS steps, where it has fewer.

    passes: over the events, in which there are so many steps now. The batch is halved only where MOST_PASSES
    do not suffice, and not below LEAST_BATCH.
    """
    batch = batch_events
    needed = GOOD_STEPS / steps * passes  # passes, with this batch
    while needed > MOST_PASSES and batch // 2 >= LEAST_BATCH:
        batch, needed = batch // 2, needed / 2
    return batch, max(passes, min(MOST_PASSES, math.ceil(needed)))


def estimate_hours(
    campaign: Campaign, events: EventCounts | None, measure: Callable[[], Rate] | None = None
) -> Hours:
    """Scale the rates of this run, or of another one here, to the whole campaign.

    measure: trains some steps, where no run did yet; a CrpipeError of it is told.
    """
    rate, training, why = measured_rate(campaign.paths), None, ""
    if rate is None and measure is not None and events is not None:
        try:
            rate = measure()
        except CrpipeError as error:
            why = " ".join(str(error).split())
    if rate is not None and events is not None:
        events_trained = sum(events.trained[name] for link in campaign.chain.links for name in link.ranges)
        training = events_trained * campaign.config.train.passes_per_link / rate.events_per_s
    range_s = _durations(attempts_of(campaign.paths))
    verbs = {verb for verb in _DATA_VERBS if verb != "convert" or campaign.config.source.convert}
    data = sum(range_s.values()) * len(campaign.ranges) if range_s.keys() >= verbs else None
    return Hours(training, rate, data, range_s, why)


def measured_rate(paths: Paths) -> Rate | None:
    """Find the rate in the newest metrics of this run, else of the other runs in the same folder."""
    others = sorted(
        {path.parents[2] for path in paths.runs.glob("*/store/*/metrics.jsonl")} - {paths.run_dir()}
    )
    for group in ([paths.run_dir()], others):
        files = [path for run in group for path in run.glob("store/*/metrics.jsonl")]
        for path in sorted(files, key=lambda path: path.stat().st_mtime, reverse=True):
            speed = _speed(metric_rows(tail(path, METRICS_BYTES)))
            if speed is not None:
                return Rate(speed, f"run {path.parents[2].name}, link {path.parent.name}")
    return None


def _speed(rows: list[Row]) -> float | None:
    """Take the median over pairs of rows, so that a pause between two attempts has no effect."""
    return median_of(
        [
            (after["events"] - before["events"]) / (after["time"] - before["time"])
            for before, after in pairwise(rows)
            if "events" in after
            and "events" in before
            and after["time"] > before["time"]
            and after["events"] > before["events"]
        ]
    )


def _durations(work: Iterable[JobAttempt]) -> dict[str, float]:
    """Return the mean seconds of the finished attempts at staging and splitting a range."""
    taken: dict[str, list[float]] = {}
    for each in work:
        if each.verb in _DATA_VERBS and each.what == "finished" and each.end is not None:
            taken.setdefault(each.verb, []).append(max(0.0, each.end - each.start))
    return {verb: sum(times) / len(times) for verb, times in taken.items()}
