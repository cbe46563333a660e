"""The last validation of the newest link that keeps a best checkpoint, for `crpipe status`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from crpipe.core.files import read_json_if_any
from crpipe.report.series import VALIDATION
from crpipe.report.status.journal_tail import METRICS_BYTES, tail

if TYPE_CHECKING:
    from collections.abc import Sequence

    from crpipe.core.paths import Paths


@dataclass(frozen=True, slots=True)
class ValidationStatus:
    """What train.keep_best names, in one link.

    value, step: the last finite one, None where the file of metrics is gone; best, best_step: the best one.
    stopped: why the link ended early; empty where it did not.
    """

    link: str
    metric: str
    value: float | None
    step: int | None
    best: float
    best_step: int
    stopped: str = ""

    def line(self) -> str:
        """Describe it in one line."""
        now = "" if self.value is None else f"{self.value:.5g} at step {self.step:,}, "
        ended = f"; ended early: {self.stopped}" if self.stopped else ""
        return f"{self.metric} {now}best {self.best:.5g} at step {self.best_step:,} ({self.link}){ended}"


def last_validation(paths: Paths, links: Sequence[str]) -> ValidationStatus | None:
    """Find the newest link with a best checkpoint; None where there is none."""
    for link in reversed(links):
        best = read_json_if_any(paths.best_receipt(link))
        if best is None:
            continue
        name = VALIDATION + best["metric"]
        rows = [row for row in tail(paths.store(link) / "metrics.jsonl", METRICS_BYTES) if name in row]
        receipt = read_json_if_any(paths.receipt(link)) or {}
        last = rows[-1] if rows else {}
        return ValidationStatus(
            link,
            best["metric"],
            last.get(name),
            last.get("step"),
            best["value"],
            best["step"],
            receipt.get("stopped", ""),
        )
    return None
