"""Numbers and errors of what ``score`` returns, and differences on the same bootstrap samples."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from crpipe.campaign.records import BinRow
from crpipe.core.errors import PluginError
from crpipe.report.evaluations import ERROR
from crpipe.statistics.classifier import LabelledRows
from crpipe.statistics.groups import REPLICAS, bootstrapped, effective_groups, error_of
from crpipe.statistics.ratios import Bins

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from crpipe.train.workload import Measured

Numbers = dict[str, float]


@dataclass(frozen=True, slots=True)
class Measurement:
    """What was measured of one method.

    numbers: by name, with ``NAME_error``; that of a table is its largest deviation. replicas: [1 + R] of each
    statistic. tables: the rows of each. rows: what classifiers looked at, for a comparison with other models.
    not_finite: what was given, but is no finite number.
    """

    numbers: Numbers = field(default_factory=dict)
    replicas: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    tables: Mapping[str, tuple[BinRow, ...]] = field(default_factory=dict)
    rows: Mapping[str, LabelledRows] = field(default_factory=dict)
    not_finite: frozenset[str] = frozenset()

    def given(self) -> dict[str, float | None]:
        """Return what was given by name: a number, or None where it is not finite."""
        return {**self.numbers, **dict.fromkeys(self.not_finite)}

    def without(self, names: set[str]) -> Measurement:
        """Leave out some numbers, with their errors."""
        dropped = names | {name + ERROR for name in names}
        return Measurement(
            {name: value for name, value in self.numbers.items() if name not in dropped},
            {name: each for name, each in self.replicas.items() if name not in dropped},
            {name: rows for name, rows in self.tables.items() if name not in dropped},
            self.rows,
            self.not_finite - dropped,
        )

    def less(self, other: Measurement, groups: float, *, paired: bool) -> Numbers:
        """Subtract the numbers of another method, with errors: ``NAME``, ``NAME_error``.

        paired: both looked at the same events: where both are statistics, what a group adds to both is one
        random number. Other errors are added in quadrature.
        """
        numbers: Numbers = {}
        for name in self.numbers.keys() & other.numbers.keys():
            if name.endswith(ERROR) and name.removesuffix(ERROR) in self.numbers:
                continue
            numbers[name] = self.numbers[name] - other.numbers[name]
            if paired and name in self.replicas and name in other.replicas:
                numbers[name + ERROR] = error_of(self.replicas[name] - other.replicas[name], groups)
            else:
                errors = (each.numbers.get(name + ERROR, math.nan) for each in (self, other))
                numbers[name + ERROR] = math.hypot(*errors)
        return _finite(dict(sorted(numbers.items())))


def measure(
    measured: Mapping[str, Measured],
    group: NDArray[np.int64],
    what: str,
    replicas: int = REPLICAS,
    weight: NDArray[Any] | None = None,
) -> Measurement:
    """Measure what ``score`` returned for events of the given groups, [N] from 0; what: named in errors.

    replicas: samples of the groups that errors are drawn from. weight: of each event, where they have some.

    Raise PluginError for a value that is none of what ``score`` may return.
    """
    groups = effective_groups(group, weight)
    statistics = {str(name): value for name, value in measured.items() if callable(value)}
    drawn = bootstrapped(statistics, group, replicas)
    numbers: Numbers = {}
    tables = {}
    for name, value in measured.items():
        if name in drawn:
            numbers |= {name: float(drawn[name][0]), name + ERROR: error_of(drawn[name], groups)}
        elif isinstance(value, Bins):
            tables[name] = _rows(value)
            numbers |= _largest(name, tables[name])
        elif not isinstance(value, LabelledRows):
            try:
                numbers[str(name)] = float(value)  # type: ignore[arg-type]
            except (TypeError, ValueError) as error:
                raise PluginError(
                    f"{what}: {name}: expected a number, a statistic, Bins or LabelledRows (of crpipe."
                    f"statistics), found {type(value).__name__}"
                ) from error
    rows = {name: value for name, value in measured.items() if isinstance(value, LabelledRows)}
    finite = _finite(numbers)
    not_finite = frozenset({*map(str, measured)} - finite.keys() - rows.keys())
    return Measurement(finite, drawn, tables, rows, not_finite)


def _rows(table: Bins) -> tuple[BinRow, ...]:
    value, error = table.values()
    _, chance = table.chances()
    columns = {
        "real": table.real.mean,
        "generated": table.generated.mean,
        "value": value,
        "error": error,
        "p": chance,
    }
    rows = []
    for index, label in enumerate(table.labels):
        numbers = {name: float(column[index]) for name, column in columns.items()}
        if not math.isnan(numbers["value"]):
            rows.append(BinRow.from_json({"bin": label, "kind": table.kind, **_finite(numbers)}))
    return tuple(rows)


def _largest(name: str, rows: tuple[BinRow, ...]) -> Numbers:
    """Return value and error of the bin that chance explains least; of those alike, the most errors off."""
    known = [
        (row.p, -abs(row.value - row.ideal) / (row.error or 1.0), row.value, row.error)
        for row in rows
        if row.value is not None and row.error is not None
    ]
    if not known:
        return {}
    *_, value, error = min(known)
    return {name: value, name + ERROR: error}


def _finite(numbers: Numbers) -> Numbers:
    return {name: value for name, value in numbers.items() if math.isfinite(value)}
