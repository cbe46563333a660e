"""The declaration of one number of an evaluation: its title, unit, and which direction is better."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Metric:
    """One number that ``score`` returns under ``name``; ``NAME_error`` beside it is its error.

    better: ``low`` or ``high``, or ``near`` to ``ideal``. ideal: the best possible value, where there is one.
    """

    name: str
    title: str
    unit: str = ""
    better: Literal["low", "high", "near"] = "low"
    ideal: float | None = None

    def describe(self) -> dict[str, Any]:
        """Give the declaration as JSON values, as metrics.json holds it."""
        return asdict(self)
