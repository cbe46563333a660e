"""Whether the source of the raw files answers: the files of the first range, in a short time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from crpipe.core.errors import CrpipeError
from crpipe.report.text import counted, size
from crpipe.source.listing import described, entries_of, read_list
from crpipe.source.options import Kind, SourcePattern
from crpipe.source.pelican.token_check import TokenJob, check_access
from crpipe.source.retries import Deadline
from crpipe.source.uris import FEDERATIONS, scheme_of
from crpipe.start.diagnoses import Diagnosis
from crpipe.start.local_files import look

if TYPE_CHECKING:
    from collections.abc import Sequence

    from crpipe.core.ranges import Range
    from crpipe.core.raw_files import Entry
    from crpipe.source.options import SourceOptions

PATIENCE_S = 20.0
_FIX = "correct section source or ranges, then: crpipe doctor"
_WHAT = "the look at the source"


def source_found(pattern: SourcePattern, first: Range, options: SourceOptions) -> Diagnosis:
    """List the files of the first range, or those of the whole source where ranges are no directories."""
    if pattern.kind is Kind.SIMULATED:
        return Diagnosis(
            "source", "ok", f"synthetic://: {options.simulator.rpartition(':')[2]} makes the files"
        )
    short = replace(
        options, deadline_s=PATIENCE_S, attempts=2, read_timeout_s=min(options.read_timeout_s, PATIENCE_S / 2)
    )
    try:
        entries, where = _listed(pattern, first, short)
    except CrpipeError as error:
        return Diagnosis("source", "fail", _reason(pattern, error), _FIX)
    if not entries:
        reason = _reason(pattern, CrpipeError(f"no file matches {pattern.shown} ({where})"))
        return Diagnosis("source", "fail", reason, _FIX)
    total = size(sum(entry.size or 0 for entry in entries))
    return Diagnosis("source", "ok", f"{counted(len(entries), 'file')}, {total} ({where})")


def _reason(pattern: SourcePattern, error: CrpipeError) -> str:
    """Say why the source has no files; of a local folder, what lies there instead."""
    try:
        look(pattern.uri, pattern.files)
    except CrpipeError as nearer:
        return str(nearer)
    return str(error)


def _listed(pattern: SourcePattern, first: Range, options: SourceOptions) -> tuple[Sequence[Entry], str]:
    deadline = Deadline(PATIENCE_S, _WHAT)
    if pattern.kind in (Kind.FLAT_LIST, Kind.RANGE_LISTS):
        file = pattern.list_file(first if pattern.kind is Kind.RANGE_LISTS else None)
        uris = read_list(file)
        asked = uris[:1]
        where = f"the first of {counted(len(uris), 'file')} in {file}"
        return described(options, asked, asked, "source.files", deadline), where
    if pattern.kind is Kind.RANGES:
        place, where = pattern.place(first), f"range {first}"
    else:
        place, where = pattern.whole(), "the whole folder"
    return entries_of(options, place, place.has, deadline), where


def token_found(job: TokenJob) -> Diagnosis:
    """Compare the token in use with what the source asks for."""
    if not any(uri and scheme_of(uri) in FEDERATIONS for uri in job.uris):
        return Diagnosis("token", "ok", "the source needs none")
    try:
        access = check_access(job)
    except CrpipeError as error:
        return Diagnosis("token", "fail", str(error), "crpipe token --login")
    if not access.answered:
        return Diagnosis("token", "warn", f"not compared: {access.problem}", "crpipe doctor   # later")
    if access.problem:
        return Diagnosis("token", "fail", access.problem, "crpipe token --login")
    lines = access.text.splitlines()
    rows = dict(line.split(maxsplit=1) for line in lines if len(line.split(maxsplit=1)) > 1)
    if "ends" not in rows:
        return Diagnosis("token", "ok", lines[0])
    return Diagnosis("token", "ok", f"covers the campaign; ends {rows['ends']}")
