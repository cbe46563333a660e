"""A reader of any layout from .npz files, and readers that break the rules: `plain_reader:…` in tests."""

from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict

from crpipe.core.errors import FormatError
from crpipe.events.batch import Events
from crpipe.events.layout import Field, Layout

HITS = Layout(
    "hits",
    (
        Field("run", "int32", "", 0, 1e6, "run"),
        Field("number", "uint64", "", 0, 2**64 - 1, "number within the run"),
        Field("good", "bool", "", 0, 1, "flag"),
    ),
    (
        Field("time_ns", "float32", "ns", -1e6, 1e6, "time"),
        Field("charge", "float32", "pe", 0, 1e6, "charge"),
    ),
    ("run",),
    key=("run", "number"),
)


class PlainOptions(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    layout: dict[str, Any] = {}
    block: int = 3
    wrong: str = ""


BrokenOptions = GeometricOptions = PlainOptions  # options are found by the name of what they are of


class RepeatedOptions(PlainOptions):
    times: int = 1


class Plain:
    """One .npz file: an array per event column, `multiplicity` and `items`."""

    needs = ()

    def __init__(self, options):
        self.layout = Layout.from_description(options.layout) if options.layout else HITS
        self._block = options.block
        self._wrong = options.wrong

    def rows(self, path, tables):
        events = self._events(path)
        for first in range(0, len(events), self._block):
            yield events.part(first, min(first + self._block, len(events)))

    def totals(self, path, tables):
        events = self._events(path)
        return len(events), len(events.items)

    def _events(self, path):
        try:
            with np.load(path) as file:
                columns = {field.name: file[field.name] for field in self.layout.events}
                return Events(columns, file["multiplicity"], file["items"])
        except (OSError, ValueError) as error:
            raise FormatError(f"{path}: no .npz file ({error})") from error


class Repeated(Plain):
    """The events of one .npz file as one block, ``times`` over, each time in memory of its own."""

    def __init__(self, options):
        super().__init__(options)
        self._times = options.times

    def rows(self, path, tables):
        events = self._events(path)
        for _ in range(self._times):
            yield Events(dict(events.columns), events.multiplicity.copy(), events.items.copy())


class Broken(Plain):
    """What ``wrong`` names is wrong in every block."""

    def rows(self, path, tables):
        for events in super().rows(path, tables):
            if self._wrong == "last" and len(events) == 1:
                return
            if self._wrong == "raises":
                raise KeyError("energy_gev")
            yield self._spoiled(events)

    def totals(self, path, tables):
        if self._wrong == "totals":
            raise ZeroDivisionError("no totals")
        return super().totals(path, tables)

    def _spoiled(self, events):
        run, multiplicity, items = events.columns["run"], events.multiplicity, events.items
        changes = {
            "type": lambda: (events.columns, multiplicity, items),
            "missing": lambda: with_columns(events, run=None),
            "extra": lambda: with_columns(events, energy=run),
            "dtype": lambda: with_columns(events, run=run.astype(np.int64)),
            "byte order": lambda: with_columns(events, run=run.astype(">i4")),
            "length": lambda: with_columns(events, run=run[:-1]),
            "list": lambda: with_columns(events, run=run.tolist()),
            "multiplicity": lambda: Events(events.columns, multiplicity.astype(np.int64), items),
            "sum": lambda: Events(events.columns, multiplicity, items[:-1]),
            "items": lambda: Events(events.columns, multiplicity, items.astype(np.float64)),
            "width": lambda: Events(events.columns, multiplicity, items[:, :1]),
        }
        return changes.get(self._wrong, lambda: events)()


def with_columns(events, **changes):
    columns = {name: values for name, values in {**events.columns, **changes}.items() if values is not None}
    return Events(columns, events.multiplicity, events.items)


class Geometric(Plain):
    """Needs the table `geometry`, and adds the number in it to each time."""

    needs = ("geometry",)

    def rows(self, path, tables):
        text = tables["geometry"].read_text()
        if not text.isdigit():
            raise FormatError(f"{tables['geometry']}: expected a number, found {text}")
        shift = np.float32(text)
        for events in super().rows(path, tables):
            yield Events(events.columns, events.multiplicity, events.items + np.array([shift, 0], np.float32))


def write_events(path, events):
    np.savez(path, multiplicity=events.multiplicity, items=events.items, **events.columns)
    return path


def make_hits(multiplicity, seed=0):
    rng = np.random.default_rng(seed)
    multiplicity = np.asarray(multiplicity, np.uint32)
    count, total = len(multiplicity), int(multiplicity.sum())
    columns = {
        "run": (np.arange(count) // 5).astype(np.int32) + 1000 * seed,
        "number": np.arange(count, dtype=np.uint64),
        "good": rng.random(count) < 0.5,
    }
    items = np.stack([rng.normal(0, 10, total), rng.exponential(3, total)], axis=1).astype(np.float32)
    return Events(columns, multiplicity, items)
