"""What lies in a local folder, and which ``source.uri`` names it: for a typo at `crpipe init`."""

from __future__ import annotations

import difflib
import math
import os
import re
import shlex
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crpipe.core.errors import ConfigError
from crpipe.core.ranges import PATTERN, Range
from crpipe.core.text import counted
from crpipe.source.listing import read_list
from crpipe.source.look.folders import is_folder, names_in, usual_pattern
from crpipe.source.positions import natural_order, shown
from crpipe.source.uris import RANGE, Kind, SourcePattern, host_and_path, scheme_of

if TYPE_CHECKING:
    from collections.abc import Callable

_RANGES = 10  # ranges that a folder of numbered files is cut into, about
_LARGEST_STEP = 1000
_NUMBER = re.compile(r"(.*?)(\d+)(\D*)")
_ADVICE = "write --uri {}"


@dataclass(frozen=True, slots=True)
class FoundFiles:
    """What the source holds: one line for the user, and the section ``ranges`` that fits."""

    text: str
    ranges: dict[str, Any] = field(default_factory=dict)


def from_here(uri: str, campaign: Path) -> str:
    """Make a relative path of this directory absolute where the campaign's commands run in another one."""
    if not uri or "://" in uri or Path(uri).is_absolute() or campaign.resolve() == Path.cwd().resolve():
        return uri
    return os.path.normpath(Path.cwd() / uri)


def look(uri: str, files: str = "") -> FoundFiles:
    """Find the files that ``uri`` (or the list ``files``) names on this machine.

    Raise ConfigError with what lies there, and the pattern to write, when there are none. Other schemes are
    checked for their form alone.
    """
    if not files and scheme_of(uri) == "file":
        folder = Path(host_and_path(uri)[1])
        if not _has_pattern(uri) and (is_folder(folder) or not _is_true(folder.exists)):
            raise ConfigError(f"source.uri: {uri}: {_describe(folder)}")
    pattern = SourcePattern(uri, files)
    if pattern.kind is Kind.FLAT_LIST:
        return _flat(files, len(read_list(Path(files))), "files in the list")
    if pattern.kind in (Kind.SIMULATED, Kind.RANGE_LISTS) or scheme_of(uri) != "file":
        return FoundFiles("")
    folder = Path(pattern.whole().folder)
    names = names_in(folder, most=None)  # all: the ranges follow from them
    if names is None:
        raise ConfigError(f"source.uri: {uri}: {_describe(folder)}")
    found = _look_in(pattern, folder, names)
    if found is None:
        raise ConfigError(f"source.uri: {uri}: no file there matches; {_describe(folder)}")
    return found


def _is_true(question: Callable[[], bool]) -> bool:
    """Ask about a path; what is in a directory that may not be entered is not there."""
    try:
        return question()
    except OSError:
        return False


def _has_pattern(uri: str) -> bool:
    return any(character in uri for character in "{*?[") or _is_true(Path(uri).is_file)


def _look_in(pattern: SourcePattern, folder: Path, names: list[str]) -> FoundFiles | None:
    """Take the files that match; None where there are none."""
    if pattern.kind is Kind.RANGES:
        return _in_ranges(pattern, folder, names)
    place = pattern.whole()
    if pattern.kind is Kind.NUMBERS:
        numbers = sorted(number for number in map(pattern.number_of, names) if number is not None)
        return _numbered(pattern, numbers) if numbers else None
    matching = [name for name in names if place.has(name) and (folder / name).is_file()]
    return _flat(place.pattern, len(matching), f"files in {folder}") if matching else None


def _in_ranges(pattern: SourcePattern, folder: Path, names: list[str]) -> FoundFiles | None:
    named = {name: found for name in names if (found := pattern.range_of(name)) is not None}
    if not named:
        return None
    ranges = sorted(named.values())
    first_folder = min(named, key=lambda name: named[name])
    place = pattern.place(named[first_folder])
    inside = names_in(Path(place.folder)) or []
    if not any(place.has(name) and Path(place.folder, name).is_file() for name in inside):
        raise ConfigError(
            f"source.uri: {pattern.uri}: no file in {place.folder} matches {place.pattern}; "
            f"{_describe(folder)}"
        )
    count = f"{len(ranges)} ranges in {folder}, {ranges[0]} to {ranges[-1]}"
    sizes = Counter(one.last - one.first + 1 for one in ranges)
    step = sizes.most_common(1)[0][0]
    first, last = ranges[0].first, ranges[-1].last
    tiles = [Range(start, start + step - 1) for start in range(first, last + 1, step)]
    odd = sorted({*ranges} - {*tiles})
    if odd:
        return FoundFiles(
            f"{count}; {shown(list(map(str, odd)))} does not fit between ranges of {step} files: set "
            "ranges.first, ranges.last and ranges.step by hand"
        )
    missing = [str(tile) for tile in tiles if tile not in named.values()]
    note = f"; missing, so they are in ranges.skip: {shown(missing)}" if missing else ""
    skip = {"skip": missing} if missing else {}
    return FoundFiles(f"{count}{note}", {"first": first, "last": last, "step": step, **skip})


def _numbered(pattern: SourcePattern, numbers: list[int]) -> FoundFiles:
    first, last = numbers[0], numbers[-1]
    lacking = last - first + 1 - len(numbers)
    text = f"{len(numbers)} files {pattern.file_name(first)} to {pattern.file_name(last)}"
    if lacking:
        text += (
            f"; {lacking} numbers between them are missing, which stops their ranges: name them in "
            "ranges.skip, or write * in place of {number} to take the files that exist"
        )
    return FoundFiles(text, {"first": first, "last": last, "step": _step(len(numbers))})


def _flat(what: str, count: int, where: str) -> FoundFiles:
    if not count:
        raise ConfigError(f"source.files: {what}: the list names no file; write one path on each line")
    return FoundFiles(f"{count} {where} ({what})", {"first": 0, "last": "auto", "step": _step(count)})


def _step(files: int) -> int:
    """Choose how many files make up a range: about ten ranges, of at most a thousand files."""
    return min(_LARGEST_STEP, max(1, math.ceil(files / _RANGES)))


def _describe(folder: Path) -> str:
    """Describe what is in a folder, and its URI; of a folder that does not exist, its neighbours."""
    names = names_in(folder)
    if names is None:
        return (
            f"{folder} cannot be read: permission denied" if is_folder(folder) else _describe_missing(folder)
        )
    files = natural_order([name for name in names if (folder / name).is_file()])
    folders = sorted(name for name in names if (folder / name).is_dir())
    ranges = [name for name in folders if PATTERN.search(name)]
    if ranges:
        span = f"{ranges[0]} … {ranges[-1]}" if len(ranges) > 1 else ranges[0]
        uri = _range_uri(folder, ranges[0])
        return f"{folder} holds {len(ranges)} range directories ({span}); {_ADVICE.format(shlex.quote(uri))}"
    if files:
        return _describe_files(folder, files)
    if folders:
        return f"{folder} holds the folders {shown(folders)} and no files; name the folder with the files"
    return f"{folder} is empty"


def _describe_files(folder: Path, files: list[str]) -> str:
    suffix, count = Counter(Path(name).suffix for name in files).most_common(1)[0]
    alike = [name for name in files if Path(name).suffix == suffix]
    held = f"{folder} holds {counted(len(files), 'file')}, {count} of them *{suffix} ({shown(alike)})"
    if suffix in (".txt", ".list", ".lst"):
        return (
            f"{held}; if one of them is a list of files, write --files {shlex.quote(str(folder / alike[0]))}"
        )
    advice = _ADVICE.format(shlex.quote(f"{folder}/*{suffix}"))
    numbered = _number_uri(folder, alike)
    if numbered:
        advice = (
            f"{_ADVICE.format(shlex.quote(numbered))}, or {shlex.quote(f'{folder}/*{suffix}')} for any names"
        )
    return f"{held}; {advice}"


def _describe_missing(folder: Path) -> str:
    parent = folder.parent
    while not is_folder(parent) and parent != parent.parent:
        parent = parent.parent
    wanted = folder.relative_to(parent).parts[0]
    names = sorted(name for name in names_in(parent) or [] if not name.startswith("."))
    near = difflib.get_close_matches(wanted, names, n=1)
    if near:
        rest = "/".join((near[0], *folder.relative_to(parent).parts[1:]))
        return f"{parent / wanted} does not exist; did you mean {parent / rest}?"
    there = f"it holds {shown(names)}" if names else "it is empty"
    return f"{parent / wanted} does not exist; {parent} does, and {there}"


def _range_uri(folder: Path, name: str) -> str:
    """Name the files of range directories, by the most frequent suffix in the first of them."""
    return f"{folder}/{PATTERN.sub(RANGE, name, count=1)}/{usual_pattern(folder / name)}"


def _number_uri(folder: Path, names: list[str]) -> str:
    """Name files that differ by one number alone, ``batch_7.parquet`` or ``batch_07.parquet``; else empty."""
    parts = [_NUMBER.fullmatch(name) for name in names]
    if None in parts:
        return ""
    found = [part for part in parts if part is not None]
    if len({(part[1], part[3]) for part in found}) != 1:
        return ""
    digits = {len(part[2]) for part in found}
    padded = any(part[2][0] == "0" and len(part[2]) > 1 for part in found)
    if padded and len(digits) != 1:
        return ""
    width = digits.pop()
    number = f"{{number:0{width}}}" if padded else "{number}"
    return f"{folder}/{found[0][1]}{number}{found[0][3]}"
