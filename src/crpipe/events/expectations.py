"""What a reader may know of its columns beside the layout, and which unit a value would fit."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from crpipe.events.layout import Field, Layout

# Units that are taken for each other, in the first of which all are given.
_FAMILIES: tuple[dict[str, float], ...] = (
    {"MeV": 1.0, "eV": 1e-6, "keV": 1e-3, "GeV": 1e3, "TeV": 1e6, "PeV": 1e9},
    {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9, "ps": 1e-12},
    {"m": 1.0, "mm": 1e-3, "cm": 1e-2, "km": 1e3},
    {"rad": 1.0, "degrees": math.pi / 180},
)
_SENTINELS = {-float("9" * digits) for digits in range(1, 7)} | {-1.0, 999.0, 9999.0, 99999.0, 999999.0}
_SENTINELS |= {sign * 10.0**power for sign in (-1, 1) for power in (9, 10, 20, 30, 38)}
_DIGITS = 6  # of a float32
_SENTINELS |= {float(f"{value:.{_DIGITS}g}") for value in (-(2.0**31), 2.0**31 - 1, 2.0**32 - 1)}
_FAR = 3  # times the limit, or the usual medians: nearer values are ordinary ones that a cut leaves out
_UNUSUAL = ("keV", "PeV")  # only where no other unit fits
_DECADES = 1e6  # between usual medians: such columns are often stored as logarithms
_SLACK = 10  # times the usual medians: a single value may be so far from them


@dataclass(frozen=True, slots=True)
class Expectations:
    """What ``crpipe plan`` and the split compare the values of a reader with; all of it may be left out.

    Columns are event columns by their name, and item columns as ``item.name``, for example ``hits.time_ns``.

    typical: {column: (low, high)}, between which the median of its values is without their signs and zeros.
    units: {column: its unit in the file}, where the reader converts it.
    flags: {item column: the name of the item column that is 0 where it has no value}.
    axes: {event column: what saw it along the same axis}, the name of an item column, or an array
        [layout.fixed] with the coordinate of each item.
    weights: name of the item column by which items count in the centre of an event; empty: all alike.
    sums: {event column: the name of the item column whose sum over an event cannot be larger}.
    sentinel: key of the configuration for values of the ``flags`` columns that stand for none.
    saturated: {item column: its value in saturation, or the key of the configuration that names it}.
    """

    typical: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    units: Mapping[str, str] = field(default_factory=dict)
    flags: Mapping[str, str] = field(default_factory=dict)
    axes: Mapping[str, str | NDArray[Any]] = field(default_factory=dict)
    weights: str = ""
    sums: Mapping[str, str] = field(default_factory=dict)
    sentinel: str = ""
    saturated: Mapping[str, str | float] = field(default_factory=dict)

    def problem(self, layout: Layout) -> str:
        """Name an item column that a layout does not have; empty when all are there.

        Event columns that are not there are passed over: readers leave some out.
        """
        names = {each.name for each in layout.items}
        columns = {f"{layout.item}.{name}" for name in names}
        named = {*self.flags.values(), *self.sums.values(), *filter(None, [self.weights])}
        named |= {axis for axis in self.axes.values() if isinstance(axis, str)}
        wrong = sorted((named - names) | ({*self.flags, *self.saturated} - columns))
        return f"expectations name {wrong[0]}, which is no item column" if wrong else ""

    def in_file(self, column: str, unit: str, value: float) -> float:
        """Return a value of a column as the file has it, before the reader converts it."""
        factor = _factor(unit, self.units.get(column, unit))
        written = float(value) * factor
        return float(f"{written:.{_DIGITS}g}") if factor != 1 else written

    def advise(self, column: str, column_field: Field, value: float) -> str:
        """Guess why a value of a column is not legal, as a question; empty without a guess."""
        key = self.saturated.get(column)
        if isinstance(key, str) and value == math.inf:
            return f"saturated? then name the value that it stands for, as {key}: VALUE"
        written = self.in_file(column, column_field.unit, value)
        if self.sentinel and column in self.flags and is_sentinel(written):
            return f"no value? then set {self.sentinel}: {written:g}"
        limit = _FAR * max(abs(float(column_field.low)), abs(float(column_field.high)))
        low, high = self.typical.get(column, (0.0, math.inf))
        if not min(limit, _FAR * high) <= abs(value) < math.inf:
            return ""
        fits = {
            unit: abs(value * factor)
            for unit, factor in self._other_units(column, column_field.unit)
            if column_field.low <= value * factor <= column_field.high
        }
        return self._nearest(column, column_field.unit, fits, low / _SLACK, high * _SLACK)

    def guess_unit(self, column: str, unit: str, median: float) -> str:
        """Guess the unit that makes an unusual median usual, as a question; empty without a guess."""
        guesses = {other: median * factor for other, factor in self._other_units(column, unit)}
        low, high = self.typical[column]
        guess = self._nearest(column, unit, guesses, low, high)
        if low > 0 and high / low > _DECADES and math.log10(low) <= median <= math.log10(high):
            return f"{guess.removesuffix('?') or 'is it a logarithm'}{', or a logarithm' if guess else ''}?"
        return guess

    def _other_units(self, column: str, unit: str) -> Iterator[tuple[str, float]]:
        """Yield the other units that a file may be in, the nearest first, and by what to multiply."""
        expected = self.units.get(column, unit)
        family = next((each for each in _FAMILIES if expected in each), {})
        factors = {other: scale / family[expected] for other, scale in family.items() if other != expected}
        yield from sorted(factors.items(), key=lambda pair: abs(math.log(pair[1])))

    def _nearest(self, column: str, unit: str, guesses: Mapping[str, float], low: float, high: float) -> str:
        """Ask for the unit whose value is most in the middle of an interval, or the first one."""
        inside = {other: value for other, value in guesses.items() if low <= value <= high and value > 0}
        if not inside:
            return ""
        guess = next(iter(inside))
        if 0 < low * high < math.inf:
            usual = [other for other in inside if other not in _UNUSUAL] or [*inside]
            guess = min(usual, key=lambda other: abs(math.log(inside[other]) - math.log(low * high) / 2))
        expected = self.units.get(column, unit)
        converted = "" if expected == unit else f" in the file, not in {expected}"
        return f"is it in {guess}{converted}?"


def is_sentinel(value: float) -> bool:
    """Return whether a value is one of those that often stand for none, such as -999."""
    return float(f"{value:.{_DIGITS}g}") in _SENTINELS


def _factor(unit: str, other: str) -> float:
    """Return by what a number in one unit is multiplied to give one in another; 1 for units unknown."""
    family = next((each for each in _FAMILIES if unit in each and other in each), {unit: 1.0, other: 1.0})
    return family[unit] / family[other]
