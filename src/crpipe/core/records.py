"""A JSON file of a campaign as a frozen class, read, checked and written by the types of its fields.

The classes are plain dataclasses: they are read fast, and errors name the value and its key in the file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from types import NoneType
from typing import TYPE_CHECKING, Any, Self, get_args, get_origin, get_type_hints

from crpipe.core.causes import is_present
from crpipe.core.files import FORMS, read_parsed, write_json
from crpipe.core.paths import FORKS, Paths

if TYPE_CHECKING:
    from pathlib import Path


Parser = Callable[[Any, str], Any]  # takes a value and its name in the file; raises ValueError
WRITTEN = {"written": True}  # metadata of a field that may be missing, but whose None is written
_Fields = tuple[dict[str, Parser], frozenset[str], frozenset[str]]
_UNKNOWN = "unknown"
_FIELDS: dict[Any, _Fields] = {}  # of each class, once it is used


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One JSON object, or a part of one.

    A field is checked by its type: an ``int`` is at least 0 and below 2^63, a ``float`` finite, a ``tuple``
    is a list, a ``Mapping`` has any names. A field whose default is None may be missing, and is then not
    written. unknown: the fields of a later version; they are kept when the record is written again.
    """

    unknown: Mapping[str, Any] = field(default_factory=dict)

    def __init_subclass__(cls, files: str = "") -> None:
        """Register the class: ``read_json``, too, checks the files whose last names match ``files``."""
        if files:
            FORMS[files] = cls.from_json

    @classmethod
    def from_json(cls, value: Any, where: str = "it") -> Self:
        """Make a record of a JSON value; raise ValueError naming the first field that is missing or wrong."""
        _refuse_other(value, dict, where, "mapping")
        parsers, required, written = _fields_of(cls)
        missing = required - value.keys()
        if missing:
            raise ValueError(f"{min(missing)} is missing")
        known = {
            name: parse(value[name], name)
            for name, parse in parsers.items()
            if name in required or value.get(name) is not None
        }
        return cls(**known, unknown={name: value[name] for name in value.keys() - known.keys() - written})

    def as_json(self) -> dict[str, Any]:
        """Return the JSON value that is written; ``from_json`` of it is this record."""
        parsers, _, always = _fields_of(type(self))
        values = {name: getattr(self, name) for name in parsers}
        written = {
            name: _plain(value) for name, value in values.items() if name in always or value is not None
        }
        return {**written, **self.unknown}

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file; raise DataError when it is missing or damaged, with what makes it again."""
        return read_parsed(path, cls.from_json)

    @classmethod
    def read_if_any(cls, path: Path) -> Self | None:
        """Read a file, None when it does not exist; raise DataError when it is damaged."""
        return cls.read(path) if is_present(path) else None

    def write(self, path: Path) -> None:
        """Write the file atomically; equal records give equal bytes."""
        write_json(path, self.as_json())


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordTable(Record):
    """A JSON object of any names: ``rows``, the only field, is the whole of it."""

    @classmethod
    def from_json(cls, value: Any, where: str = "it") -> Self:
        """Make a table of a JSON value; raise ValueError naming the first field that is missing or wrong."""
        parsers, _, _ = _fields_of(cls)
        return cls(**{name: parse(value, where) for name, parse in parsers.items()})

    def as_json(self) -> dict[str, Any]:
        """Return the JSON value that is written."""
        (name,) = _fields_of(type(self))[0]
        return dict(_plain(getattr(self, name)))


def _fields_of(kind: Any) -> _Fields:
    """Return what parses each field of a class, the names that must be there, and those always written."""
    if kind not in _FIELDS:
        hints = get_type_hints(kind)
        known = [each for each in fields(kind) if each.name != _UNKNOWN]
        required = frozenset(each.name for each in known if each.default is MISSING)
        written = required | {each.name for each in known if each.metadata == WRITTEN}
        _FIELDS[kind] = {each.name: _parser(hints[each.name]) for each in known}, required, written
    return _FIELDS[kind]


@cache
def _parser(kind: Any) -> Parser:
    """Return what checks and converts a value of one type."""
    origin, parts = get_origin(kind), get_args(kind)
    if isinstance(kind, type) and origin is None and issubclass(kind, Record):
        return kind.from_json
    if origin is tuple:
        return _list_parser(_parser(parts[0]))
    if origin is Mapping:
        return _mapping_parser(_parser(parts[1]))
    if NoneType in parts:
        (one,) = (part for part in parts if part is not NoneType)
        parse = _scalar_parser(lambda value: type(value) is int) if one is int else _parser(one)
        return lambda value, where: None if value is None else parse(value, where)
    return _scalar_parser(_SCALARS[kind])


_SCALARS: dict[Any, Callable[[Any], bool]] = {
    Any: lambda _: True,
    str: lambda value: isinstance(value, str),
    bool: lambda value: isinstance(value, bool),
    int: lambda value: type(value) is int and 0 <= value < 1 << 63,
    float: lambda value: isinstance(value, int | float) and abs(value) < math.inf,
}


def _scalar_parser(is_good: Callable[[Any], bool]) -> Parser:
    def parse(value: Any, where: str) -> Any:
        if not is_good(value):
            raise ValueError(f"{where} is {value!r:.60}")
        return value

    return parse


def _refuse_other(value: Any, kind: type, where: str, noun: str) -> None:
    if not isinstance(value, kind):
        raise ValueError(f"{where} is no {noun}")  # noqa: TRY004 - the file is damaged, not the program


def _list_parser(parse: Parser) -> Parser:
    def parse_all(value: Any, where: str) -> tuple[Any, ...]:
        _refuse_other(value, list, where, "list")
        return tuple([parse(each, where) for each in value])

    return parse_all


def _mapping_parser(parse: Parser) -> Parser:
    def parse_all(value: Any, where: str) -> dict[str, Any]:
        _refuse_other(value, dict, where, "mapping")
        return {name: parse(each, name) for name, each in value.items()}

    return parse_all


def _plain(value: Any) -> Any:
    """Return a value of a record as JSON has it."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Record):
        return value.as_json()
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, tuple | list) else value


@dataclass(frozen=True, kw_only=True)
class NumberedFiles(Record, files="positions.json"):
    """positions.json: how many files of a flat source have a number, the last number, and the source."""

    last: int
    source: str
    files: int


def skipped_names(paths: Paths) -> set[str]:
    """Name the ranges that ``ranges.on_failure: skip`` left out: those with a record."""
    return {path.stem for path in paths.skipped("x").parent.glob("*.json")}


@dataclass(frozen=True, kw_only=True)
class Forks(RecordTable, files=FORKS):
    """forks.json: the checkpoint that each fork of a run begins with."""

    checkpoints: Mapping[str, str]


for _name in ("campaign.json", "layout.json"):  # configuration keys; and the reader's description of events
    FORMS[_name] = lambda value: _parser(Mapping[str, Any])(value, "it")
