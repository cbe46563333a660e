"""What lies in a local folder, and which ``source.uri`` and ranges name it: for `init`, and for a typo."""

from __future__ import annotations

import difflib
import itertools
import math
import os
import re
import shlex
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from crpipe.campaign.raw_files import natural_key
from crpipe.core.errors import ConfigError, ListingError
from crpipe.core.ranges import PATTERN, Range
from crpipe.core.text import counted
from crpipe.source.positions import shown
from crpipe.source.range_files import SourceFiles, read_list
from crpipe.source.retries import Deadline
from crpipe.source.uris import RANGE, WILDCARDS, Kind, SourceOptions, SourcePattern, host_and_path, scheme_of

if TYPE_CHECKING:
    from collections.abc import Sequence

Item = TypeVar("Item")

SAMPLED = 8  # files that are named to be read
MOST = 100_000  # names of one folder that are read for a message
_RANGES = 10  # ranges that a folder of numbered files is cut into, about
_LARGEST_STEP = 1000
_LISTS = (".txt", ".list", ".lst")  # suffixes of lists of files
_NOTES = (*_LISTS, "", ".md", ".rst", ".log", ".json", ".yaml", ".yml")  # of what lies beside folders of data
_NUMBER = re.compile(r"(.*?)(\d+)(\D*)")
_ALMOST = re.compile(r"\d{1,7}-\d{1,7}")  # a range directory without its zeros


@dataclass(frozen=True, slots=True)
class SuggestedRanges:
    """What the source holds: one line for the user, and the section ``ranges`` that fits.

    count: files in all, about; paths: at most ``SAMPLED`` of them on this machine, spread over all.
    """

    text: str
    ranges: dict[str, Any] = field(default_factory=dict)
    count: int = 0
    paths: tuple[Path, ...] = ()


def suggest_ranges(uri: str, files: str = "") -> SuggestedRanges:
    """Find the files that ``uri`` (or the list ``files``) names on this machine.

    Raise ConfigError with what lies there, and the pattern to write, when there are none. Other schemes are
    checked for their form alone.
    """
    folder = "" if files or scheme_of(uri) != "file" else host_and_path(uri)[1]
    if folder and _is_folder(Path(folder)):
        raise ConfigError(f"source.uri: {uri}: {_describe(Path(folder), option=True)}")
    pattern = SourcePattern(uri, files)
    if pattern.kind is Kind.FLAT_LIST:
        names = read_list(Path(files))
        return replace(_flat(files, len(names), "in the list"), paths=_sampled(names))
    if not folder or pattern.kind is Kind.RANGE_LISTS:
        return SuggestedRanges("")
    options = SourceOptions()
    source = SourceFiles(pattern, options, Deadline(options.deadline_s, "the source"))
    try:
        suggestion = _ranges_of(source)
    except ListingError as error:
        raise ConfigError(f"source.uri: {uri}: {hint_of(pattern, option=True) or error}") from error
    if suggestion is None:
        hint = hint_of(pattern, option=True)
        raise ConfigError(f"source.uri: {uri}: no file there matches; {hint}")
    return suggestion


def pattern_of(uri: str) -> str:
    """Return the pattern of the files in the local folder ``uri``; empty where it is none, or holds none."""
    folder = Path(host_and_path(uri)[1]) if uri and scheme_of(uri) == "file" else None
    return _pattern_in(folder) if folder is not None and _is_folder(folder) else ""


def pattern_near(folder: Path) -> str:
    """Return the pattern of files in a folder, or in the one folder below it that has range directories."""
    below = [
        pattern for name in (_scan(folder) or ([], []))[1] if RANGE in (pattern := _pattern_in(folder / name))
    ]
    here = _pattern_in(folder)
    return here if RANGE in here else below[0] if len(below) == 1 else ""


def _pattern_in(folder: Path) -> str:
    files, folders = _scan(folder) or ([], [])
    ranges = [name for name in folders if PATTERN.search(name)]
    if ranges:
        inside = _scan(folder / ranges[0]) or ([], [])
        suffix = _usual_suffix(inside[0]) if inside[0] else ""
        return f"{folder}/{PATTERN.sub(RANGE, ranges[0], count=1)}/*{suffix}"
    suffix = _usual_suffix(files) if files else ""
    if not files or suffix in _LISTS or _pattern_below(folder, files, folders):
        return ""
    alike = [name for name in files if Path(name).suffix == suffix]
    numbered = "" if _has_gaps(alike) else _number_uri(folder, alike)
    return numbered or f"{folder}/*{suffix}"


def _pattern_below(folder: Path, files: Sequence[str], folders: Sequence[str]) -> str:
    """Return the pattern of the files in the folders of a folder that has but notes itself; else empty."""
    if files and _usual_suffix(files) not in _NOTES:
        return ""
    names = [name for each in spread(folders) for name in (_scan(folder / each) or ([], []))[0]]
    return f"{folder}/**/*{_usual_suffix(names)}" if names else ""


def spread(items: Sequence[Item]) -> list[Item]:
    """Choose at most ``SAMPLED`` items evenly, the first and the last among them."""
    count = min(SAMPLED, len(items))
    indices = {round(index * (len(items) - 1) / max(1, count - 1)) for index in range(count)}
    return [items[index] for index in sorted(indices)]


def _sampled(uris: Sequence[str]) -> tuple[Path, ...]:
    return tuple(Path(host_and_path(uri)[1]) for uri in spread(uris) if scheme_of(uri) == "file")


def _ranges_of(source: SourceFiles) -> SuggestedRanges | None:
    """Cut the files that match into ranges; None where there are none."""
    pattern = source.pattern
    if pattern.kind is Kind.RANGES:
        ranges = source.ranges()
        return _in_ranges(source, ranges) if ranges else None
    if pattern.kind is Kind.NUMBERS:
        numbers = source.numbers()
        return _numbered(pattern, numbers) if numbers else None
    location, names = pattern.whole(), source.names()
    if not names:
        return None
    others = [name for name in (_scan(Path(location.folder)) or ([],))[0] if not location.has(name)]
    beside = f"; {len(others)} left out: {shown(others)}" if others else ""
    suggestion = _flat(f"{location.pattern}{beside}", len(names), f"in {location.folder}")
    return replace(suggestion, paths=_sampled([f"{location.folder}/{name}" for name in names]))


def _in_ranges(source: SourceFiles, ranges: Sequence[Range]) -> SuggestedRanges:
    pattern = source.pattern
    some = {place: source.of_range(ranges[place]) for place in (0, len(ranges) // 2, len(ranges) - 1)}
    files = round(sum(map(len, some.values())) / len(some) * len(ranges))
    paths = _sampled([entry.uri for entries in some.values() for entry in entries])
    if not some[0]:
        location, hint = pattern.location(ranges[0]), hint_of(pattern, ranges[0], option=True)
        raise ConfigError(
            f"source.uri: {pattern.uri}: no file in {location.folder} matches {location.pattern}; {hint}"
        )
    count = f"{counted(len(ranges), 'range')} in {pattern.whole().folder}, {ranges[0]} to {ranges[-1]}"
    step = Counter(one.last - one.first + 1 for one in ranges).most_common(1)[0][0]
    first, last = ranges[0].first, ranges[-1].last
    tiles = [Range(start, start + step - 1) for start in range(first, last + 1, step)]
    odd = sorted({*ranges} - {*tiles})
    if odd:
        return SuggestedRanges(
            f"{count}; {shown(list(map(str, odd)))} does not fit between ranges of "
            f"{counted(step, 'file')}: set ranges.first, ranges.last and ranges.size by hand",
            count=files,
            paths=paths,
        )
    missing = [str(tile) for tile in tiles if tile not in ranges]
    note = f"; missing, so they are in ranges.skip: {shown(missing)}" if missing else ""
    skip = {"skip": missing} if missing else {}
    suggested = {"first": first, "last": last, "size": step, **skip}
    return SuggestedRanges(f"{count}{note}", suggested, files, paths)


def _numbered(pattern: SourcePattern, numbers: Sequence[int]) -> SuggestedRanges:
    first, last = numbers[0], numbers[-1]
    missing = last - first + 1 - len(numbers)
    text = f"{counted(len(numbers), 'file')} {pattern.file_name(first)} to {pattern.file_name(last)}"
    if missing:
        text += (
            f"; missing between them, which stops their ranges: {counted(missing, 'number')}; name these in "
            "ranges.skip, or write * in place of {number} to take the files that exist"
        )
    ranges = {"first": first, "last": last, "size": _step(len(numbers))}
    folder = pattern.whole().folder
    paths = _sampled([f"{folder}/{pattern.file_name(number)}" for number in numbers])
    return SuggestedRanges(text, ranges, len(numbers), paths)


def _flat(what: str, count: int, where: str) -> SuggestedRanges:
    ranges = {"first": 0, "last": "auto", "size": _step(count)}
    return SuggestedRanges(f"{counted(count, 'file')} {where} ({what})", ranges, count)


def _step(files: int) -> int:
    """Choose how many files make up a range: about ten ranges, of at most a thousand files."""
    return min(_LARGEST_STEP, max(1, math.ceil(files / _RANGES)))


# What is there in place of the files that a pattern names.


def hint_of(pattern: SourcePattern, name: Range | None = None, *, option: bool = False) -> str:
    """Describe what a local source holds in place of the files of a range, and what to write.

    Empty where files match, and where they are named in lists or are not on this machine. option: name what
    to write as an option of `crpipe init`, not as a key of the configuration.

    Example: for /data/{range} with the directory /data/0000000-0000009 it names /data/{range}/*.parquet.
    """
    if pattern.files or scheme_of(pattern.uri) != "file":
        return ""
    location = pattern.location(name) if name is not None and pattern.kind is Kind.RANGES else pattern.whole()
    folder, content = Path(location.folder), _scan(Path(location.folder))
    closed = next((each for each in [*reversed(folder.parents), folder] if _is_closed(each, folder)), None)
    if closed or (content is None and _is_folder(folder)):
        return f"make it readable: chmod u+rx {shlex.quote(str(closed or folder))}, or ask its owner"
    numbered = pattern.kind is Kind.NUMBERS
    if content and any(
        pattern.number_of(file) is not None if numbered else location.has(file) for file in content[0]
    ):
        return ""
    named = Path(host_and_path(pattern.uri)[1])
    if not {*pattern.uri} & {"{", *WILDCARDS}:
        return _describe(named, option=option)
    top = Path(pattern.whole().folder)
    if name is not None and pattern.kind is Kind.RANGES:
        there = sorted(each for each in itertools.chain(*(_scan(top) or ())) if pattern.range_of(each))
        if there and name not in map(pattern.range_of, there):
            ranges = "set ranges.first, ranges.last and ranges.size to what is there"
            return f"{top} holds {shown(there)}; {ranges}"
    return _describe(top, option=option)


def _describe(folder: Path, *, option: bool) -> str:
    """Describe what is in a folder, and its URI; of a folder that does not exist, its neighbours."""
    content = _scan(folder)
    if content is None:
        return (
            f"{folder} cannot be read: permission denied" if _is_folder(folder) else _describe_missing(folder)
        )
    files, folders = content
    ranges = [name for name in folders if PATTERN.search(name)]
    if ranges:
        span = f"{ranges[0]} … {ranges[-1]}" if len(ranges) > 1 else ranges[0]
        advice = _advice("uri", _pattern_in(folder), option=option)
        count = f"{len(ranges):,} range director{'y' if len(ranges) == 1 else 'ies'}"
        return f"{folder} holds {count} ({span}); {advice}"
    below = _pattern_below(folder, files, folders)
    if files and not below:
        return _describe_files(folder, files, option=option)
    almost = next((name for name in folders if _ALMOST.fullmatch(name)), None)
    if almost:
        name = "-".join(f"{int(number):07}" for number in almost.split("-"))
        return f"{folder} holds {shown(folders)}; range directories have seven digits: name it {name}"
    if not folders:
        return f"{folder} is empty"
    held = f"{folder} holds the folders {shown(folders)}{'' if files else ' and no files'}"
    every = f", or for all of them {_advice('uri', below, option=option)}" if below else ""
    return f"{held}; name the folder with the files{every}"


def _describe_files(folder: Path, files: list[str], *, option: bool) -> str:
    suffix = _usual_suffix(files)
    alike = [name for name in files if Path(name).suffix == suffix]
    held = f"{folder} holds {counted(len(files), 'file')}, {len(alike)} of them *{suffix} ({shown(alike)})"
    if suffix in _LISTS:
        advice = _advice("files", str(folder / alike[0]), option=option)
        return f"{held}; if one of them is a list of files, {advice}"
    plain, numbered = f"{folder}/*{suffix}", _number_uri(folder, alike)
    if not numbered:
        return f"{held}; {_advice('uri', plain, option=option)}"
    return f"{held}; {_advice('uri', numbered, option=option)}, or {shlex.quote(plain)} for any names"


def _advice(key: str, value: str, *, option: bool) -> str:
    return f"write --{key} {shlex.quote(value)}" if option else f"write source.{key}: {value}"


def _describe_missing(folder: Path) -> str:
    parent = folder.parent
    while not _is_folder(parent) and parent != parent.parent:
        parent = parent.parent
    missing = folder.relative_to(parent).parts[0]
    names = sorted(name for name in itertools.chain(*(_scan(parent) or ())) if not name.startswith("."))
    near = difflib.get_close_matches(missing, names, n=1)
    if near:
        rest = "/".join((near[0], *folder.relative_to(parent).parts[1:]))
        return f"{parent / missing} does not exist; did you mean {parent / rest}?"
    there = f"it holds {shown(names)}" if names else "it is empty"
    return f"{parent / missing} does not exist; {parent} does, and {there}"


def _number_uri(folder: Path, names: list[str]) -> str:
    """Name several files that differ by one number, ``f_7.parquet`` or ``f_07.parquet``; else empty."""
    parts = [part for name in names if (part := _NUMBER.fullmatch(name))]
    if len(names) == 1 or len(parts) < len(names) or len({(part[1], part[3]) for part in parts}) != 1:
        return ""
    digits = {len(part[2]) for part in parts}
    padded = any(part[2][0] == "0" and len(part[2]) > 1 for part in parts)
    if padded and len(digits) != 1:
        return ""
    number = f"{{number:0{digits.pop()}}}" if padded else "{number}"
    return f"{folder}/{parts[0][1]}{number}{parts[0][3]}"


def _has_gaps(names: Sequence[str]) -> bool:
    """Return whether numbers are missing between those in the names of numbered files."""
    numbers = [int(part[2]) for name in names if (part := _NUMBER.fullmatch(name))]
    return bool(numbers) and max(numbers) - min(numbers) >= len(numbers) and len(names) < MOST


def _usual_suffix(files: Sequence[str]) -> str:
    return Counter(Path(name).suffix for name in files).most_common(1)[0][0]


def _scan(folder: Path) -> tuple[list[str], list[str]] | None:
    """Name files and directories in a folder, at most MOST of them, in order; None when it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            kinds = [(entry.name, entry.is_dir()) for entry in itertools.islice(entries, MOST)]
    except OSError:
        return None
    kinds.sort(key=lambda kind: natural_key(kind[0]))
    return [name for name, is_dir in kinds if not is_dir], [name for name, is_dir in kinds if is_dir]


def _is_folder(path: Path) -> bool:
    return os.path.isdir(path)  # noqa: PTH112 - in a directory that may not be entered, nothing is one


def _is_closed(folder: Path, listed: Path) -> bool:
    """Return whether this user may not enter a directory that is there, nor list the one to be ``listed``."""
    needed = os.X_OK | (os.R_OK if folder == listed else 0)
    is_there = os.access(folder, os.F_OK, effective_ids=True)
    return is_there and not os.access(folder, needed, effective_ids=True)
