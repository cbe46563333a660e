"""Evaluations of a run: each names a checkpoint of this run, and has a row for each event that it judged."""

from __future__ import annotations

import filecmp
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from crpipe.check.findings import MALFORMED
from crpipe.core.causes import is_present
from crpipe.core.chain import HASH_DIGITS
from crpipe.core.files import digest, read_json
from crpipe.core.paths import EVALUATED, EVALUATED_KEY, FINISHED, KEY_DIGEST

if TYPE_CHECKING:
    from pathlib import Path

    from crpipe.check.findings import CheckReport
    from crpipe.check.job import CheckJob


def list_evaluations(job: CheckJob) -> list[str]:
    """Name the evaluations of a run."""
    return sorted(path.parent.name for path in job.paths.evaluation("x").parent.glob("*/metrics.json"))


def check_evaluation(report: CheckReport, job: CheckJob, name: str) -> None:
    """Check that an evaluation judged a checkpoint that the receipts of its link name."""
    folder, remedy = job.paths.evaluation(name), f"crpipe evaluate {name.removesuffix('.best')}"
    remedy += f" --checkpoint {name}" if name.endswith(".best") else ""
    path = folder / "metrics.json"
    row = report.read_object(path, remedy)
    if row is None:
        return
    report.counts["evaluations"] += 1
    with report.reading(path, remedy):
        link = name.removesuffix(".best")
        if job.chain.find(link) is None:
            files = job.paths.store("x").parent.glob(f"*/*-{row['checkpoint'][:HASH_DIGITS]}.pt")
            if not any(files):
                report.note(f"evaluation {name}", "of a checkpoint that is not in this run")
        else:
            receipts = [job.paths.best_receipt(link), job.paths.receipt(link)]
            if not any(_names(receipt, row) for receipt in receipts):
                report.wrong(path, "judged a checkpoint that no receipt of this link names", remedy)
        if not isinstance(row["values"], dict) or not isinstance(row["metrics"], list):
            report.wrong(path, "damaged: holds no numbers", remedy)
    rows = folder / "predictions.parquet"
    with report.reading(rows, remedy), pq.ParquetFile(rows) as file:
        if file.metadata.num_rows != row["events"]:
            report.wrong(
                rows, f"holds {file.metadata.num_rows} events, metrics.json says {row['events']}", remedy
            )
    _check_kept(report, folder, name, remedy)


def _check_kept(report: CheckReport, folder: Path, name: str, remedy: str) -> None:
    """Check the second names of the results, and the key that these follow from."""
    record = folder / FINISHED
    if not is_present(record / EVALUATED_KEY):
        report.note(f"evaluation {name}", "has no second copy of its results")
        return
    key = report.read_object(record / EVALUATED_KEY, remedy)
    if key is not None and key.pop(KEY_DIGEST, None) != digest(key):
        report.wrong(record / EVALUATED_KEY, "damaged: its values do not have the digest in it", remedy)
    for own in EVALUATED:
        twin, path = record / own, folder / own
        with report.reading(twin, remedy):
            if is_present(path) and not path.samefile(twin) and not filecmp.cmp(path, twin, shallow=False):
                report.wrong(twin, f"is not {path}", remedy)


def _names(receipt: Any, row: dict[str, Any]) -> bool:
    """Return whether a receipt points to the checkpoint of an evaluation, at its step."""
    try:
        made = read_json(receipt)
        return bool(made["sha256"] == row["checkpoint"] and made["step"] == row["step"])
    except MALFORMED:
        return False
