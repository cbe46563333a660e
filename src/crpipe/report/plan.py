"""`crpipe plan` as text and JSON: ranges, files, events, steps, disk, hours, jobs, and warnings."""

from __future__ import annotations

import textwrap
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from crpipe.campaign.raw_files import count_listed, far_fewer
from crpipe.core.causes import is_present
from crpipe.core.files import free_bytes
from crpipe.core.journal import History
from crpipe.core.lease import mount_of
from crpipe.core.paths import OUTLIERS
from crpipe.core.text import Column, counted, duration, number, shorten, size, table
from crpipe.report.estimates import WARNING, describe_held_out, measure_ratios, measure_volume, peak_disk
from crpipe.report.pace import (
    FEW_STEPS,
    GOOD_STEPS,
    better_batch,
    estimate_events,
    estimate_hours,
    steps_of_links,
)
from crpipe.report.state import Expected, LinkTrace, RangeFiles

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from crpipe.campaign.view import CampaignView
    from crpipe.core.ranges import ChainLink
    from crpipe.report.estimates import PlanJob, Volume
    from crpipe.report.pace import EventCounts

# Jobs of each rule, and how many of them are done: what `crpipe status` calls stale is to do.


def count_jobs(view: CampaignView) -> dict[str, tuple[int, int]]:
    """Give the jobs of each rule, and how many of them have left an output of this configuration."""
    paths, names = view.paths, view.ranges
    expected = Expected(view.data, view.fingerprint, view.has_outliers, 0.0)
    found = {name: RangeFiles(paths, name, History(), expected) for name in (*names, OUTLIERS)}
    split = [found[name].is_split and not found[name].stale() for name in names]
    outputs = {
        "list": [is_present(paths.manifest(name)) for name in names],
        "stage": [done or is_present(paths.staged(name)) for name, done in zip(names, split, strict=True)],
        "split": split,
        "train": [_is_trained(view, link, found) for link in view.chain.links if link.ranges],
    }
    if view.has_outliers:
        merged = found[OUTLIERS]
        outputs["outliers_consolidated"] = [merged.shards is not None and not merged.stale()]
        outputs["train_outliers"] = [
            _is_trained(view, link, found) for link in view.chain.links if not link.ranges
        ]
    return {rule: (len(done), sum(done)) for rule, done in outputs.items()}


def _is_trained(view: CampaignView, link: ChainLink, found: dict[str, RangeFiles]) -> bool:
    data = tuple(found[name] for name in link.ranges or (OUTLIERS,))
    trace = LinkTrace(view.paths, link, data, History(), data[0].expected)
    return trace.receipt is not None and not trace.stale()


LABEL = 12
_WIDTH = 110
Line = tuple[str, str]  # label and text; a line without a label continues the one before


def render_plan(job: PlanJob) -> str:
    """Describe ranges, bytes, events, steps, peak disk, hours and jobs; warn of what will not work."""
    return "\n".join([*(f"{label:<{LABEL}}{text}" for label, text in plan_lines(job)), "", *_jobs(job.view)])


def warnings_of(lines: Iterable[Line]) -> list[str]:
    """Choose the warnings, each in one line."""
    found: list[list[str]] = []
    last = ""
    for label, text in lines:
        last = label or last
        if label == WARNING:
            found.append([text])
        elif last == WARNING:
            found[-1].append(text)
    return [" ".join(parts) for parts in found]


def plan_lines(job: PlanJob) -> Iterator[Line]:
    """Yield everything but the table of jobs."""
    view, volume = job.view, measure_volume(job)
    skipped = f", {len(view.skipped)} skipped" if view.skipped else ""
    yield ("run", f"{view.run}, fingerprint {view.fingerprint}")
    yield ("source", job.source)
    yield ("ranges", f"{volume.ranges}{skipped}: {view.ranges[0]} to {view.ranges[-1]}")
    if job.max_files:
        yield ("", f"only the first {counted(job.max_files, 'file')} of each (source.max_files), for a trial")
    yield from _seen(job)
    yield from _volume(volume)
    events = estimate_events(job)
    yield from _events(job, events)
    yield from _few_files(view)
    yield from _held_out(job, events)
    yield from _disk(job, volume)
    yield from _hours(job, events)
    yield from _locks(view)


def _volume(volume: Volume) -> Iterator[Line]:
    taken = "of unknown size" if volume.bytes is None else f"{volume.mark}{size(volume.bytes)}"
    yield ("files", f"{volume.mark}{number(volume.files)}, {taken}")
    unknown = volume.ranges - volume.known
    if volume.bytes is None:
        yield ("", "sizes are known once the first range is staged: run it, then plan again")
    elif unknown:
        basis = f"the mean of {counted(volume.known, 'range')}" if volume.known else "source.range_gib each"
        yield ("", f"assumed: {basis}, for {counted(unknown, 'range')} not listed yet, or without sizes")


def _held_out(job: PlanJob, events: EventCounts | None) -> Iterator[Line]:
    label = "held out"
    file, expected = job.seen.file, None
    if file is not None and file.rows and events is not None and job.batching.judged:
        expected = round(events.events * file.groups / file.rows * job.batching.judged)
    for line in describe_held_out(job.view, job.held_out, job.metrics, expected):
        warns = line.startswith(WARNING)
        yield (WARNING if warns else label, line.removeprefix(f"{WARNING} "))
        label = ""


def _few_files(view: CampaignView) -> Iterator[Line]:
    """Warn of ranges with far fewer files than the others: their listing may not be whole."""
    manifests = {name: view.paths.manifest(name) for name in view.ranges}
    counts = {name: count_listed(path) for name, path in manifests.items() if is_present(path)}
    for name, count in far_fewer(counts).items():
        yield ("WARNING", f"range {name} has {counted(count, 'file')}, far fewer than the others:")
        yield ("", f"if there are more, delete {manifests[name]} to list it again")


def _disk(job: PlanJob, volume: Volume) -> Iterator[Line]:
    ratios = measure_ratios(job.view)
    peak, free = peak_disk(job, volume, ratios), free_bytes(job.view.paths.results)
    budget = job.view.disk_budget
    ahead = min(job.look_ahead, volume.ranges)
    if peak is None:
        yield ("disk", f"{size(free)} free; raw copies have a budget of {size(budget)}")
        return
    most = f"{ahead} ranges ahead, {size(volume.largest or 0)} the largest"
    yield ("raw copies", f"{size(peak.raw)} at most: {most}")
    yield ("", f"budget {size(budget)} (source.disk_budget_gib)")
    yield ("splitting", f"{size(peak.spills)} at most: temporary files of {counted(ahead, 'range')}")
    yield ("shards", f"about {size(peak.shards)} for all ranges")
    basis = (
        f"measured in {counted(ratios.seen, 'split range')}"
        if ratios.seen
        else "assumed until the first range is split"
    )
    shares = f"shards {ratios.shards:.2f}, temporary files {ratios.spills:.2f} of the raw files' bytes"
    yield ("", f"{basis}: {shares}")
    yield ("disk", f"{size(peak.more)} more at the peak, {size(free)} free, {size(peak.taken)} taken")
    if peak.raw > budget:
        yield ("WARNING", "raw copies exceed their budget: lower source.look_ahead or raise the budget")
    if peak.more > free:
        yield ("WARNING", "this does not fit on the disk: free some space, or set `results` elsewhere")


def _locks(view: CampaignView) -> Iterator[Line]:
    """Warn where locks may hold within one host only: two of them could work on the same range."""
    for folder in (view.paths.results, view.paths.runs):
        mount = mount_of(folder)
        if mount is not None and mount.may_lock_locally():
            yield ("WARNING", f"{folder}: on {mount.describe()}: its locks may hold within one host only:")
            yield ("", "always start the workflow on the same host, or have it mounted with -o flock")


def _seen(job: PlanJob) -> Iterator[Line]:
    """Say what the source holds now, as far as it was asked."""
    seen, file = job.seen, job.seen.file
    label = "looked at"
    if seen.listed:
        files, taken = (sum(column) for column in zip(*seen.listed.values(), strict=True))
        text = f"{counted(len(seen.listed), 'range')} listed now: {counted(files, 'file')}, {size(taken)}"
        yield (label, text)
        label = ""
    for note in seen.notes:
        yield (label, note)
        label = ""
    if file is not None:
        yield ("file", file.name)
        yield ("", f"read by {file.reader}")
        columns = ", ".join(f"{name} {kind}" for name, kind in file.columns.items())
        yield ("", shorten(f"columns {columns}", _WIDTH))
        yield from (("", shorten(note, _WIDTH)) for note in file.notes)
        for place, line in enumerate(textwrap.wrap(file.doubt, _WIDTH)):
            yield ("" if place else WARNING, line)
    for warning in seen.warnings:
        yield (WARNING, warning)


def _events(job: PlanJob, events: EventCounts | None) -> Iterator[Line]:
    """Say how many events, batches and steps there are; warn where they are few, or one is too large."""
    if events is None:
        yield ("events", "known once a file is read by crpipe plan, or a range is split")
        return
    file, batching = job.seen.file, job.batching
    about = "" if events.exact else "about "
    yield ("events", f"{about}{number(events.events)} with {number(events.items)} {job.view.item}")
    if file is not None and not events.exact:
        yield ("", f"estimated from {counted(file.events, 'event')} in {counted(file.files, 'file')}")
    steps = steps_of_links(job, events)
    least, most = min(steps), max(steps)
    span = number(least) if least == most else f"{number(least)} to {number(most)}"
    yield ("steps", f"{about}{span} a link: batches of {number(batching.events)} events (load.batch_events)")
    if least < FEW_STEPS:
        yield (WARNING, f"a link has {about}{counted(least, 'step')} only: that hardly trains a model.")
        better = better_batch(job, least)
        batch = f"set load.batch_events: {better}, " if better < batching.events else ""
        longer = "raise train.epochs or train.ranges_per_link, or add files"
        yield ("", f"For {number(GOOD_STEPS)} or so {batch}{longer}")
    if file is not None and file.largest > batching.budget_items:
        yield (WARNING, f"an event of {number(file.largest)} {job.view.item} is larger than")
        yield ("", f"load.budget_items: {number(batching.budget_items)}; it takes as much more memory:")
        yield ("", "raise the budget to what the GPU holds, or set such events aside with split.threshold")


def _hours(job: PlanJob, events: EventCounts | None) -> Iterator[Line]:
    """Say how long the campaign takes, at rates that were measured here."""
    hours = estimate_hours(job, events)
    if hours.rate is None:
        yield ("time", "no rate of training is measured yet; plan again once a link has trained some steps")
    else:
        took = f"{number(hours.rate.events_per_s)} events/s, measured in {hours.rate.where}"
        whole = "" if hours.training_s is None else f"about {duration(hours.training_s)} of training, at "
        yield ("time", f"{whole}{took}")
    if hours.data_s is not None:
        each = ", ".join(f"{verb} {duration(taken)}" for verb, taken in hours.range_s.items())
        yield ("", f"about {duration(hours.data_s)} for the data, one range after the other ({each} each)")


def _jobs(view: CampaignView) -> list[str]:
    counts = count_jobs(view)
    columns = [
        Column("rule", list(counts)),
        Column("jobs", [number(jobs) for jobs, _ in counts.values()], right=True),
        Column("done", [number(done) for _, done in counts.values()], right=True),
    ]
    return table(columns, 80)


# The plan as one JSON object, for `crpipe plan --json`; its fields are listed in docs/watching.md.


_HOUR = 3600


def describe_plan(job: PlanJob) -> dict[str, Any]:
    """Give ranges, files, events, steps, disk, hours, jobs and warnings; null is what is not known yet."""
    view, volume, seen = job.view, measure_volume(job), job.seen
    events = estimate_events(job)
    hours = estimate_hours(job, events)
    peak = peak_disk(job, volume, measure_ratios(view))
    return {
        "run": view.run,
        "fingerprint": view.fingerprint,
        "source": job.source,
        "max_files": job.max_files,
        "ranges": {
            "count": len(view.ranges),
            "first": view.ranges[0],
            "last": view.ranges[-1],
            "skipped": list(view.skipped),
            "known": volume.known,
        },
        "listed_now": {
            name: {"files": files, "bytes": taken} for name, (files, taken) in seen.listed.items()
        },
        "file": None if seen.file is None else asdict(seen.file),
        "files": volume.files,
        "bytes": volume.bytes,
        "events": None if events is None else events.events,
        "items": None if events is None else events.items,
        "exact": events is not None and events.exact,
        "batch_events": job.batching.events,
        "steps_per_link": None if events is None else steps_of_links(job, events),
        "disk": {
            "raw": None if peak is None else peak.raw,
            "splitting": None if peak is None else peak.spills,
            "shards": None if peak is None else peak.shards,
            "more_at_peak": None if peak is None else peak.more,
            "budget": view.disk_budget,
            "free": free_bytes(view.paths.results),
        },
        "hours": {
            "training": None if hours.training_s is None else hours.training_s / _HOUR,
            "data": None if hours.data_s is None else hours.data_s / _HOUR,
            "events_per_s": None if hours.rate is None else hours.rate.events_per_s,
            "measured_in": None if hours.rate is None else hours.rate.where,
        },
        "jobs": {rule: {"jobs": jobs, "done": done} for rule, (jobs, done) in count_jobs(view).items()},
        "notes": list(seen.notes),
        "warnings": warnings_of(plan_lines(job)),
        "problems": list(seen.problems),
    }
