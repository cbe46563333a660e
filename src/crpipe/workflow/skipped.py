"""`ranges.on_failure: skip`: which failures of a workflow are a range's own, and their durable record.

Only the head decides, once, when its jobs have ended and were tried again. A record is all that changes: from
the next call on the range is left out, as one that `ranges.skip` names.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from crpipe.campaign.raw_files import read_manifest
from crpipe.campaign.records import SkippedRange
from crpipe.campaign.split_record import SplitRecord
from crpipe.core.causes import is_present
from crpipe.core.errors import AccessError, FormatError, ListingError, SourceError, TransferError, code_of
from crpipe.core.files import make_folder
from crpipe.core.ranges import Range
from crpipe.core.text import counted
from crpipe.source.preview import list_now

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from crpipe.campaign.campaign import Campaign

    Failure = Mapping[str, Any]  # a row of `crpipe.report.failures.kinds_of`

TRIES = 3  # of a step of a range, at least
# Errors, and none of their subclasses, that the files of one range can cause. Never: an outage, a token that
# does not cover the bytes, a file that was replaced (a person says which counts), the machine, code, keys.
_OWN: dict[str, tuple[type[SourceError], ...]] = {
    "list": (ListingError, AccessError),
    "stage": (ListingError, TransferError, FormatError, SourceError),
    "convert": (FormatError,),  # SourceError: of a command that works for no file any more, or of a copy
    "split": (FormatError,),
}


def skip_bad_ranges(
    campaign: Campaign, failures: Sequence[Failure]
) -> tuple[tuple[SkippedRange, ...], list[str]]:
    """Record the failed ranges whose own files are bad; return the records, and why others have none.

    failures: of jobs that were tried for the last time. Raise MachineError when a record cannot be written.
    """
    section = campaign.config.ranges
    if section.on_failure != "skip":
        return (), []
    of_ranges = [each for each in failures if each["verb"] in _OWN and each["name"] in campaign.ranges]
    judged = {each["name"]: (each, _not_its_own(campaign, each, of_ranges)) for each in of_ranges}
    new = [_record(campaign, failure) for failure, why in judged.values() if not why]
    lines = [f"{name} is not skipped (ranges.on_failure): {why}" for name, (_, why) in judged.items() if why]
    bad = [*campaign.given_up, *new]
    if new and len(bad) > section.max_skipped:
        lines.append(
            f"{counted(len(bad), 'range')} stay{'s' if len(bad) == 1 else ''} bad, and ranges.max_skipped is "
            f"{section.max_skipped}: none of them is skipped now; repair them, raise it, or "
            "name them in ranges.skip:"
        )
        return (), [*lines, *(f"  {each.describe()}" for each in bad)]
    for record in new:
        path = campaign.paths.skipped(record.range)
        make_folder(path.parent)
        record.write(path)
    return tuple(new), lines


def _not_its_own(campaign: Campaign, failure: Failure, failures: Sequence[Failure]) -> str:
    """Return why a failure may be that of every range, or is not to be passed by; empty if it is its own."""
    paths, verb, name = campaign.paths, failure["verb"], failure["name"]
    bad = {each["name"] for each in failures}
    others = [each for each in campaign.ranges if each not in bad]
    if failure["kind"] not in {each.__name__ for each in _OWN[verb]}:
        return "its files are not what is wrong"
    if failure["attempts"] < TRIES:
        return f"it was tried in {failure['attempts']} of {TRIES} attempts; run the same command again"
    if name in campaign.config.split.reference_ranges:
        return "split.reference_ranges names it"
    if is_present(SplitRecord.of(paths, name).folder):
        return f"it was split before: crpipe check {name}"
    if verb != "list" and not any(is_present(paths.ledger(each)) for each in others):
        return "no other range is split, so the source or the reader may be wrong for all"
    return "" if verb == "split" else _wrong_source(campaign, others)


def _wrong_source(campaign: Campaign, others: Sequence[str]) -> str:
    """Return why the source may be wrong for all ranges: one that was listed before is not listed now."""
    listed = next((each for each in others if is_present(campaign.paths.manifest(each))), "")
    if not listed:
        return "no other range is listed, so the source may be wrong for all"
    seen = list_now(campaign.config, [Range.parse(listed)])
    wrong = (*seen.problems, *seen.warnings)
    return f"{listed} cannot be listed now, either: {wrong[0]}" if wrong else ""


def _record(campaign: Campaign, failure: Failure) -> SkippedRange:
    manifest = campaign.paths.manifest(failure["name"])
    entries = read_manifest(manifest) if is_present(manifest) else None
    sizes = None if entries is None else [each.size for each in entries]
    return SkippedRange(
        range=failure["name"],
        verb=failure["verb"],
        kind=failure["kind"],
        cause=failure["cause"].removeprefix(f"(exit {code_of(failure['kind'])}): "),
        attempts=failure["attempts"],
        log=failure["log"],
        time=round(time.time(), 3),
        files=None if sizes is None else len(sizes),
        bytes=None if sizes is None or None in sizes else sum(each or 0 for each in sizes),
    )
