"""`crpipe check --source`: lists every range again, and compares the source with what was listed before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from crpipe.campaign.raw_files import STAGED
from crpipe.campaign.split_record import SplitRecord
from crpipe.check.findings import CheckReport, removing
from crpipe.core.causes import is_present
from crpipe.core.files import read_json_if_any
from crpipe.source.listing import find_changes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from crpipe.campaign.campaign import Campaign
    from crpipe.core.text import Progress


_SHOWN = 3  # files that a finding names


def check_source(report: CheckReport, campaign: Campaign, names: Sequence[str], progress: Progress) -> None:
    """Compare the manifests of ranges with the source as it is now.

    Files that are gone are a note once their range is split: its shards hold their events. Raise
    ListingError, or what else keeps the source from being listed.
    """
    named = {*names} or {*campaign.ranges}
    ranges = [name for name in campaign.ranges if name in named and is_present(campaign.paths.manifest(name))]
    for done, name in enumerate(ranges, 1):
        _check_range(report, campaign, name)
        progress.update("check the source", done, len(ranges), name)


def _check_range(report: CheckReport, campaign: Campaign, name: str) -> None:
    manifest = campaign.paths.manifest(name)
    ledger = read_json_if_any(campaign.paths.ledger(name))
    aside = {row["path"] for row in (ledger or {"files": []})["files"] if row["state"] != STAGED}
    changes = find_changes(campaign, name, aside)
    wrong = [*changes.new, *changes.other]
    if ledger is None:
        wrong += changes.gone
        remedy = f"{removing(manifest)} && crpipe list {name}"
    elif changes.gone:
        why = f"{len(changes.gone)} of its files are not in the source any more; its shards hold their events"
        report.note(name, why)
        remedy = f"crpipe check --source {name}"
        wrong = [f"{line}, once the files that are gone are restored" for line in wrong]
    else:
        again = SplitRecord.of(campaign.paths, name).remove()
        remedy = f"{again} && crpipe list {name} && crpipe stage {name} && crpipe split {name}"
    if wrong:
        lines = "; ".join(line.strip() for line in wrong[:_SHOWN])
        report.error(manifest, f"the source holds something else: {lines}", remedy)
