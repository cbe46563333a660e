"""The last validation of the newest link that has one, for `crpipe status`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from crpipe.core.files import read_json_if_any
from crpipe.report.series import VALIDATION
from crpipe.report.status.journal_tail import METRICS_BYTES, metric_rows, tail

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from crpipe.core.paths import Paths

_SHOWN = 6  # numbers of a validation that are shown


@dataclass(frozen=True, slots=True)
class ValidationStatus:
    """The last validation of one link, and its best value of what train.keep_best names.

    numbers, step: what was measured last, finite values only; None where the file of metrics is gone.
    metric, best, best_step: empty and None without train.keep_best.
    value: the last one of ``metric``. stopped: why the link ended early; empty where it did not.
    """

    link: str
    step: int | None = None
    numbers: Mapping[str, float] = field(default_factory=dict)
    metric: str = ""
    value: float | None = None
    best: float | None = None
    best_step: int | None = None
    stopped: str = ""

    def line(self) -> str:
        """Describe it in one line."""
        ended = f"; ended early: {self.stopped}" if self.stopped else ""
        if self.best is None or self.best_step is None:
            first = sorted(self.numbers.items(), key=lambda item: _rank(item[0]))
            shown = [f"{name} {value:.5g}" for name, value in first[:_SHOWN]]
            more = ", …" if len(self.numbers) > _SHOWN else ""
            return f"{', '.join(shown)}{more} at step {self.step or 0:,} ({self.link}){ended}"
        now = "" if self.value is None else f"{self.value:.5g} at step {self.step or 0:,}, "
        return f"{self.metric} {now}best {self.best:.5g} at step {self.best_step:,} ({self.link}){ended}"


def _rank(name: str) -> int:
    """Put the workload's own numbers first, then losses, then the other metrics of phases."""
    return 0 if "/" not in name else 1 if name.endswith("/loss") else 2


def last_validation(paths: Paths, links: Sequence[str]) -> ValidationStatus | None:
    """Find the newest link with a validation or a best checkpoint; None where there is none."""
    for link in reversed(links):
        best = read_json_if_any(paths.best_receipt(link)) or {}
        metric = best.get("metric", "")
        last, numbers = _last_row(paths, link, metric)
        if best or numbers:
            receipt = read_json_if_any(paths.receipt(link)) or {}
            return ValidationStatus(
                link,
                last.get("step"),
                numbers,
                metric,
                numbers.get(metric),
                best.get("value"),
                best.get("step"),
                receipt.get("stopped", ""),
            )
    return None


def _last_row(paths: Paths, link: str, metric: str) -> tuple[dict[str, Any], dict[str, float]]:
    """Read the last validation of a link, with ``metric`` in it where that is given."""
    wanted = VALIDATION + metric
    rows = metric_rows(tail(paths.store(link) / "metrics.jsonl", METRICS_BYTES, VALIDATION.encode()))
    for row in reversed(rows):
        names = [name for name in row if name.startswith(VALIDATION)]
        if wanted in names or (names and not metric):
            return row, {name.removeprefix(VALIDATION): row[name] for name in names}
    return {}, {}
