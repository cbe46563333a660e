"""Strategies: any layout that the engine can store, and events of it."""

import numpy as np
from hypothesis import strategies as st

from crpipe.events.batch import Events
from crpipe.events.layout import Field, Layout

DTYPES = [
    "bool",
    "float32",
    "float64",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
]
COLUMNS = {"multiplicity", "source_file", "source_row", "destination", "reason", "weight"}
RESERVED = COLUMNS | {"events", "manifest"}

names = st.from_regex(r"[A-Za-z][A-Za-z0-9_]{0,8}", fullmatch=True).filter(lambda name: name not in RESERVED)


def bounds(dtype):
    if np.dtype(dtype).kind == "f":
        return float(np.finfo(dtype).min), float(np.finfo(dtype).max)
    return (0, 1) if dtype == "bool" else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))


@st.composite
def layouts(draw):
    """Draw a layout whose columns allow every value of their type."""
    events = draw(st.lists(names, min_size=1, max_size=5, unique=True))
    items = draw(st.lists(names, min_size=1, max_size=4, unique=True))
    kinds = [draw(st.sampled_from(DTYPES)) for _ in events]
    units = st.sampled_from(["", "ns", "GeV"])
    fields = tuple(Field(n, k, draw(units), *bounds(k), "") for n, k in zip(events, kinds, strict=True))
    columns = tuple(Field(n, "float32", draw(units), *bounds("float32"), "") for n in items)
    group = tuple(draw(st.lists(st.sampled_from(events), min_size=1, max_size=3, unique=True)))
    key = tuple(draw(st.lists(st.sampled_from(events), max_size=3, unique=True)))
    weight = draw(st.sampled_from(["", *(field.name for field in fields if field.low >= 0)]))
    return Layout(draw(names), fields, columns, group, key, weight, draw(st.sampled_from([0, 0, 1, 3])))


def events_of(layout, multiplicity, seed):
    """Make legal events of a layout; the items of each event are unique."""
    rng = np.random.default_rng(seed)
    if layout.fixed:
        multiplicity = [layout.fixed] * len(multiplicity)
    multiplicity = np.asarray(multiplicity, np.uint32)
    count, total = len(multiplicity), int(multiplicity.sum())
    columns = {}
    for field in layout.events:
        kind = np.dtype(field.dtype)
        few = rng.integers(0, 2, count) if kind.kind in "bui" else rng.normal(0, 1, count).round(1)
        columns[field.name] = few.astype(kind)
    items = rng.normal(0, 100, (total, len(layout.items))).astype(np.float32)
    return Events(columns, multiplicity, items)
