"""What all ranges share: the recorded keys, the layout, the threshold, side tables, numbered files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from crpipe.check.findings import MALFORMED
from crpipe.check.job import removing
from crpipe.core.causes import is_present
from crpipe.core.files import read_json
from crpipe.events.duplicates import ALLOW, find_twins
from crpipe.events.layout import Layout
from crpipe.events.tables import read_tables
from crpipe.source.positions import Positions, natural_order

if TYPE_CHECKING:
    from crpipe.check.findings import CheckReport
    from crpipe.check.job import CheckJob, Facts


def check_campaign_files(report: CheckReport, job: CheckJob, facts: Facts) -> None:
    """Check the files that all ranges share."""
    paths = job.paths
    if not is_present(paths.campaign()) and not is_present(paths.layout()):
        report.note(str(paths.results), "no job has run yet")
        return
    # The first job of a campaign writes both, and `crpipe list` of any range is such a job.
    remedy = f"{removing(paths.campaign(), paths.layout())} && crpipe list {job.ranges[0]}"
    keys = report.read_object(paths.campaign(), remedy)
    with report.reading(paths.layout(), remedy):
        layout = Layout.from_description(read_json(paths.layout()))
        own = {name: value for name, value in (keys or {}).items() if name.startswith("layout.")}
        if keys is not None and layout.identity() != own:
            report.wrong(paths.layout(), "is not the layout of campaign.json", remedy)
        if facts.layout is not None and layout.describe() != facts.layout.describe():
            report.wrong(paths.layout(), "is not the layout of the shards", remedy)
    if keys is not None and facts.data != facts.recorded["data"] != "":
        report.wrong(paths.campaign(), "does not hold the keys that the shards were made with", remedy)
    _check_threshold(report, job, facts, keys or {})
    _check_tables(report, job)
    _check_positions(report, job)
    _check_twins(report, job)


def _check_twins(report: CheckReport, job: CheckJob) -> None:
    """Find raw files of the same content in two ranges."""
    try:
        found = find_twins(job.paths, job.ranges)
    except MALFORMED:
        return  # reported with its range
    if found is None:
        return
    if job.duplicates:
        report.note(found.ranges[1], f"{found.describe()}, as {ALLOW} says")
    else:
        report.wrong(job.paths.ledger(found.ranges[1]), found.describe(), found.remedy())


def _check_threshold(report: CheckReport, job: CheckJob, facts: Facts, keys: dict[str, Any]) -> None:
    """Compare the threshold of a quantile with that of the shards."""
    path = job.paths.threshold()
    if keys.get("split.quantile") is None or facts.threshold is None:
        return
    if facts.recorded["threshold"] != facts.threshold:
        names = keys["split.reference_ranges"] or [job.ranges[0]]
        # Ranges that are split have a table; of the others, the raw copies are needed for their split, too.
        stage = [f"crpipe stage {name}" for name in names if not is_present(job.paths.ledger(name))]
        remedy = " && ".join([removing(path), *stage, "crpipe threshold"])
        report.wrong(path, f"does not hold the threshold of the shards, {facts.threshold}", remedy)


def _check_tables(report: CheckReport, job: CheckJob) -> None:
    record = job.paths.tables()
    remedy = f"{removing(record)} && crpipe tables"
    with report.reading(record, remedy):
        for row in read_tables(record).values():
            # The record stays: by its hashes another table is refused.
            report.has_bytes(record.parent / row["path"], row["size"], row["sha256"], "crpipe tables")
            report.counts["tables"] += 1


def _check_positions(report: CheckReport, job: CheckJob) -> None:
    paths = job.paths
    record, names = paths.positions(), paths.position_names()
    if not is_present(record) and not is_present(names):
        return
    remedy = f"{removing(record, names)} && crpipe list {job.ranges[0]}"
    row = report.read_object(record, remedy)
    with report.reading(names, remedy):
        found = Positions(record, names).read()
        if natural_order(found) != found or (row is not None and row["files"] != len(found)):
            report.wrong(names, "damaged: not the ordered names that positions.json counts", remedy)


def check_run_files(report: CheckReport, job: CheckJob, facts: Facts) -> None:
    """Check the keys that the run recorded."""
    path = job.paths.run_config()
    trained = [link.name for link in job.chain.links if is_present(job.paths.receipt(link.name))]
    if trained:
        remedy = f"{removing(path)} && crpipe train {trained[0]}"
        if (
            report.read_object(path, remedy) is not None
            and facts.fingerprint != facts.recorded["fingerprint"]
        ):
            report.wrong(path, "does not hold the keys that the run was trained with", remedy)
