"""What is written above every figure, and what its numbers are compared with; needs no matplotlib."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


FORMATS = (".svg", ".png", ".pdf", ".csv")


@dataclass(frozen=True, slots=True)
class FigureContext:
    """What whoever makes figures knows besides their data.

    heading: run, checkpoint and numbers of events, in one line above the figure. floor: the numbers of an
    evaluation of the same events simulated again, by name, with ``NAME_error``; empty where there are none.
    formats: what a figure is written as; () where nobody looks at it.
    """

    heading: str = ""
    formats: tuple[str, ...] = FORMATS
    floor: Mapping[str, float] = field(default_factory=dict)


_CONTEXT: ContextVar[FigureContext] = ContextVar("figure_context", default=FigureContext())  # noqa: B039 - frozen


@contextmanager
def figures_of(context: FigureContext) -> Iterator[None]:
    """Return every figure that is saved inside the block its heading and its floor."""
    token = _CONTEXT.set(context)
    try:
        yield
    finally:
        _CONTEXT.reset(token)


def heading() -> str:
    """Return the line above a figure; empty where nobody gave one."""
    return _CONTEXT.get().heading


def formats() -> tuple[str, ...]:
    """Return what figures are written as."""
    return _CONTEXT.get().formats


def floor(name: str) -> tuple[float, float] | None:
    """Return a number of the floor and its error (0: not known); None where it has no such number."""
    numbers = _CONTEXT.get().floor
    return (numbers[name], numbers.get(f"{name}_error", 0.0)) if name in numbers else None
