"""URIs of files: scheme, host and path. ``key`` arguments name the configuration key, for messages."""

from __future__ import annotations

import difflib
import enum
import fnmatch
import re
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote, unquote, urlsplit

from crpipe.core.errors import ConfigError
from crpipe.core.ranges import PATTERN, Range

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from crpipe.campaign.raw_files import Entry
    from crpipe.config.loading import Config

FEDERATIONS = ("pelican", "osdf")
WEB = ("https", "davs", "http", "dav")  # the last two without TLS, so for servers of this machine alone
STORES = ("root", "s3", "gs", "abfs")
LISTS_NONE = ", or name the files in source.files"  # the remedy where a web server lists no directories
WRITABLE = ("s3", "gs", "abfs")  # stores that copies and states can be sent to
REMOTE = (*FEDERATIONS, *WEB, *STORES)
SYNTHETIC = "synthetic"
WILDCARDS = frozenset("*?[")
_OSDF = "osg-htc.org"
_LOOPBACK = {"localhost", "127.0.0.1", "::1"}
_SECURE = {"http": "https", "dav": "davs"}


def scheme_of(uri: str, key: str = "source.uri") -> str:
    """Return the scheme of a URI; that of a plain path is ``file``."""
    if not uri:
        raise ConfigError(f"{key}: not set; name where the files are, for example /data/{{range}}/*.parquet")
    scheme = uri.partition("://")[0] if "://" in uri else "file"
    if scheme not in {"file", SYNTHETIC, *REMOTE}:
        raise ConfigError(
            f"{key}: {scheme}:// is not known; use pelican://, osdf://, https://, davs://, root://, s3://, "
            "gs://, abfs://, file://, a path, or synthetic://"
        )
    return scheme


def place_of(uri: str, key: str = "source.uri") -> tuple[str, str]:
    """Return scheme and host: files that have them in common come over one session."""
    return scheme_of(uri, key), host_and_path(uri, key)[0]


def http_url(scheme: str, host: str) -> str:
    """Return the address of a web server; WebDAV has schemes of its own."""
    return f"{'http' if scheme in {'http', 'dav'} else 'https'}://{host}"


def uri_of(scheme: str, host: str, path: str) -> str:
    """Write the URI of a listed file, so that ``host_and_path`` reads the same path again."""
    if scheme in FEDERATIONS:
        scheme = FEDERATIONS[0]
    if scheme == "root":  # after one slash XRootD's paths would be relative
        path = f"/{path}"
    return f"{scheme}://{host}{quote(path, errors='surrogateescape') if scheme in WEB else path}"


def host_and_path(uri: str, key: str = "source.uri") -> tuple[str, str]:
    """Split a URI (or path) into host and path; osdf:// always means the Open Science Data Federation."""
    scheme = scheme_of(uri, key)
    if "://" not in uri:
        return "", str(Path(uri).absolute())
    rest = uri.partition("://")[2]
    if scheme == "osdf":
        return _OSDF, "/" + rest.lstrip("/")
    host, _, path = rest.partition("/")
    if scheme == "file":
        if host not in {"", "localhost"}:
            raise ConfigError(f"{key}: {uri} names the host {host}; write file:///path for files of this one")
        return "", "/" + unquote(path)
    if not host:
        raise ConfigError(f"{key}: {uri} names no host; write {scheme}://host/path")
    if scheme in {"root", *FEDERATIONS}:  # XRootD's addresses begin with two
        path = path.lstrip("/")
    name = _host_name(scheme, host, key)
    if scheme not in WEB:
        return host, "/" + path
    if scheme in {"http", "dav"} and name not in _LOOPBACK:
        raise ConfigError(
            f"{key}: {uri}: anybody on the way could change the files; write {_SECURE[scheme]}://"
        )
    return host, "/" + unquote(path)


@lru_cache  # asked several times for each file, and the hosts are few
def _host_name(scheme: str, host: str, key: str) -> str:
    """Return the name in ``host:port``, of a bucket all; raise ConfigError for a password or what is none."""
    if scheme in WRITABLE:
        return host
    user, _, address = host.rpartition("@")
    shown = f"{key}: {scheme}://{address}"
    if user and (scheme != "root" or ":" in user):
        raise ConfigError(f"{shown}: write no password into an address")
    try:
        parts = urlsplit(f"//{address}")
        is_host = bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_host = False
    if not is_host:
        raise ConfigError(
            f"{shown}: no host, or no port, has this name; write host, host:port or [IPv6 address]:port"
        )
    return parts.hostname or ""


def written_path(uri: str, key: str = "source.uri") -> str:
    """Return the path that a person wrote; the working directory's own name may hold any character."""
    path = host_and_path(uri, key)[1]
    return path if "://" in uri else f"/{uri}"


# Section ``source`` as plain values: how files are asked for, and which of them make up a range.
#
# ``{range}`` is replaced by the name of a range, ``{number}`` by a file number. Without either, the files
# of one directory or list are numbered in natural order.


RANGE = "{range}"
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_NUMBER = re.compile(r"number(?::0([1-9]))?")
_LEGAL = ("range", "number", "number:06")
_BELOW = "/**"  # after a directory: with all below it
_SKIP = "check source.uri, or skip the range with ranges.skip"


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Section ``source`` of the configuration, as far as it says how files are listed and copied.

    concurrency: files copied at once. attempts: tries for each file. deadline_s: longest time of one job.
    simulator: ``module:Name`` of what makes the files of ``synthetic://``, with its options and seed.
    in_place: whether files of this machine are read where they are, not copied.
    """

    concurrency: int = 16
    attempts: int = 6
    deadline_s: float = 7200.0
    read_timeout_s: float = 60.0
    token_file: str = ""
    require_checksum: bool | None = None
    checksums: str = ""
    simulator: str = ""
    simulator_options: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 1
    in_place: bool = False

    @classmethod
    def of(cls, config: Config) -> Self:
        """Read them from a configuration; the simulator's options only where it is used."""
        source = config.source
        return cls(
            concurrency=source.concurrency,
            attempts=source.attempts,
            deadline_s=source.deadline_minutes * 60,
            read_timeout_s=source.read_timeout_s,
            token_file=source.token_file,
            require_checksum=source.require_checksum,
            checksums=source.checksums,
            simulator=source.simulator,
            simulator_options=config.options("simulator") if config.simulates() else {},
            seed=config.seed,
        )

    def copied_bytes(self, entries: Iterable[Entry]) -> int:
        """Add up the known sizes of files that are copied, and not read in place."""
        return sum(
            each.size or 0 for each in entries if not (self.in_place and scheme_of(each.uri) == "file")
        )

    def requires_checksum(self, uri: str) -> bool:
        """Return whether a file is bad whose checksum nobody names, and not known by its size."""
        if self.require_checksum is not None:
            return self.require_checksum
        return scheme_of(uri) not in {"file", SYNTHETIC, *FEDERATIONS}


class Kind(enum.Enum):
    """How files are put into ranges."""

    SIMULATED = enum.auto()  # the simulator names them
    RANGES = enum.auto()  # one directory for each range
    RANGE_LISTS = enum.auto()  # one list of files for each range
    NUMBERS = enum.auto()  # one directory; the name of a file holds its number
    FLAT = enum.auto()  # one directory; files are numbered by their position in natural order
    FLAT_LIST = enum.auto()  # one list of files, numbered by position too


@dataclass(frozen=True, slots=True)
class RangeSource:
    """One directory of the source: ``scheme``, ``host`` (with port), directory, pattern of the file names.

    ``what`` names it in errors; ``remedy`` says what to do when it cannot be listed; ``deep``: with all
    directories below it.
    """

    scheme: str
    host: str
    folder: str
    pattern: str
    what: str
    remedy: str
    deep: bool = False

    def has(self, name: str) -> bool:
        """Return whether a file's name, after its directories below this one, matches the pattern.

        As in a shell, no wildcard stands for a dot at the beginning.
        """
        file = name.rpartition("/")[2]
        is_hidden = file.startswith(".") and not self.pattern.startswith(".")
        return not is_hidden and fnmatch.fnmatchcase(file, self.pattern)


@dataclass(frozen=True)
class SourcePattern:
    """The two keys that say where the raw files are; raise ConfigError when they cannot name any."""

    uri: str
    files: str = ""

    @classmethod
    def of(cls, config: Config) -> Self:
        """Read them from a configuration."""
        return cls(config.source.uri, config.source.files)

    def __post_init__(self) -> None:
        self.kind  # noqa: B018 - checks

    @cached_property
    def kind(self) -> Kind:
        """How files are put into ranges."""
        if self.files:
            return self._kind_of_lists()
        if scheme_of(self.uri) == SYNTHETIC:
            if self.uri != f"{SYNTHETIC}://":
                raise ConfigError(
                    f"source.uri: {self.uri}: write synthetic:// alone; source.simulator names what "
                    "makes the files"
                )
            return Kind.SIMULATED
        placeholders = _placeholders("source.uri", self.uri)
        self._check_folder()
        if not placeholders:
            return Kind.FLAT
        return Kind.RANGES if placeholders == {"range"} else Kind.NUMBERS

    def _kind_of_lists(self) -> Kind:
        if self.uri.startswith(f"{SYNTHETIC}://"):
            raise ConfigError(
                "source.files: a simulator has no files but its own; leave source.files empty, or set "
                "source.uri to something other than synthetic://"
            )
        placeholders = _placeholders("source.files", self.files)
        if placeholders == {"number"}:
            raise ConfigError(
                f"source.files: {self.files}: {{number}} belongs into source.uri; here write {{range}} for "
                "one list per range, or neither for one list"
            )
        return Kind.RANGE_LISTS if placeholders else Kind.FLAT_LIST

    def _check_folder(self) -> None:
        folder, _, name = written_path(self.uri).rpartition("/")
        if self.uri.endswith("/") or not name:
            raise ConfigError(
                f"source.uri: {self.uri} ends in a directory; add a file pattern such as *.parquet"
            )
        above = folder.removesuffix(_BELOW)
        if WILDCARDS & set(above):
            raise ConfigError(
                f"source.uri: {self.uri} has a wildcard outside the file name; list one directory, with all "
                "below it as in data/**/*.parquet, or name the files in source.files"
            )
        if above != folder and _PLACEHOLDER.search(name):
            raise ConfigError(
                f"source.uri: {self.uri} has ** before a name with a placeholder; write {{range}} before the "
                "**, or name the files in source.files"
            )
        if "{number" in folder:
            raise ConfigError(
                f"source.uri: {self.uri} has {{number}} outside the file name; name the files in source.files"
            )
        if "{number" in name and WILDCARDS & set(name):
            raise ConfigError(
                f"source.uri: {self.uri} has a wildcard beside {{number}}, which names one file; write the "
                "whole name, or a wildcard alone to take all files in natural order"
            )

    @property
    def shown(self) -> str:
        """What a person wrote to say where the files are."""
        return self.files or self.uri

    def location(self, name: Range) -> RangeSource:
        """Return the directory and the pattern of one range; of kinds RANGES and NUMBERS."""
        return self._place(self.uri.replace(RANGE, str(name)), f"range {name}", _SKIP)

    def whole(self) -> RangeSource:
        """Return the one directory that holds the files of all ranges, or the directories of the ranges."""
        uri = self.uri if self.kind is Kind.RANGES else _PLACEHOLDER.sub("*", self.uri)
        if self.kind is Kind.RANGES:
            before, _, after = uri.partition(RANGE)
            uri = f"{before}*{after.partition('/')[0].replace(RANGE, '*')}"
        return self._place(uri, "the source", "check source.uri")

    def ranges_are_folders(self) -> bool:
        """Return whether ``{range}`` is in the name of a directory, not of a file."""
        return RANGE in self.uri.rpartition("/")[0]

    def _place(self, uri: str, what: str, remedy: str) -> RangeSource:
        host, path = host_and_path(uri)
        folder, _, pattern = path.rpartition("/")
        above = folder.removesuffix(_BELOW)
        return RangeSource(scheme_of(uri), host, above or "/", pattern, what, remedy, deep=above != folder)

    def list_file(self, name: Range | None) -> Path:
        """Return the list of files of one range, or that of all."""
        return Path(self.files if name is None else self.files.replace(RANGE, str(name)))

    def number_of(self, name: str) -> int | None:
        """Read the number in a file name; None when the name is another one.

        ``batch_{number}.parquet`` is batch_7.parquet, not batch_07.parquet; ``{number:06}`` is 000007.
        """
        match = self._numbered.fullmatch(name)
        if match is None:
            return None
        number = int(match[1])
        return number if self.file_name(number) == name else None

    def file_name(self, number: int) -> str:
        """Return the name of the file with a number."""
        return _PLACEHOLDER.sub(lambda match: f"{number:0{_width(match[1])}d}", self._name)

    @cached_property
    def _name(self) -> str:
        return host_and_path(self.uri)[1].rpartition("/")[2]

    @cached_property
    def _numbered(self) -> re.Pattern[str]:
        parts = [re.escape(part) for part in _PLACEHOLDER.split(self._name)[::2]]
        return re.compile("([0-9]{1,18})".join(parts))

    def range_of(self, name: str) -> Range | None:
        """Read the range in the name of a directory (or of a file); None when the name is another one."""
        path = host_and_path(self.uri)[1]
        named = next(part for part in path.split("/") if RANGE in part)
        for match in PATTERN.finditer(name):
            if int(match[1]) <= int(match[2]) and fnmatch.fnmatchcase(name, named.replace(RANGE, match[0])):
                return Range.parse(match[0])
        return None


def _placeholders(key: str, text: str) -> set[str]:
    """Find the kinds of placeholders; raise ConfigError for an unknown one, or for two kinds."""
    kinds = set()
    for placeholder in _PLACEHOLDER.findall(text):
        if placeholder != "range" and not _NUMBER.fullmatch(placeholder):
            near = difflib.get_close_matches(placeholder, _LEGAL, n=1, cutoff=0.0)[0]
            raise ConfigError(f"{key}: {text}: {{{placeholder}}} is not known; did you mean {{{near}}}?")
        kinds.add("range" if placeholder == "range" else "number")
    if len(kinds) > 1:
        raise ConfigError(f"{key}: {text}: {{range}} and {{number}} exclude each other; write one of them")
    return kinds


def _width(placeholder: str) -> int:
    """Return the digits to which a number is padded: ``number:06`` -> 6, ``number`` -> 1."""
    match = _NUMBER.fullmatch(placeholder)
    assert match is not None
    return int(match[1] or 1)
