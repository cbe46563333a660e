"""`crpipe plan`: ranges, files, events, steps, disk, hours, jobs and warnings; as text and as JSON."""

from __future__ import annotations

import textwrap
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from crpipe.campaign.raw_files import count_listed, far_fewer
from crpipe.core.causes import is_present
from crpipe.core.files import free_bytes, tree_bytes
from crpipe.core.lease import mount_of
from crpipe.core.paths import OUTLIERS
from crpipe.core.text import Column, counted, duration, number, shorten, size, table
from crpipe.report.estimates import WARNING, describe_held_out, measure_ratios, measure_volume, peak_disk
from crpipe.report.run_time import (
    FEW_STEPS,
    GOOD_STEPS,
    better_sizes,
    estimate_events,
    estimate_hours,
    steps_of_links,
)
from crpipe.report.state import files_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from crpipe.campaign.campaign import Campaign
    from crpipe.report.estimates import Entry, Peak, PlannedWorkload, Ratios, SourceLook, Volume
    from crpipe.report.run_time import EventCounts, Hours, Rate
    from crpipe.report.work_state import LinkTrace, RangeFiles
    from crpipe.split.plausibility import ColumnValues
    from crpipe.split.preview import FileSample

# Jobs of each rule, and how many of them are done: what `crpipe status` calls stale is to do.


def count_jobs(
    campaign: Campaign, files: Mapping[str, RangeFiles], chain: Sequence[LinkTrace]
) -> dict[str, tuple[int, int]]:
    """Return the jobs of each rule, and how many of them have left an output of this configuration."""
    paths, names = campaign.paths, campaign.ranges
    split = [files[name].is_split and not files[name].stale() for name in names]
    trained = {link.link: link.receipt is not None and not link.stale() for link in chain}
    outputs = {
        "list": [is_present(paths.manifest(name)) for name in names],
        "stage": [done or is_present(paths.staged(name)) for name, done in zip(names, split, strict=True)],
        "convert": [
            done or is_present(paths.converted(name)) for name, done in zip(names, split, strict=True)
        ],
        "split": split,
        "train": [done for link, done in trained.items() if link.ranges],
    }
    if not campaign.config.source.convert:
        del outputs["convert"]
    if campaign.has_outliers:
        merged = files[OUTLIERS]
        outputs["outliers_consolidated"] = [merged.shards is not None and not merged.stale()]
        outputs["train_outliers"] = [done for link, done in trained.items() if not link.ranges]
    return {rule: (len(done), sum(done)) for rule, done in outputs.items()}


LABEL = 12
_WIDTH = 110
_HOUR = 3600
_FREQUENT = 0.01  # of the values
_WARM_UP = 10  # times as many steps as it takes


@dataclass(frozen=True, slots=True)
class Plan:
    """What a campaign takes, as far as it is known before it runs; text and JSON follow from it.

    seen: what a look at the source showed. volume, ratios, peak: files, and the disk that they take; free:
    bytes that the disk has left, budget: bytes that raw copies may take. events, steps: of all ranges and of
    each link; None and empty as long as nothing is counted. jobs: of each rule, and how many are done.
    held_out: entries on the events that judge the model, a ``WARNING`` where they are too few.
    """

    campaign: Campaign
    seen: SourceLook
    volume: Volume
    ratios: Ratios
    peak: Peak | None
    free: int
    budget: int
    events: EventCounts | None
    steps: list[int]
    hours: Hours
    jobs: dict[str, tuple[int, int]]
    held_out: list[Entry]

    @classmethod
    def of(
        cls,
        campaign: Campaign,
        workload: PlannedWorkload,
        seen: SourceLook,
        measure: Callable[[], Rate] | None = None,
    ) -> Plan:
        """Count what is there, and estimate the rest; ``measure`` trains some steps where no run did yet."""
        volume, (files, chain) = measure_volume(campaign, seen), files_of(campaign)
        ratios = measure_ratios(campaign, files)
        events, file, split = estimate_events(campaign, seen, files), seen.file, campaign.config.split
        fraction, expected = split.test_fraction or split.validation_fraction, None
        if file is not None and file.rows and events is not None and fraction:
            expected = round(events.events * file.groups / file.rows * fraction)
        return cls(
            campaign=campaign,
            seen=seen,
            volume=volume,
            ratios=ratios,
            peak=peak_disk(campaign, volume, ratios),
            free=free_bytes(campaign.paths.results),
            budget=campaign.raw_budget(tree_bytes(campaign.paths.raw(""))),
            events=events,
            steps=[] if events is None else steps_of_links(campaign, events, workload.per_step),
            hours=estimate_hours(campaign, events, measure),
            jobs=count_jobs(campaign, files, chain),
            held_out=list(describe_held_out(campaign, workload.metrics, expected)),
        )

    def entries(self) -> Iterator[Entry]:
        """Yield everything but the table of jobs, in words; a warning is labelled ``WARNING``."""
        campaign, source = self.campaign, self.campaign.config.source
        names = campaign.ranges
        skip = [*campaign.config.ranges.skip, *(each.range for each in campaign.given_up)]
        yield "run", [f"{campaign.paths.run}, fingerprint {campaign.fingerprint}"]
        yield "source", [source.files or source.uri]
        ranges = [f"{len(names)}{f', {len(skip)} skipped' if skip else ''}: {names[0]} to {names[-1]}"]
        if source.max_files:
            first = counted(source.max_files, "file")
            ranges.append(f"only the first {first} of each (source.max_files), for a trial")
        yield "ranges", [*ranges, *(f"skipped: {each.describe()}" for each in campaign.given_up)]
        yield from _seen(self.seen)
        yield "files", list(_volume(self.volume))
        yield from _events(self)
        yield from _few_files(campaign)
        yield from self.held_out
        yield from _disk(self)
        yield "time", list(_hours(self.hours))
        yield from _locks(campaign)

    def warnings(self) -> list[str]:
        """Return the warnings, each in one line."""
        return [" ".join(lines) for label, lines in self.entries() if label == WARNING]


def render_plan(plan: Plan) -> str:
    """Describe ranges, bytes, events, steps, peak disk, hours and jobs; warn of what will not work."""
    text = [
        f"{'' if place else label:<{LABEL}}{line}"
        for label, lines in plan.entries()
        for place, line in enumerate(lines)
    ]
    columns = [
        Column("rule", list(plan.jobs)),
        Column("jobs", [number(jobs) for jobs, _ in plan.jobs.values()], right=True),
        Column("done", [number(done) for _, done in plan.jobs.values()], right=True),
    ]
    return "\n".join([*text, "", *table(columns, 80)])


def _volume(volume: Volume) -> Iterator[str]:
    taken = "of unknown size" if volume.bytes is None else f"{volume.mark}{size(volume.bytes)}"
    yield f"{volume.mark}{number(volume.files)}, {taken}"
    unknown = volume.ranges - volume.known
    if volume.bytes is None:
        yield "sizes are known once the first range is listed or staged: run it, then plan again"
    elif unknown:
        basis = f"the mean of {counted(volume.known, 'range')}"
        yield f"assumed: {basis}, for {counted(unknown, 'range')} not listed yet, or without sizes"


def _few_files(campaign: Campaign) -> Iterator[Entry]:
    """Warn of ranges with far fewer files than the others: their listing may not be whole."""
    manifests = {name: campaign.paths.manifest(name) for name in campaign.ranges}
    counts = {name: count_listed(path) for name, path in manifests.items() if is_present(path)}
    for name, count in far_fewer(counts).items():
        few = f"range {name} has {counted(count, 'file')}, far fewer than the others:"
        yield WARNING, [few, f"if there are more, delete {manifests[name]} to list it again"]


def _disk(plan: Plan) -> Iterator[Entry]:
    peak, ratios = plan.peak, plan.ratios
    if peak is None:
        yield "disk", [f"{size(plan.free)} free; raw copies have a budget of {size(plan.budget)}"]
        return
    ranges = min(plan.campaign.config.source.prefetch_ranges, plan.volume.ranges)
    most = f"{counted(ranges, 'range')} ahead, {size(plan.volume.largest or 0)} the largest"
    budget = f"budget {size(plan.budget)} (source.disk_budget_gib)"
    copies = [f"{size(peak.raw)} at most: {most}", budget]
    if peak.saved:
        copies = [f"none, files are read where they are (source.copy_local); saved: {size(peak.saved)}", most]
    yield "raw copies", copies
    yield "splitting", [f"{size(peak.spills)} at most: temporary files of {counted(ranges, 'range')}"]
    basis = (
        f"measured in {counted(ratios.seen, 'split range')}"
        if ratios.seen
        else "assumed until the first range is split"
    )
    shares = f"shards {ratios.shards:.2f}, temporary files {ratios.spills:.2f} of the raw files' bytes"
    yield "shards", [f"about {size(peak.shards)} for all ranges", f"{basis}: {shares}"]
    taken = f"{size(plan.free)} free, {size(peak.taken)} taken"
    yield "disk", [f"{size(peak.more)} more at the peak, {taken}"]
    if peak.raw > plan.budget:
        yield WARNING, ["raw copies exceed their budget: lower source.prefetch_ranges or raise the budget"]
    if peak.more > plan.free:
        yield WARNING, ["this does not fit on the disk: free some space, or set `results` elsewhere"]


def _locks(campaign: Campaign) -> Iterator[Entry]:
    """Warn where locks may hold within one host only: two of them could work on the same range."""
    for folder in (campaign.paths.results, campaign.paths.runs):
        mount = mount_of(folder)
        if mount is not None and mount.locks_are_per_host():
            where = f"{folder}: on {mount.describe()}: its locks may hold within one host only:"
            remedy = "always start the workflow on the same host, or have it mounted with -o flock"
            yield WARNING, [where, remedy]


def _seen(seen: SourceLook) -> Iterator[Entry]:
    """Yield what the source holds now, as far as it was asked."""
    lines, file = list(seen.notes), seen.file
    if seen.listed:
        files, taken = (sum(column) for column in zip(*seen.listed.values(), strict=True))
        listed = f"{counted(len(seen.listed), 'range')} listed now"
        lines.insert(0, f"{listed}: {counted(files, 'file')}, {size(taken)}")
    yield "looked at", lines
    if file is not None:
        columns = ", ".join(f"{name} {kind}" for name, kind in file.columns.items())
        notes = [shorten(text, _WIDTH) for text in (f"columns {columns}", *file.notes)]
        yield "file", [file.name, f"read by {file.reader}", *notes]
        yield from _values(file)
        if file.doubt:
            yield WARNING, textwrap.wrap(file.doubt, _WIDTH)
    for warning in seen.warnings:
        yield WARNING, [warning]


def _values(file: FileSample) -> Iterator[Entry]:
    """Yield a table of the values of each column, and a warning of each thing that looks wrong in them."""
    names = ("1 %", "50 %", "99 %", "smallest", "largest")
    numbers = [(each.low, each.median, each.high, each.smallest, each.largest) for each in file.values]
    columns = [
        Column("column", [each.name for each in file.values]),
        *(
            Column(name, [f"{value:.4g}" for value in values], right=True)
            for name, values in zip(names, zip(*numbers, strict=True), strict=False)
        ),
        Column("unit", [each.unit for each in file.values]),
        Column("most frequent", [_frequent(each) for each in file.values], drop=1),
        Column("not legal", [number(each.outside) if each.outside else "" for each in file.values], drop=2),
    ]
    if file.values:
        yield "values", table(columns, _WIDTH)
    for doubt in file.doubts:
        yield WARNING, textwrap.wrap(doubt, _WIDTH)


def _frequent(column: ColumnValues) -> str:
    """Write the most frequent value where it is more than one of many."""
    return f"{column.repeated:.4g} ({column.share:.0%})" if column.share >= _FREQUENT else ""


def _events(plan: Plan) -> Iterator[Entry]:
    """Yield how many events, batches and steps there are; warn where they are few, or one is too large."""
    events, file = plan.events, plan.seen.file
    if events is None:
        yield "events", ["known once a file is read by crpipe plan, or a range is split"]
        return
    load, item = plan.campaign.config.load, plan.campaign.item
    about = "" if events.exact else "about "
    lines = [f"{about}{number(events.events)} with {number(events.items)} {item}"]
    if file is not None and not events.exact:
        lines.append(f"estimated from {counted(file.events, 'event')} in {counted(file.files, 'file')}")
        if not plan.campaign.layout.fixed:
            aside = f"{1 - file.below:.2%}" if file.below < 1.0 else "none"
            largest = f"the largest other one has {number(file.largest)} {item}"
            lines += [
                f"{aside} of the events that were read are outliers (split.outlier_above); {largest}",
                f"split.outlier_above: {file.recommended} would set at most 0.1% aside",
            ]
    yield "events", lines
    least, most = min(plan.steps), max(plan.steps)
    span = number(least) if least == most else f"{number(least)} to {number(most)}"
    batches = f"batches of {counted(load.batch_size, 'event')} (load.batch_size)"
    yield "steps", [f"{about}{span} a link: {batches}"]
    train = plan.campaign.config.train
    if least < FEW_STEPS:
        batch, passes = better_sizes(load.batch_size, train.passes_per_link, least)
        pair = {
            "load.batch_size": (load.batch_size, batch),
            "train.passes_per_link": (train.passes_per_link, passes),
        }
        changes = " and ".join(f"{key}: {new}" for key, (old, new) in pair.items() if new != old)
        advice = f"set {changes}, " if changes else ""
        few = f"a link has {about}{counted(least, 'step')} only: that hardly trains a model."
        longer = "raise train.ranges_per_link, or add files"
        yield WARNING, [few, f"For {number(GOOD_STEPS)} or so {advice}{longer}"]
    warm_up = 0 if train.schedule.shape == "one_cycle" else train.schedule.warmup_steps
    if warm_up > sum(plan.steps) / _WARM_UP:
        steps = f"{about}{counted(sum(plan.steps), 'step')}"
        slow = f"train.schedule.warmup_steps: {number(warm_up)} are more than a tenth of {steps}:"
        yield WARNING, [slow, f"set {max(1, sum(plan.steps) // _WARM_UP)}, or fewer"]
    if file is not None and file.largest > load.max_items:
        yield (
            WARNING,
            [
                f"an event of {number(file.largest)} {item} is larger than",
                f"load.max_items: {number(load.max_items)}; it takes as much more memory:",
                "raise the budget to what the GPU holds, or set such events aside with split.outlier_above",
            ],
        )


def _hours(hours: Hours) -> Iterator[str]:
    """Yield how long the campaign takes, at rates that were measured here."""
    if hours.rate is None:
        yield "no rate of training is measured yet; plan again once a link has trained some steps"
        yield from textwrap.wrap(hours.why, _WIDTH)
    else:
        took = f"{number(hours.rate.events_per_s)} events/s, measured in {hours.rate.where}"
        training = "" if hours.training_s is None else f"about {duration(hours.training_s)} of training, at "
        yield f"{training}{took}"
    if hours.data_s is not None:
        verbs = ", ".join(f"{verb} {duration(taken)}" for verb, taken in hours.range_s.items())
        yield f"about {duration(hours.data_s)} for the data, one range after the other ({verbs} each)"


def describe_plan(plan: Plan) -> dict[str, Any]:
    """Return the fields of `crpipe plan --json`, see docs/watching.md; null is what is not known."""
    campaign, seen, peak, hours, events = plan.campaign, plan.seen, plan.peak, plan.hours, plan.events
    source, names = campaign.config.source, campaign.ranges
    return {
        "run": campaign.paths.run,
        "fingerprint": campaign.fingerprint,
        "source": source.files or source.uri,
        "max_files": source.max_files,
        "ranges": {
            "count": len(names),
            "first": names[0],
            "last": names[-1],
            "skipped": list(campaign.config.ranges.skip),
            "given_up": [each.as_json() for each in campaign.given_up],
            "known": plan.volume.known,
        },
        "listed_now": {
            name: {"files": files, "bytes": taken} for name, (files, taken) in seen.listed.items()
        },
        "file": None if seen.file is None else asdict(seen.file),
        "files": plan.volume.files,
        "bytes": plan.volume.bytes,
        "events": None if events is None else events.events,
        "items": None if events is None else events.items,
        "exact": events is not None and events.exact,
        "batch_events": campaign.config.load.batch_size,
        "steps_per_link": None if events is None else plan.steps,
        "disk": {
            "raw": None if peak is None else peak.raw,
            "saved": None if peak is None else peak.saved,
            "splitting": None if peak is None else peak.spills,
            "shards": None if peak is None else peak.shards,
            "more_at_peak": None if peak is None else peak.more,
            "budget": plan.budget,
            "free": plan.free,
        },
        "hours": {
            "training": None if hours.training_s is None else hours.training_s / _HOUR,
            "data": None if hours.data_s is None else hours.data_s / _HOUR,
            "events_per_s": None if hours.rate is None else hours.rate.events_per_s,
            "measured_in": None if hours.rate is None else hours.rate.where,
        },
        "jobs": {rule: {"jobs": jobs, "done": done} for rule, (jobs, done) in plan.jobs.items()},
        "notes": list(seen.notes),
        "warnings": plan.warnings(),
        "problems": list(seen.problems),
    }
