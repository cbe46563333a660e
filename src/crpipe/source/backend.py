"""Where raw files come from: one small interface, chosen by the scheme of ``source.uri``."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import unquote, urlsplit

from crpipe.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractAsyncContextManager

    from crpipe.config import Config
    from crpipe.ranges import Range
    from crpipe.source.manifest import Entry, Proof
    from crpipe.source.retries import Deadline

FEDERATIONS = ("pelican", "osdf")
WILDCARDS = frozenset("*?[")


class Source(Protocol):
    """A place that holds raw files."""

    async def entries(self, name: Range, place: Place) -> Sequence[Entry]:
        """List the files of one range directory that match the pattern; raise ListingError."""

    async def describe(self, uris: Sequence[str], paths: Sequence[str]) -> Sequence[Entry]:
        """Look up size and time of named files; raise ListingError for the first that is not there."""

    async def fetch(self, entry: Entry, part: Path) -> Proof:
        """Copy one file to ``part`` and verify it.

        Raise Transient when another try may succeed, TransferError when this file is bad for good, and any
        other CrpipeError when no file can be copied (no access, no space).
        """


@dataclass(frozen=True, slots=True)
class Place:
    """One range in the source: ``scheme``, ``host`` (with port), directory, and pattern of the file names."""

    scheme: str
    host: str
    folder: str
    pattern: str


def place_of(config: Config, name: Range) -> Place:
    """Fill the range into ``source.uri``; raise ConfigError when the pattern cannot be a range's files."""
    uri = config.source.uri
    scheme = scheme_of(uri)
    if scheme == "synthetic":
        return Place(scheme, "", "", "*")
    if "{range}" not in uri:
        raise ConfigError(f"source.uri: {uri} names no {{range}}; write e.g. /data/{{range}}/*.parquet")
    host, path = host_and_path(uri.replace("{range}", str(name)))
    folder, _, pattern = path.rpartition("/")
    if uri.endswith("/") or not pattern:
        raise ConfigError(f"source.uri: {uri} ends in a directory; add a file pattern such as *.parquet")
    if WILDCARDS & set(folder):
        raise ConfigError(
            f"source.uri: {uri} has a wildcard outside the file name; list one directory per range"
        )
    return Place(scheme, host, folder or "/", pattern)


def scheme_of(uri: str) -> str:
    """Tell the scheme of a source; a plain path is ``file``."""
    scheme = uri.partition("://")[0] if "://" in uri else "file"
    if scheme not in {"file", "synthetic", *FEDERATIONS}:
        raise ConfigError(
            f"source.uri: {scheme}:// is not known; use pelican://, osdf://, file://, a path, or synthetic://"
        )
    return scheme


def host_and_path(uri: str) -> tuple[str, str]:
    """Split a URI (or path) into host and path; osdf:// always means the Open Science Data Federation."""
    scheme = scheme_of(uri)
    if "://" not in uri:
        return "", str(Path(uri).absolute())
    rest = uri.partition("://")[2]
    if scheme == "osdf":
        return "osg-htc.org", "/" + rest.lstrip("/")
    host, _, path = rest.partition("/")
    if scheme == "file":
        return "", unquote(urlsplit(uri).path)
    if not host:
        raise ConfigError(f"source.uri: {uri} names no host; write {scheme}://host/path")
    return host, "/" + path


def explicit_files(config: Config, name: Range) -> list[str] | None:
    """Read the range's list of files named by ``source.files``; None when listings are used instead."""
    template = config.source.files
    if not template:
        return None
    if "{range}" not in template:
        raise ConfigError(f"source.files: {template} names no {{range}}; keep one list per range")
    path = Path(template.replace("{range}", str(name)))
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise ConfigError(f"source.files: {path} cannot be read ({error.strerror})") from error
    found = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    return [uri if "://" in uri else str(path.parent.absolute() / uri) for uri in found]


def open_source(
    config: Config, scheme: str, host: str, deadline: Deadline
) -> AbstractAsyncContextManager[Source]:
    """Open the backend of a scheme; nothing is connected before the first call."""
    # Each backend brings its own libraries; a local campaign does not pay 0.5 s for those of a federation.
    if scheme in FEDERATIONS:
        from crpipe.source.remote import RemoteSource  # noqa: PLC0415

        return RemoteSource(config.source, host, deadline)
    if scheme == "synthetic":
        from crpipe.source.generated import GeneratedSource  # noqa: PLC0415

        return contextlib.nullcontext(GeneratedSource(config))
    from crpipe.source.local import LocalSource  # noqa: PLC0415

    return contextlib.nullcontext(LocalSource())
