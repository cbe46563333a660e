"""URIs of files: scheme, host and path. ``key`` arguments name the configuration key, for messages."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

from crpipe.core.errors import ConfigError

FEDERATIONS = ("pelican", "osdf")
SYNTHETIC = "synthetic"
WILDCARDS = frozenset("*?[")
_OSDF = "osg-htc.org"


def scheme_of(uri: str, key: str = "source.uri") -> str:
    """Return the scheme of a URI; that of a plain path is ``file``."""
    if not uri:
        raise ConfigError(f"{key}: not set; name where the files are, for example /data/{{range}}/*.parquet")
    scheme = uri.partition("://")[0] if "://" in uri else "file"
    if scheme not in {"file", SYNTHETIC, *FEDERATIONS}:
        raise ConfigError(
            f"{key}: {scheme}:// is not known; use pelican://, osdf://, file://, a path, or synthetic://"
        )
    return scheme


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
    return host, "/" + path
