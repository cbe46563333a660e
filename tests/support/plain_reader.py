"""A reader of any layout from .npz files, and readers that break the rules; named `plain_reader:…` in tests."""

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


class _Options(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    layout: dict[str, Any] = {}
    block: int = 3
    wrong: str = ""


class PlainOptions(_Options):
    pass


class BrokenOptions(_Options):
    pass


class GeometricOptions(_Options):
    pass


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


class Broken(Plain):
    """What ``wrong`` names is wrong in every block."""

    def rows(self, path, tables):
        for events in super().rows(path, tables):
            if self._wrong == "raises":
                raise KeyError("energy_gev")
            yield self._spoiled(events)

    def totals(self, path, tables):
        if self._wrong == "totals":
            raise ZeroDivisionError("no totals")
        return super().totals(path, tables)

    def _spoiled(self, events):
        columns, multiplicity, items = dict(events.columns), events.multiplicity, events.items
        if self._wrong == "type":
            return (columns, multiplicity, items)
        if self._wrong == "missing":
            del columns["run"]
        if self._wrong == "extra":
            columns["energy"] = columns["run"]
        if self._wrong == "dtype":
            columns["run"] = columns["run"].astype(np.int64)
        if self._wrong == "byte order":
            columns["run"] = columns["run"].astype(">i4")
        if self._wrong == "length":
            columns["run"] = columns["run"][:-1]
        if self._wrong == "list":
            columns["run"] = columns["run"].tolist()
        if self._wrong == "multiplicity":
            multiplicity = multiplicity.astype(np.int64)
        if self._wrong == "sum":
            items = items[:-1]
        if self._wrong == "items":
            items = items.astype(np.float64)
        if self._wrong == "width":
            items = items[:, :1]
        return Events(columns, multiplicity, items)


class Geometric(Plain):
    """Needs the table `geometry`, and adds the number in it to each time."""

    needs = ("geometry",)

    def rows(self, path, tables):
        shift = np.float32(tables["geometry"].read_text())
        for events in super().rows(path, tables):
            yield Events(events.columns, events.multiplicity, events.items + [shift, 0])


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
