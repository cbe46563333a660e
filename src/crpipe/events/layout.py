"""The one description of a ragged table: names, types, units and legal values of its events and items.

A reader declares it; it is stored in every manifest and in the fingerprints, so that shards can be read where
the reader's package is missing.
"""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from crpipe.config.loading import check_choice
from crpipe.core.errors import LayoutError
from crpipe.core.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

MULTIPLICITY = "multiplicity"
SOURCE_FILE = "source_file"
SOURCE_ROW = "source_row"
WEIGHT = "weight"  # in batches, and in the events that a workload scores, whatever the layout calls it

# Columns that the engine adds to the events of a layout, and names of files beside the items' file.
_RESERVED_COLUMNS = frozenset({MULTIPLICITY, SOURCE_FILE, SOURCE_ROW, "destination", "reason"})
_RESERVED_ITEMS = frozenset({"events", "manifest"})
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
# Bytes of each type; spelled out, so that reports need no numpy.
_BYTES = {"bool": 1, "float32": 4, "float64": 8}
_BYTES |= {f"{sign}int{8 * size}": size for sign in ("", "u") for size in (1, 2, 4, 8)}
_ITEM_TYPE = "float32"
# From so many items on, the same number for every event, loaders read each item column by itself.
LARGE = 512


@dataclass(frozen=True, slots=True)
class Field:
    """One column: numpy dtype, unit, and the closed interval of legal values."""

    name: str
    dtype: str
    unit: str
    low: float
    high: float
    meaning: str

    def words(self) -> tuple[str, str, str, str]:
        """Name, dtype, unit and meaning."""
        return self.name, self.dtype, self.unit, self.meaning


@dataclass(frozen=True, slots=True)
class Layout:
    """A ragged table: one row per event, and ``multiplicity`` items (rows of ``items``) for each event.

    item: plural noun for one item; it names files and appears in the ledger, on axes and in messages.
    group: event columns whose hash decides training, validation or test; rows that share them stay together.
    key: event columns by which people know an event, for example (run, event).
    weight: event column, at least 0, by which loss and metrics weigh an event; empty: all count alike.
    fixed: items of every event; 0: events have different numbers of items.
    """

    item: str
    events: tuple[Field, ...]
    items: tuple[Field, ...]
    group: tuple[str, ...]
    key: tuple[str, ...] = ()
    weight: str = ""
    fixed: int = 0

    def describe(self) -> dict[str, Any]:
        """Return the layout as JSON values."""
        columns = {
            kind: [_describe_field(field) for field in getattr(self, kind)] for kind in ("events", "items")
        }
        names = {name: list(getattr(self, name)) for name in ("group", "key")}
        return {"item": self.item, "weight": self.weight, "fixed": self.fixed} | columns | names

    @classmethod
    def from_description(cls, tree: Mapping[str, Any]) -> Layout:
        """Build a layout from what ``describe`` returned; raise LayoutError for anything else."""
        try:
            lists = [tree[name] for name in ("events", "items", "group", "key")]
            if not all(isinstance(each, list | tuple) for each in lists):
                raise LayoutError("not the description of a layout (a list is missing)")
            events, items = (tuple(Field(**row) for row in tree[kind]) for kind in ("events", "items"))
            group, key = (tuple(tree[name]) for name in ("group", "key"))
            layout = cls(tree["item"], events, items, group, key, tree["weight"], tree["fixed"])
            layout.check()
            if not all(isinstance(text, str) for each in (*events, *items) for text in each.words()):
                raise LayoutError("not the description of a layout (a name, type or unit is no text)")
        except (KeyError, TypeError, AttributeError, OverflowError) as error:
            raise LayoutError(f"not the description of a layout ({error!r})") from error
        return layout

    def identity(self) -> dict[str, Any]:
        """Return what makes two layouts differ, as keys for a fingerprint; meanings are left out.

        Example: ``{"layout.item": "hits", "layout.items": ["time_ns float32 ns 0.0..1000.0"], …}``.
        """
        columns = {kind: [_spell(field) for field in getattr(self, kind)] for kind in ("events", "items")}
        names = {name: list(getattr(self, name)) for name in ("group", "key")}
        plain = {name: getattr(self, name) for name in ("item", "weight", "fixed")}
        return {f"layout.{name}": value for name, value in (plain | columns | names).items()}

    def check(self) -> None:
        """Raise LayoutError naming the first thing in the layout that the engine cannot store."""
        problem = next(self._problems(), None)
        if problem:
            raise LayoutError(f"layout of {self.item!r}: {problem}")

    def has_outliers(self) -> bool:
        """Return whether an event can have more items than others: not where all have the same number."""
        return not self.fixed

    def count(self, events: int, items: int) -> str:
        """Write a number of events and items for people: ``12 events with 340 hits``."""
        return f"{counted(events, 'event')} with {items:,} {self.item}"

    def event_bytes(self) -> int:
        """Count the bytes of one event in memory, without its items."""
        columns = sum(_BYTES[field.dtype] for field in self.events)
        return columns + 3 * _BYTES["uint32"]  # multiplicity, source file, source row

    def item_bytes(self) -> int:
        """Count the bytes of one item in memory."""
        return sum(_BYTES[field.dtype] for field in self.items)

    def _weight_problems(self) -> Iterator[str]:
        for field in self.events if self.weight else ():
            if field.name == self.weight and field.low < 0:
                yield f"weight names {field.name}, whose legal values begin at {field.low}, below 0"
            if field.name == WEIGHT != self.weight:
                yield f"a column {WEIGHT} must be the weight itself, which is {self.weight}"

    def _problems(self) -> Iterator[str]:
        if not _NAME.fullmatch(self.item) or self.item in _RESERVED_ITEMS:
            yield f"item must be a plural noun such as 'hits', not {self.item!r}"
        if not self.events or not self.items:
            yield "it needs at least one event column and one item column"
        for kind in ("events", "items"):
            yield from _field_problems(kind, getattr(self, kind))
        known = {field.name for field in self.events}
        for name in ("group", "key"):
            for column in getattr(self, name):
                if column not in known:
                    yield f"{name} names {column}, which is no event column ({', '.join(sorted(known))})"
        if not self.group:
            yield "group must name the event columns that decide between training, validation and test"
        if self.weight and self.weight not in known:
            yield f"weight names {self.weight}, which is no event column ({', '.join(sorted(known))})"
        yield from self._weight_problems()
        if not isinstance(self.fixed, int) or self.fixed < 0:
            yield f"fixed must be 0 or the number of items of every event, not {self.fixed}"


def _field_problems(kind: str, columns: tuple[Field, ...]) -> Iterator[str]:
    allowed = set(_BYTES) if kind == "events" else {_ITEM_TYPE}
    names = [field.name for field in columns]
    for field in columns:
        if not _NAME.fullmatch(field.name) or field.name in _RESERVED_COLUMNS:
            yield f"{kind}: {field.name!r} cannot be the name of a column"
        if names.count(field.name) > 1:
            yield f"{kind}: the column {field.name} is declared twice"
        if field.dtype not in allowed:
            yield f"{kind}: {field.name} is {field.dtype}, expected {' or '.join(sorted(allowed))}"
        if not (math.isfinite(field.low) and math.isfinite(field.high) and field.low <= field.high):
            yield f"{kind}: {field.name}: the legal values {field.low}..{field.high} are no closed interval"


def _describe_field(field: Field) -> dict[str, Any]:
    """Return a column as JSON values; bounds may be numpy's numbers, and whole ones stay whole."""
    low, high = (bound if isinstance(bound, int) else float(bound) for bound in (field.low, field.high))
    return asdict(field) | {"low": low, "high": high}


def _spell(field: Field) -> str:
    words = [field.name, field.dtype, field.unit, f"{float(field.low)!r}..{float(field.high)!r}"]
    return " ".join(word for word in words if word)


# The declaration of one number of an evaluation: its title, unit, and which direction is better.


Better = Literal["low", "high", "near"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One number that ``score`` returns under ``name``; ``NAME_error`` beside it is its error.

    better: ``low`` or ``high``, or ``near`` to ``ideal``. ideal: the best possible value, where there is one.
    tolerance: which difference from the floor or the ideal a physicist calls negligible; 0: none is.
    relative: it is a share of the baseline's number. groups: fewest groups of held-out events that it needs.
    needs: all that it needs, in words, where that is more; a person reads it where the number is missing.
    meaning: what a person may have to look up, such as what a good value is, as one sentence that begins with
    the word it explains; reports show it once.
    """

    name: str
    title: str
    unit: str = ""
    better: Better = "low"
    ideal: float | None = None
    groups: int = 1
    needs: str = ""
    tolerance: float = 0.0
    relative: bool = False
    meaning: str = ""

    def __post_init__(self) -> None:
        """Raise ConfigError for a direction that nothing knows: reports would give it no verdict."""
        check_choice(f"Metric {self.name}: better", self.better, get_args(Better))

    def describe(self) -> dict[str, Any]:
        """Return the declaration as JSON values, as metrics.json holds it."""
        return {name: value for name, value in asdict(self).items() if name != "meaning" or value}

    @property
    def need(self) -> str:
        """All that the number needs, in words."""
        return self.needs or counted(self.groups, "group")


def not_enough(missing: Iterable[tuple[str, str]], events: int, groups: int) -> str:
    """Describe which numbers (title, need) are missing; events, groups: how many were held out."""
    required: dict[str, list[str]] = {}
    for title, need in missing:
        required.setdefault(need, []).append(title)
    needs = (
        f"{', '.join(titles)} {'needs' if len(titles) == 1 else 'need'} {need}"
        for need, titles in required.items()
    )
    held_out = f"{counted(events, 'held-out event')} of {counted(groups, 'group')}"
    return f"{held_out}: {'; '.join(needs)}"
