"""Exports of a run: every file has its recorded hash, and the checkpoint is one that a receipt names."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from crpipe.check.findings import MALFORMED
from crpipe.core.causes import look_at
from crpipe.core.files import read_json

if TYPE_CHECKING:
    from pathlib import Path

    from crpipe.check.findings import CheckReport
    from crpipe.check.job import CheckJob

_ABOUT = "config.json"


def check_export(report: CheckReport, job: CheckJob, folder: Path) -> None:
    """Check the folder that `crpipe export` wrote."""
    path, paths = folder / _ABOUT, job.paths
    own = {name: paths.receipt(name) for name in job.chain.names}
    own |= {f"{name}.best": paths.best_receipt(name) for name in job.chain.names}
    remedy = f"crpipe export --checkpoint latest --out {shlex.quote(str(folder))}"
    row = report.read_object(path, remedy)
    if row is None:
        return
    with report.reading(path, remedy):
        made = [name for name, receipt in own.items() if _hash_in(receipt) == row["checkpoint"]]
        if made:
            remedy = remedy.replace("latest", made[0])
        else:
            report.wrong(path, "is of a checkpoint that no receipt of this run names", remedy)
        for name, expected in row["files"].items():
            file = folder / name
            found = look_at(file)
            size = found.st_size if found else 0
            report.has_bytes(file, size, expected, remedy)
        report.counts["exports"] += 1


def _hash_in(receipt: Path) -> str:
    try:
        return str(read_json(receipt)["sha256"])
    except MALFORMED:
        return ""
