"""`crpipe run --keep-trying`: whether a failed workflow is started again, and after what pause."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from crpipe.core.errors import CrpipeError, code_may_pass, may_pass

if TYPE_CHECKING:
    from crpipe.workflow.launch import HeadEnd

LONGEST_S = 3600.0
MOST = 50  # about two days of one cause without any progress


@dataclass(slots=True)
class Patience:
    """Growing pauses, from ``first_s`` to an hour; each cause is waited for MOST times without progress."""

    first_s: float = 60.0
    tries: Counter[str] = field(default_factory=Counter)
    _pause_s: float = 0.0

    def after(self, end: HeadEnd) -> float:
        """Give the pause after a failed workflow, in seconds; 0 where it is no use to try again."""
        if not hopes(end):
            return 0.0
        return self._next(causes(end), progress=end.finished > 0)

    def after_error(self, error: CrpipeError) -> float:
        """Give the pause after an error before any job; 0 where it is no use to try again."""
        if not may_pass(type(error).__name__):
            return 0.0
        return self._next([str(error)], progress=False)

    def _next(self, found: list[str], *, progress: bool) -> float:
        if progress:
            self.tries.clear()
            self._pause_s = 0.0
        self.tries.update(found)
        if any(self.tries[cause] > MOST for cause in found):
            return 0.0
        self._pause_s = min(max(2 * self._pause_s, self.first_s), LONGEST_S)
        return self._pause_s


def hopes(end: HeadEnd) -> bool:
    """Return whether waiting may repair what made the workflow fail."""
    if end.failures:
        return all(may_pass(failure["kind"]) for failure in end.failures)
    # Snakemake ends with 1 for every error of its own: one before any job is a wrong target or option.
    return code_may_pass(end.code) and (end.began or end.code != 1)


def causes(end: HeadEnd) -> list[str]:
    """Name each cause of a failure: what failed, and by which error."""
    named = [f"{each['verb']} {each['name']}: {each['kind'] or 'killed'}" for each in end.failures]
    return named or [f"exit {end.code}"]


def described(end: HeadEnd) -> str:
    """Say in one line what failed."""
    ended = {"verb": "workflow", "name": "", "cause": f"ended with exit code {end.code}"}
    first, *more = end.failures or [ended]
    others = f" (and {len(more)} more)" if more else ""
    separator = " " if first["cause"].startswith("(") else ": "
    return f"{' '.join(filter(None, (first['verb'], first['name'])))}{separator}{first['cause']}{others}"
