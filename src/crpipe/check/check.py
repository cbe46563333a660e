"""`crpipe check`: goes through all parts of a campaign, one after the other or in several processes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from crpipe.check.consolidated import check_merged
from crpipe.check.data import check_campaign_files, check_range, check_run_files
from crpipe.check.findings import CheckReport, read_facts
from crpipe.check.training import check_evaluation, check_export, check_link, list_evaluations
from crpipe.core.errors import ConfigError
from crpipe.core.paths import CONSOLIDATED
from crpipe.split.workers import in_order

if TYPE_CHECKING:
    from crpipe.check.findings import CheckJob, Facts
    from crpipe.core.text import Progress


@dataclass(frozen=True, slots=True)
class Unit:
    """One part of a campaign that is checked by itself."""

    kind: Literal["campaign", "range", "merged", "run", "link", "evaluation", "export"]
    name: str


def check_campaign(job: CheckJob, progress: Progress) -> CheckReport:
    """Check a campaign; raise ConfigError for a name that is none of its ranges or links.

    Only reads. What is damaged is a finding, and the check goes on; running and waiting parts are notes.
    """
    facts, units = read_facts(job), list_units(job)
    whole = CheckReport()
    results = in_order(partial(check_unit, job, facts), units, job.processes)
    for done, (unit, report) in enumerate(zip(units, results, strict=True), 1):
        whole.add(report)
        progress.advance("check", done, len(units), f"{unit.kind} {unit.name}".strip())
    return whole


def list_units(job: CheckJob) -> list[Unit]:
    """List the parts to check, in the order of the work."""
    links = job.chain.names
    known = {*job.ranges, *links, CONSOLIDATED}
    for name in job.names:
        if name not in known:
            raise ConfigError(
                f"{name}: neither a range nor a link of this campaign; `crpipe status` names them"
            )
    units = [Unit("campaign", "")]
    units += [Unit("range", name) for name in job.ranges if job.wants(name)]
    merges = any(not link.ranges for link in job.chain.links)
    units += [Unit("merged", CONSOLIDATED)] if merges and job.wants(CONSOLIDATED) else []
    units += [Unit("run", "")]
    units += [Unit("link", name) for name in links if job.wants(name)]
    made = list_evaluations(job)
    units += [Unit("evaluation", name) for name in made if job.wants(name.removesuffix(".best"))]
    return units + [Unit("export", str(folder)) for folder in job.exports]


def check_unit(job: CheckJob, facts: Facts, unit: Unit) -> CheckReport:
    """Check one part; what is wrong is looked at twice: a job may just have been replacing it."""
    first = _look(job, facts, unit)
    return _look(job, facts, unit) if first.findings else first


def _look(job: CheckJob, facts: Facts, unit: Unit) -> CheckReport:
    report = CheckReport()
    match unit.kind:
        case "campaign":
            check_campaign_files(report, job, facts)
        case "range":
            check_range(report, job, facts, unit.name)
        case "merged":
            check_merged(report, job, facts)
        case "run":
            check_run_files(report, job, facts)
        case "link":
            check_link(report, job, facts, unit.name)
        case "evaluation":
            check_evaluation(report, job, unit.name)
        case "export":
            check_export(report, job, Path(unit.name))
    return report
