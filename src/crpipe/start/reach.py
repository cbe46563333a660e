"""Whether the source of the raw files answers: the files of the first range, in a short time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from crpipe.core.errors import CrpipeError
from crpipe.report.text import counted, size
from crpipe.source.look.listings import look
from crpipe.source.options import Kind
from crpipe.source.pelican.token_check import TokenJob, check_access
from crpipe.source.uris import FEDERATIONS, scheme_of
from crpipe.start.diagnoses import Diagnosis

if TYPE_CHECKING:
    from crpipe.source.look.listings import LookJob

_FIX = "correct section source or ranges, then: crpipe doctor"


def source_found(job: LookJob) -> Diagnosis:
    """List the files of the first range, as `crpipe plan` does."""
    if job.pattern.kind is Kind.SIMULATED:
        maker = job.source.simulator.rpartition(":")[2]
        return Diagnosis("source", "ok", f"synthetic://: {maker} makes the files")
    try:
        listings = look(job)
    except CrpipeError as error:
        return Diagnosis("source", "fail", str(error), _FIX)
    wrong = [*listings.problems, *listings.warnings]
    if wrong:
        return Diagnosis("source", "fail", wrong[0], _FIX)
    name = str(job.ranges[0])
    entries = listings.found[name]
    total = size(sum(entry.size or 0 for entry in entries))
    return Diagnosis("source", "ok", f"{counted(len(entries), 'file')}, {total} (range {name})")


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
