"""The plan as one JSON object, for `crpipe plan --json`; its fields are listed in docs/watching.md."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from crpipe.core.files import free_bytes
from crpipe.report.plan.jobs import count_jobs
from crpipe.report.plan.pace import estimate_events, estimate_hours, steps_of_links
from crpipe.report.plan.plan import plan_lines, warnings_of
from crpipe.report.plan.volume import measure_ratios, measure_volume, peak_disk

if TYPE_CHECKING:
    from crpipe.report.plan.job import PlanJob

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
