"""The declaration of one number of an evaluation: its title, unit, and which direction is better."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from crpipe.config.messages import check_choice
from crpipe.core.progress import counted

if TYPE_CHECKING:
    from collections.abc import Iterable


Better = Literal["low", "high", "near"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One number that ``score`` returns under ``name``; ``NAME_error`` beside it is its error.

    better: ``low`` or ``high``, or ``near`` to ``ideal``. ideal: the best possible value, where there is one.
    groups: fewest groups of held-out events that it needs. needs: all that it needs, in words, where that
    is more; a person reads it where the number is missing.
    """

    name: str
    title: str
    unit: str = ""
    better: Better = "low"
    ideal: float | None = None
    groups: int = 1
    needs: str = ""

    def __post_init__(self) -> None:
        """Raise ConfigError for a direction that nothing knows: reports would give it no verdict."""
        check_choice(f"Metric {self.name}: better", self.better, get_args(Better))

    def describe(self) -> dict[str, Any]:
        """Give the declaration as JSON values, as metrics.json holds it."""
        return asdict(self)

    @property
    def need(self) -> str:
        """All that the number needs, in words."""
        return self.needs or counted(self.groups, "group")


def not_enough(missing: Iterable[tuple[str, str]], events: int, groups: int) -> str:
    """Say which numbers (title, need) are missing; events, groups: how many were held out."""
    wanted: dict[str, list[str]] = {}
    for title, need in missing:
        wanted.setdefault(need, []).append(title)
    needs = (
        f"{', '.join(titles)} {'needs' if len(titles) == 1 else 'need'} {need}"
        for need, titles in wanted.items()
    )
    held_out = f"{counted(events, 'held-out event')} of {counted(groups, 'group')}"
    return f"{held_out}: {'; '.join(needs)}"
