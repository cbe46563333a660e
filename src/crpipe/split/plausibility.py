"""Whether the values of some events can be right: quantiles of each column, and what in them looks wrong.

Only what a layout lets pass is doubted here; values outside its limits are refused by ``events.validity``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import permutations
from typing import TYPE_CHECKING, Any

import numpy as np

from crpipe.events.batch import Events, concatenate
from crpipe.events.expectations import Expectations, is_sentinel
from crpipe.split.hashing import identities

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Sequence

    from numpy.typing import NDArray

    from crpipe.events.layout import Field, Layout

    Floats = NDArray[np.float64]

_MOST_EVENTS, _MOST_ITEMS = 1 << 15, 1 << 19  # of a sample, each
_FEWEST = 8  # events of a file from which "in every event" means something
_ENOUGH = 20  # events, or different values, from which a distribution means something
_ALWAYS, _SELDOM = 0.95, 0.5  # shares of the events
_OFTEN, _BESIDE = 3, 5  # times the repeats of the values beside it, so many on each side
_FEWEST_REPEATS = 5
_PADDING = 1e-3  # of the items
_ALONG, _ACROSS = 0.6, 0.5  # correlation with the right axis, and of the wrong with the right one
_ENOUGH_EVENTS = 50  # for a correlation
_MARGIN, _OUTSIDE = 0.1, 0.05  # of the box; share of the events
_EXCESS, _MORE = 1.01, 0.01  # of a sum; share of the events
_NEIGHBOURS = 8
_CHANCE = 3  # times what happens by chance
_REMEDY = "have the files made again without it, or let the reader leave it out"


@dataclass(frozen=True, slots=True)
class ColumnValues:
    """The values of one column in some events, without those that a flag calls none.

    name: of item columns ``item.name``. low, median, high: quantiles of 1, 50 and 99 %. repeated: the most
    frequent value, and share: how frequent. outside: values that are not legal.
    """

    name: str
    unit: str
    low: float
    median: float
    high: float
    smallest: float
    largest: float
    repeated: float
    share: float
    outside: int


@dataclass(slots=True)
class EventSample:
    """Some events of each of a few files, at most as many as fit a bounded memory.

    files: how many share the memory. parts: the events, file after file.
    """

    layout: Layout
    expectations: Expectations
    files: int = 1
    parts: list[Events] = field(default_factory=list)
    _events: int = 0
    _items: int = 0
    _joined: Events | None = None

    def add_file(self) -> None:
        """Begin with the events of another file."""
        self._events, self._items = _MOST_EVENTS // self.files, _MOST_ITEMS // self.files

    def add(self, block: Events) -> None:
        """Keep the first events of a block, as far as there is room."""
        if self._events <= 0 or self._items <= 0:
            return
        fits = int(np.searchsorted(block.offsets(), self._items, side="right")) - 1
        count = min(max(fits, 1), self._events, len(block))
        if count:
            part = block.part(0, count).copy()
            self.parts.append(part)
            self._events -= count
            self._items -= len(part.items)
            self._joined = None

    def whole(self) -> Events:
        """Join the events of all files; there must be some."""
        if self._joined is None:
            self._joined = concatenate(self.parts)
        return self._joined

    def values(self) -> Iterator[_Values]:
        """Yield the values of each column: those of the events, then those of the items."""
        if not self.parts:
            return
        whole = self.whole()
        known = {*self.layout.group, *self.layout.key}
        groups = identities([whole.columns[name] for name in self.layout.group])
        for each in self.layout.events:
            is_free = each.name not in known and not _is_flag(each)
            yield _Values(each.name, each, whole.columns[each.name], is_free, groups=groups)
        positions = {each.name: place for place, each in enumerate(self.layout.items)}
        flags = self.expectations.flags
        for each in self.layout.items:
            name = f"{self.layout.item}.{each.name}"
            column = whole.items[:, positions[each.name]]
            if name in flags:
                column = column[whole.items[:, positions[flags[name]]] > 0]
            yield _Values(name, each, column, not _is_flag(each), is_item=True)


def _is_flag(column: Field) -> bool:
    return (column.low, column.high) == (0, 1)


@dataclass(frozen=True, slots=True)
class _Values:
    """Values of one column; is_free: not an identity of the event, and no flag; groups: of each event."""

    name: str
    field: Field
    values: NDArray[Any]
    is_free: bool
    is_item: bool = False
    groups: NDArray[np.uint64] | None = None

    def groups_with(self, value: float) -> int:
        """Count the groups of events with a value, or the items: rows of one group may share their values."""
        equal = self.values == value
        return int(equal.sum()) if self.groups is None else len(np.unique(self.groups[equal]))

    def finite(self) -> Floats:
        values = self.values.astype(np.float64)
        return values[np.isfinite(values)]

    def summary(self) -> ColumnValues:
        """Summarise the values; NaN where there are none."""
        finite = self.finite()
        legal = (self.values >= self.field.low) & (self.values <= self.field.high)
        low = median = high = smallest = largest = repeated = np.nan
        share = 0.0
        if len(finite):
            low, median, high = np.quantile(finite, [0.01, 0.5, 0.99], method="nearest").tolist()
            different, counts = np.unique(finite, return_counts=True)
            top = int(np.argmax(counts))
            smallest, largest, repeated = different[[0, -1, top]].tolist()
            share = float(counts[top] / len(finite))
        numbers = (low, median, high, smallest, largest, repeated)
        return ColumnValues(self.name, self.field.unit, *numbers, share, int((~legal).sum()))


def summarize_columns(sample: EventSample) -> tuple[ColumnValues, ...]:
    """Summarise each column of the layout; empty without events."""
    return tuple(column.summary() for column in sample.values())


def doubtful_values(sample: EventSample) -> list[str]:
    """Describe what looks wrong in some events, each in one line with what to do; mostly nothing."""
    if not sample.parts:
        return []
    always = dict(_always(sample))
    texts = [text for column in always.values() for text in column.values()]
    repeats = [
        doubt
        for column in sample.values()
        if column.is_free
        for doubt in _repeats(column, sample, always.get(column.name, {}))
    ]
    # The same remedy helps where one sentinel is in several columns.
    texts += _joined([doubt for doubt in repeats if not any(text.endswith(doubt.remedy) for text in texts)])
    units, exchanged = list(_units(sample)), [*_swapped(sample), *_exchanged(sample)]
    texts += [*_padding(sample), *_joined(units), *exchanged]
    explained = {doubt.name for doubt in (*repeats, *units)} & {*sample.expectations.axes}
    if not (explained or exchanged):
        texts += _outside(sample)
    return [*texts, *_sums(sample), *_dark(sample)]


@dataclass(frozen=True, slots=True)
class _Doubt:
    """What is wrong with one column, what it may mean, and what to do."""

    name: str
    size: str
    meaning: str
    remedy: str


def _joined(doubts: Sequence[_Doubt]) -> list[str]:
    """Join what means the same for several columns, in one line each."""
    together: dict[str, list[str]] = {}
    for doubt in doubts:
        together.setdefault(f"{doubt.meaning} {doubt.remedy}", []).append(f"{doubt.name} {doubt.size}")
    return [f"{', '.join(names)}: {meaning}" for meaning, names in together.items()]


# Values that stand for none, or for the largest one that can be measured.


def _remedy(sample: EventSample, name: str, value: float, unit: str) -> str:
    """Name what to type for a value that means none."""
    known = sample.expectations
    if known.sentinel and name in known.flags:
        written = known.in_file(name, unit, value)
        more = " (it takes every 0 for no value)" if written == 0 else ""
        return f"set {known.sentinel}: {written:g}{more}"
    return _REMEDY


def _always(sample: EventSample) -> Iterator[tuple[str, dict[float, str]]]:
    """Yield the item columns in which the same items of every event have one value: {value: what of it}.

    A value that is frequent by its nature, such as 0 in counts, has items with it in most events and others
    with it in some; one that means none has nothing between always and seldom.
    """
    layout, flags = sample.layout, sample.expectations.flags
    for position, each in enumerate(layout.items if layout.fixed else ()):
        name = f"{layout.item}.{each.name}"
        most: dict[float, int] = {}
        for part in sample.parts if not _is_flag(each) else ():
            values = part.items[:, position].reshape(len(part), layout.fixed)
            static = np.mean(values == values[:1], axis=0) >= _ALWAYS
            if len(part) < _FEWEST or (static.mean() > _SELDOM and np.ptp(values[0]) > 0):
                continue  # properties of the items, such as places
            valid = np.ones(values.shape, bool)
            if name in flags:
                flag = [other.name for other in layout.items].index(flags[name])
                valid = part.items[:, flag].reshape(values.shape) > 0
            for value in np.unique(values[0, static & valid[0]]).tolist():
                share = ((values == value) & valid).mean(axis=0)
                always = share >= _ALWAYS
                between = int(((share > _SELDOM) & ~always).sum())
                if between < always.sum() > most.get(value, 0):
                    most[value] = int(always.sum())
        texts = {}
        for value, count in most.items():
            unit = f" {each.unit}" if each.unit else ""
            remedy = _remedy(sample, name, value, each.unit)
            texts[value] = (
                f"{name} is {value:g}{unit} in {count} {layout.item} of every event: no value? then {remedy}"
            )
        yield name, texts


def _repeats(column: _Values, sample: EventSample, known: Container[float]) -> Iterator[_Doubt]:
    """Yield values that come far more often than those beside them, or are far outside of all others."""
    values, name, unit = column.finite(), column.name, column.field.unit
    different, counts = np.unique(values, return_counts=True)
    if len(different) == 1 and not column.is_item and len(values) >= _ENOUGH:
        value = float(different[0])
        # A time or an angle may well be 0 by definition; what has a usual size is not.
        if (value == 0 and name in sample.expectations.typical) or is_sentinel(value):
            yield _Doubt(name, f"is {value:g} in every event", "no value?", "then do not train on it")
    if len(different) <= _ENOUGH:
        return
    # Counts are 0 by their nature, and so are items that saw nothing, and weights.
    counts_zero = (different == np.floor(different)).all() or name == sample.layout.weight
    counts_zero = counts_zero or (column.is_item and bool(sample.layout.fixed))
    for at in np.flatnonzero(counts >= _FEWEST_REPEATS).tolist():
        value, is_largest = float(different[at]), at == len(different) - 1
        is_suspect = (value == 0 and not counts_zero) or is_sentinel(
            sample.expectations.in_file(name, unit, value)
        )
        if not (is_suspect or at == 0 or is_largest):
            continue
        beside = np.concatenate([counts[max(0, at - _BESIDE) : at], counts[at + 1 : at + 1 + _BESIDE]])
        is_often = counts[at] >= _OFTEN * beside.max()
        low, high = np.quantile(values[values != value], [0.01, 0.99])
        is_far = np.abs(np.delete(different, at) - value).min() > high - low
        is_far &= is_suspect or column.groups_with(value) >= _FEWEST_REPEATS
        saturated = sample.expectations.saturated.get(name)
        if value == saturated or value in known:
            continue
        if is_often and is_largest and isinstance(saturated, str) and not is_suspect:
            size = f"is at most {value:g}, and that {counts[at]} times"
            yield _Doubt(name, size, "saturated?", f"then set {saturated}: {value:g}")
        elif is_far or (is_often and is_suspect):
            size = f"is {value:g} in {100 * counts[at] / len(values):.2g} % of the values"
            far = "far from all others: " if is_far else ""
            remedy = _remedy(sample, name, value, unit)
            yield _Doubt(name, size, f"{far}no value?", f"then {remedy}")


def _padding(sample: EventSample) -> Iterator[str]:
    """Yield that items hold one and the same number in all columns: rows that pad a list."""
    layout = sample.layout
    items = sample.whole().items
    if layout.fixed or len(layout.items) < 2 or not len(items):  # noqa: PLR2004 - two columns tell
        return
    same = items[(items == items[:, :1]).all(axis=1), 0]
    for value, count in zip(*np.unique(same, return_counts=True), strict=True):
        padded = value == 0 or is_sentinel(float(value))
        if padded and count >= max(_FEWEST_REPEATS, _PADDING * len(items)):
            share = f"{100 * count / len(items):.2g} % of the {layout.item}"
            yield f"{share} are {value:g} in every column: rows that pad a list? then {_REMEDY}"


# Units and places.


def _units(sample: EventSample) -> Iterator[_Doubt]:
    """Yield the columns whose median is not as the reader expects it, where it is legal."""
    for column in sample.values():
        interval = sample.expectations.typical.get(column.name)
        sizes = np.abs(column.finite())
        sizes = sizes[sizes > 0]
        if interval is None or not len(sizes):
            continue
        median, unit = float(np.median(sizes)), column.field.unit
        is_legal = median <= max(abs(column.field.low), abs(column.field.high))
        if is_legal and not interval[0] <= median <= interval[1]:
            guess = sample.expectations.guess_unit(column.name, unit, median) or "are unit and column right?"
            yield _Doubt(
                column.name,
                f"has a median of {median:.3g} {unit} (usually {interval[0]:g} to {interval[1]:.4g})",
                guess,
                "If so, have the files made again, or let the reader convert it",
            )


def _seen_places(sample: EventSample, whole: Events) -> tuple[list[str], Floats, list[tuple[float, float]]]:
    """Return the axes, the centre of the items of each event along them [A, N], and the box of all items.

    The centre is NaN for events without items.
    """
    layout, known = sample.layout, sample.expectations
    positions = {each.name: place for place, each in enumerate(layout.items)}
    weights = np.ones(len(whole.items))
    if known.weights:
        weights = np.square(np.maximum(whole.items[:, positions[known.weights]].astype(np.float64), 0))
        weights[~np.isfinite(weights)] = 0
    owners = np.repeat(np.arange(len(whole)), whole.multiplicity)
    sums = np.bincount(owners, weights, minlength=len(whole))
    names = [name for name in known.axes if name in whole.columns]
    centres, box = np.full((len(names), len(whole)), np.nan), []
    for number, name in enumerate(names):
        axis = known.axes[name]
        if isinstance(axis, str):
            coordinates = whole.items[:, positions[axis]].astype(np.float64)
        else:
            coordinates = np.tile(np.asarray(axis, np.float64), len(whole))
        with np.errstate(invalid="ignore", divide="ignore"):
            centres[number] = np.bincount(owners, weights * coordinates, minlength=len(whole)) / sums
        box.append((float(np.nanmin(coordinates)), float(np.nanmax(coordinates))))
    return names, centres, box


def _outside(sample: EventSample) -> Iterator[str]:
    """Yield the places that are outside of all that could see them."""
    whole = sample.whole()
    if not len(whole.items):
        return
    names, _, box = _seen_places(sample, whole)
    shares = {}
    for name, (low, high) in zip(names, box, strict=True):
        margin = _MARGIN * (high - low)
        outside = (whole.columns[name] < low - margin) | (whole.columns[name] > high + margin)
        if np.mean(outside) > _OUTSIDE:
            shares[name] = f"{name} (of {low:.4g} to {high:.4g}) in {np.mean(outside):.0%} of the events"
    if shares:
        yield (
            f"outside of the box of the {sample.layout.item}: {', '.join(shares.values())}: are unit, sign, "
            "origin and order of the axes right?"
        )


def _swapped(sample: EventSample) -> Iterator[str]:
    """Yield two event columns of one unit where each has the values of the other, by their limits."""
    whole = sample.whole()
    fields = [each for each in sample.layout.events if each.unit and len(whole)]
    ends = {each.name: (whole.columns[each.name].min(), whole.columns[each.name].max()) for each in fields}

    def fits(one: Field, other: Field) -> bool:
        """Return whether all values of one column are legal in another."""
        return bool(other.low <= ends[one.name][0] and ends[one.name][1] <= other.high)

    for one, other in permutations(fields, 2):
        if one.unit == other.unit and not fits(one, one) and fits(one, other) and fits(other, one):
            yield (
                f"{one.name} and {other.name} look exchanged: each fits the limits of the other; have the "
                "files made again in the right order"
            )


def _exchanged(sample: EventSample) -> Iterator[str]:
    """Yield axes that are exchanged or run backwards, by what correlates with the centre of the items."""
    whole = sample.whole()
    names, centres, _ = _seen_places(sample, whole)
    if not names:
        return
    places = np.array([whole.columns[name] for name in names], np.float64)
    good = np.isfinite(centres).all(axis=0) & np.isfinite(places).all(axis=0)
    if good.sum() < _ENOUGH_EVENTS:
        return
    with np.errstate(invalid="ignore", divide="ignore"):
        linked = np.corrcoef(centres[:, good], places[:, good])[: len(names), len(names) :]
    if not np.isfinite(linked).all():
        return
    axes = range(len(names))
    best = max(permutations(axes), key=lambda order: np.abs(linked[axes, order]).sum())
    moved = [axis for axis in axes if best[axis] != axis]
    clear = [abs(linked[axis, best[axis]]) > max(_ALONG, abs(linked[axis, axis]) / _ACROSS) for axis in moved]
    if moved and sum(clear) >= max(1, len(moved) - 1):
        pairs = ", ".join(f"{names[best[axis]]} lies along {names[axis]}" for axis in moved)
        yield (
            f"the axes look exchanged: by the centre of the {sample.layout.item} of each event, {pairs}; "
            "have the files made again in the right order"
        )
    for axis in axes:
        if best[axis] == axis and linked[axis, axis] < -_ALONG:
            yield (
                f"{names[axis]} runs against the centre of the {sample.layout.item} of each event "
                f"(correlation {linked[axis, axis]:.2f}): is its sign right?"
            )


def _sums(sample: EventSample) -> Iterator[str]:
    """Yield sums over items that are larger than the event can have."""
    whole, layout = sample.whole(), sample.layout
    positions = {each.name: place for place, each in enumerate(layout.items)}
    owners = np.repeat(np.arange(len(whole)), whole.multiplicity)
    for name, item in sample.expectations.sums.items():
        column = whole.items[:, positions[item]].astype(np.float64)
        share = float(
            np.mean(np.bincount(owners, column, minlength=len(whole)) > _EXCESS * whole.columns[name])
        )
        if share > _MORE:
            yield (
                f"the {layout.item} have more {item} together than the event ({name}) in {share:.0%} of the "
                "events: are both in the same unit?"
            )


def _dark(sample: EventSample) -> Iterator[str]:
    """Yield that items have no value, or one and the same, beside the largest ones: saturated, not dead."""
    layout, known = sample.layout, sample.expectations
    axes = [axis for axis in known.axes.values() if not isinstance(axis, str)]
    name = f"{layout.item}.{known.weights}"
    whole = sample.whole()
    if not (layout.fixed and axes and name in known.flags) or len(whole) < _ENOUGH:
        return
    positions = {each.name: place for place, each in enumerate(layout.items)}
    shape = (len(whole), layout.fixed)
    valid = whole.items[:, positions[known.flags[name]]].reshape(shape) > 0
    sizes = np.where(valid, whole.items[:, positions[known.weights]].reshape(shape), np.nan)
    brightest, places = np.nan_to_num(sizes, nan=-np.inf).argmax(axis=1), np.stack(axes, axis=1)
    beside = {
        item: np.argsort(np.square(places - places[item]).sum(axis=1))[1 : _NEIGHBOURS + 1]
        for item in np.unique(brightest).tolist()
    }
    around = np.array([beside[item] for item in brightest.tolist()])
    values = np.take_along_axis(sizes, around, axis=1)
    common, counts = np.unique(values[np.isfinite(values)], return_counts=True)
    masks = {"without a value": ~valid & (valid.mean(axis=0) > 1 - _ALWAYS)}
    if len(common) and common[counts.argmax()] < np.nanmedian(sizes.max(axis=1, initial=0, where=valid)):
        masks[f"with {common[counts.argmax()]:g}"] = sizes == common[counts.argmax()]
    key = known.saturated.get(name)
    for words, mask in masks.items():
        near = float(np.take_along_axis(mask, around, axis=1).any(axis=1).mean())
        chance = min(1.0, _NEIGHBOURS * float(mask.mean()))
        if near * len(whole) >= _FEWEST_REPEATS and near > _CHANCE * chance:
            yield (
                f"beside the largest {known.weights} of an event are {layout.item} {words}, in {near:.0%} of "
                f"the events ({chance:.1%} by chance): saturated? then "
                f"have them written as inf{f', and set {key}: VALUE' if isinstance(key, str) else ''}"
            )
