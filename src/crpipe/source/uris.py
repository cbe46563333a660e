"""URIs of raw files: scheme, host, directory, pattern, and the range filled in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from crpipe.config.loading import SYNTHETIC
from crpipe.core.errors import ConfigError

if TYPE_CHECKING:
    from crpipe.config.loading import Config
    from crpipe.core.ranges import Range


FEDERATIONS = ("pelican", "osdf")


WILDCARDS = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class RangeSource:
    """One range in the source: ``scheme``, ``host`` (with port), directory, and pattern of the file names."""

    scheme: str
    host: str
    folder: str
    pattern: str


def place_of(config: Config, name: Range) -> RangeSource:
    """Fill the range into ``source.uri``; raise ConfigError when the pattern cannot be a range's files."""
    uri = config.source.uri
    scheme = scheme_of(uri)
    if scheme == "synthetic" and uri != SYNTHETIC:
        raise ConfigError(
            f"source.uri: {uri}: write synthetic:// alone; source.simulator names what makes the files"
        )
    if scheme == "synthetic":
        return RangeSource(scheme, "", "", "*")
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
    return RangeSource(scheme, host, folder or "/", pattern)


def scheme_of(uri: str) -> str:
    """Tell the scheme of a source; a plain path is ``file``."""
    if not uri:
        raise ConfigError(
            "source.uri: not set; name where the raw files are, for example /data/{range}/*.parquet"
        )
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
