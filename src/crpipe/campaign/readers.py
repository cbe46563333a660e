"""Readers of raw files: a path comes in, checked blocks of events of bounded memory go out.

``source.reader`` names the class; nothing is guessed from the columns of a file.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from dataclasses import dataclass, field
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from crpipe.campaign.records import Tables, table_paths
from crpipe.config.plugins import build, find_class
from crpipe.core.causes import plugin_errors
from crpipe.core.errors import (
    ConfigError,
    CrpipeError,
    FormatError,
    LayoutError,
    MissingExtra,
    PluginError,
)
from crpipe.events.batch import Events, MisfitError, spelled
from crpipe.events.expectations import Expectations
from crpipe.events.file_formats import UNKNOWN, format_of
from crpipe.events.layout import Layout
from crpipe.events.notes import collected

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    import pyarrow as pa

    from crpipe.config.loading import Config

_MEMBERS = ("layout", "needs", "rows", "totals")
_FOLDERS = ("reading", "readers")  # of a package, whose modules hold readers alone


class Reader(Protocol):
    """What reads one kind of raw file.

    layout: columns of the events and items that ``rows`` yields.
    needs: names in ``source.tables`` that the reader reads; empty for most.

    A reader may also declare ``formats``, names of crpipe.events.file_formats such as "HDF5": a file of
    another format is then refused by its first bytes, with the readers beside this one that read it. And
    ``expectations``, what it knows of its values beside the layout.
    """

    layout: Layout
    needs: tuple[str, ...]

    def rows(self, path: Path, tables: Tables) -> Iterator[Events]:
        """Yield all events in the order of the file, in blocks of bounded memory.

        Raise FormatError (path, row, expected, found) when the file cannot be read whole.
        """

    def totals(self, path: Path, tables: Tables) -> tuple[int, int]:
        """Count events and items without decoding them, where the format allows; raise FormatError."""


@runtime_checkable
class WritesRaw(Protocol):
    """A reader that can also write events in the schema of its raw files, for `crpipe export --events`."""

    def raw_table(self, events: Events) -> pa.Table:
        """Return one row per event; the schema is the same for any events, and for none."""


def open_reader(name: str, options: Mapping[str, Any]) -> Reader:
    """Build the reader ``module:Name``; raise ConfigError when it is none or its layout cannot be stored."""
    try:
        reader: Reader = build("source.reader", name, options, _MEMBERS)
        if not isinstance(reader.layout, Layout):
            raise ConfigError(f"source.reader: {name}.layout is no crpipe.events.layout.Layout")
        reader.layout.check()
        given = getattr(reader, "expectations", None)
        if not isinstance(given, Expectations | None):
            raise ConfigError(
                f"source.reader: {name}.expectations: expected {Expectations.__module__}.Expectations, "
                f"found {type(given).__name__}"
            )
        problem = expectations_of(reader).problem(reader.layout)
        if problem:
            raise ConfigError(f"source.reader: {name}: {problem}")
    except LayoutError as error:
        raise ConfigError(f"source.reader: {name}: {error}") from error
    return reader


def expectations_of(reader: Reader) -> Expectations:
    """Return what a reader knows of its values beside the layout; nothing where it declares nothing."""
    return getattr(reader, "expectations", None) or Expectations()


def check_needs(name: str, needs: Iterable[str], tables: Iterable[str]) -> None:
    """Raise ConfigError when a side table that the reader or workload ``name`` needs is not in ``tables``."""
    given = sorted(tables)
    missing = sorted({*needs} - {*given})
    if missing:
        raise ConfigError(
            f"source.tables: the table {missing[0]} is missing, which {name} needs (found: "
            f"{', '.join(given) or 'none'}); set source.tables: {{{missing[0]}: URI}} and run `crpipe tables`"
        )


@dataclass(frozen=True, slots=True)
class ReaderChoice:
    """The reader of a campaign, its options and the verified side tables: what a job or a worker opens."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    tables: Tables = field(default_factory=dict)
    hint: str = ""  # ends each message about a file that cannot be read

    def needs(self) -> tuple[str, ...]:
        """Return the names of the side tables that the reader needs."""
        return tuple(open_reader(self.name, self.options).needs)

    def open(self) -> CheckedReader:
        """Build the reader; raise ConfigError when it is none, or when a table that it needs is missing."""
        reader = open_reader(self.name, self.options)
        check_needs(self.name, reader.needs, self.tables)
        return CheckedReader(self.name, reader, self.tables, self.hint)


def configured_reader(config: Config) -> ReaderChoice | None:
    """Return the reader that a configuration names, for files of no campaign; None where it names none."""
    if not config.source.reader:
        return None
    tables = table_paths(config.paths().tables())
    hint = "; source.convert is set: its outputs are read, not raw files" if config.source.convert else ""
    return ReaderChoice(config.source.reader, config.options("reader"), tables, hint)


class CheckedReader:
    """A reader whose blocks are checked against its layout, and whose exceptions name the file.

    What the reader raises, other than crpipe's own errors, becomes a PluginError, and so does a block of
    another shape than the layout promises. Values are not judged here: ``validity`` does that.
    """

    def __init__(self, name: str, reader: Reader, tables: Tables, hint: str = "") -> None:
        self.name = name
        self._hint = hint
        self.layout = reader.layout
        self.reader = reader
        self.expectations = expectations_of(reader)
        self._tables = tables
        self._notes: dict[str, None] = {}

    @property
    def notes(self) -> list[str]:
        """What was converted, or left unread, in the files whose totals were counted; each once."""
        return list(self._notes)

    def rows(self, path: Path) -> Iterator[Events]:
        """Yield all events in the order of the file; raise FormatError, or PluginError for a wrong block."""
        with self._guard(path):
            blocks = iter(self.reader.rows(path, self._tables))
        row = 0
        while True:
            with self._guard(path):
                try:
                    block = next(blocks, None)
                except MisfitError as error:
                    raise self._wrong(path, str(error)) from error
            if block is None:
                return
            with self._guard(path):
                events = self._checked(block, path)
            if self.layout.fixed:
                _check_fixed(events, self.layout, path, row)
            row += len(events)
            try:
                yield events
            except GeneratorExit:
                self._leave(blocks, path)
                raise

    def _leave(self, blocks: Iterator[Events], path: Path) -> None:
        """Close a file of which nobody wants the rest; where that fails, nothing is lost."""
        with contextlib.suppress(CrpipeError), self._guard(path):
            if isinstance(blocks, Generator):
                blocks.close()

    def totals(self, path: Path) -> tuple[int, int]:
        """Count events and items by the file's own account."""
        with self._guard(path), collected() as notes:
            events, items = self.reader.totals(path, self._tables)
            self._notes |= notes
            return int(events), int(items)

    @contextlib.contextmanager
    def _guard(self, path: Path) -> Iterator[None]:
        """Name the file in what the reader raises, and its format where the reader reads another one."""
        failed = f"{path}: the reader {self.name} failed (for a bad file it must raise crpipe's FormatError)"
        try:
            with plugin_errors(failed, path):
                yield
        except (FormatError, PluginError) as error:
            self._refuse_format(path, error)
            if self._hint and isinstance(error, FormatError):
                raise FormatError(f"{error}{self._hint}") from error
            raise

    def _refuse_format(self, path: Path, error: Exception) -> None:
        """Raise FormatError for a file that is of another format than the reader declares."""
        formats = tuple(getattr(self.reader, "formats", ()))
        file_format = UNKNOWN
        with contextlib.suppress(OSError):
            file_format = format_of(path) if formats else UNKNOWN
        if not file_format.name or file_format.name in formats:
            return
        remedy = file_format.remedy or _fitting(self.name, file_format.name, path, self._tables)
        raise FormatError(
            f"{path}: this is {file_format.words}, and {self.name} reads {' or '.join(formats)}; "
            f"{remedy or 'have it made again, or write a reader for it: docs/workload.md'}{self._hint}"
        ) from error

    def _wrong(self, path: Path, problem: str) -> PluginError:
        return PluginError(f"{path}: the reader {self.name} yielded a wrong block: {problem}")

    def _checked(self, block: Any, path: Path) -> Events:
        """Return the block with contiguous items; raise PluginError naming the first wrong column."""
        problem = _problem_of(block, self.layout)
        if problem:
            raise self._wrong(path, problem)
        if block.items.flags.c_contiguous:
            return block  # type: ignore[no-any-return]
        return Events(block.columns, block.multiplicity, np.ascontiguousarray(block.items))


def fitting_readers(name: str, path: Path, tables: Tables) -> list[str]:
    """Name the readers in the folder of the reader ``name`` that read a file, with their own defaults."""
    return [each for each in readers_of_format(name, path) if _can_read(each, path, tables)]


def readers_of_format(name: str, path: Path) -> list[str]:
    """Name the readers in the folder of the reader ``name`` that declare the format of a file.

    Where it declares none itself, it is one of them. Raise ConfigError where it cannot be imported.
    """
    any_format = not getattr(find_class("source.reader", name), "formats", ())
    return [name] if any_format else _declared(name, format_of(path).name)


def _fitting(name: str, file_format: str, path: Path, tables: Tables) -> str:
    """Name the readers beside ``name`` for a format: those that can read the file, else all; or nothing."""
    declared = _declared(name, file_format)
    fits = [each for each in declared if _can_read(each, path, tables)]
    return f"such files are read with source.reader: {' or '.join(fits or declared)}" if declared else ""


def _declared(name: str, file_format: str) -> list[str]:
    """Name the readers in the folder of the reader ``name`` that declare a format."""
    home = import_module(name.partition(":")[0])
    package = import_module(home.__package__ or home.__name__)
    folder = package.__name__.rpartition(".")[2]
    modules = [home]
    if folder in _FOLDERS and hasattr(package, "__path__"):  # elsewhere an import could do anything
        modules = [
            import_module(each.name) for each in iter_modules(package.__path__, f"{package.__name__}.")
        ]
    return [
        f"{module.__name__}:{each}"
        for module in modules
        for each, kind in vars(module).items()
        if getattr(kind, "__module__", "") == module.__name__
        and each[0] != "_"
        and file_format in getattr(kind, "formats", ())
    ]


def _can_read(name: str, path: Path, tables: Tables) -> bool:
    """Return whether a reader, with its own defaults, gives a first block of a file."""
    with contextlib.suppress(ConfigError, FormatError, PluginError, MissingExtra):
        next(ReaderChoice(name, {}, tables).open().rows(path), None)
        return True
    return False


def _problem_of(block: Any, layout: Layout) -> str:
    """Name the first part of a block that is not as the layout says; empty when all are."""
    if not isinstance(block, Events):
        return f"expected crpipe.events.batch.Events, found {type(block).__name__}"
    events = np.shape(block.multiplicity)[:1]
    dtypes = {each.name: each.dtype for each in layout.events}
    missing = sorted(dtypes.keys() - block.columns.keys())
    extra = sorted(block.columns.keys() - dtypes.keys())
    if missing or extra:
        state, name = ("missing", missing[0]) if missing else ("not in the layout", extra[0])
        return f"column {name}: {state}; the layout has {', '.join(dtypes)}"
    expected: list[tuple[str, Any, str, tuple[int, ...]]] = [
        ("multiplicity", block.multiplicity, "uint32", events or (0,))
    ]
    expected += [(f"column {name}", block.columns[name], kind, events) for name, kind in dtypes.items()]
    counted = int(np.sum(block.multiplicity, dtype=np.int64))
    expected.append((layout.item, block.items, "float32", (counted, len(layout.items))))
    for name, values, kind, shape in expected:
        if not (isinstance(values, np.ndarray) and values.dtype == kind and values.shape == shape):
            return f"{name}: expected {kind} {list(shape)}, found {spelled(values)}"
    return ""


def _check_fixed(events: Events, layout: Layout, path: Path, row: int) -> None:
    """Raise FormatError for the first event that has another number of items than all must have."""
    wrong = events.multiplicity != layout.fixed
    if wrong.any():
        index = int(np.argmax(wrong))
        raise FormatError(
            f"{path}: row {row + index}: expected {layout.fixed} {layout.item} in each event, found "
            f"{events.multiplicity[index]}; choose the reader of its layout with source.reader, or have the "
            "file made again"
        )
