"""The servers of one namespace: read from the headers of a director's answer, and avoided while they fail."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from crpipe.core.errors import SourceError
from crpipe.source.retries import Transient

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

BENCH_S = 30.0  # how long a server that failed is not used
_LINK = re.compile(r"<([^<>]*)>([^<>]*)")
_RANK = re.compile(r";\s*pri\s*=\s*\"?(\d{1,6})")
_LAST = 1 << 20  # rank of a server without one


@dataclass
class Namespace:
    """One namespace: its data servers in the director's order, its origin last, and its token's base path.

    collections: the server that lists directories; empty when the director names none.
    """

    prefix: str
    servers: list[str]
    origin: str
    guarded: bool
    base_path: str
    issuer: str
    collections: str = ""
    asked: float = field(default_factory=time.monotonic)
    _benched: dict[str, float] = field(default_factory=dict)

    def best(self, without: Container[str] = ()) -> str:
        """The first server without a recent failure; when all failed, the one that failed first.

        Servers in ``without`` do not have the file; raise LookupError when no other is left.
        """
        now = time.monotonic()
        having = [server for server in self.servers if server not in without]
        free = [server for server in having if self._benched.get(server, 0.0) <= now]
        if not having:
            raise LookupError(self.prefix)
        return free[0] if free else min(having, key=lambda server: self._benched[server])

    def bench(self, server: str, pause_s: float = BENCH_S) -> bool:
        """Do not use a server for a while; tell whether another one is left."""
        now = time.monotonic()
        self._benched[server] = max(self._benched.get(server, 0.0), now + pause_s)
        return any(self._benched.get(other, 0.0) <= now for other in self.servers)


def read_namespace(headers: Mapping[str, str], links: list[str], path: str) -> Namespace:
    """Read who serves ``path``; ``links`` are the values of all Link headers.

    Raise Transient when the answer names no server, SourceError when a token would have to go to a server
    without TLS.
    """
    about = _pairs(headers.get("X-Pelican-Namespace", ""))
    rules = _pairs(headers.get("X-Pelican-Token-Generation", ""))
    prefix = about.get("namespace", "").rstrip("/")
    guarded = about.get("require-token", "").lower() == "true"
    named = [root for url in _ranked(links) if (root := root_of(url))]
    collections = root_of(about.get("collections-url", ""))
    if not named or not about.get("namespace", "").startswith("/"):
        raise Transient(f"the director names no server for {path}", outage=True)
    servers = [*named, *([collections] if collections else [])]
    if guarded:
        servers = [server for server in servers if server.startswith("https:")]
        if not servers or (collections and collections not in servers):
            raise SourceError(
                f"{path}: needs a token, and the director names {collections or named[0]}, which is not "
                "https; the token is not sent; report it to the site"
            )
    return Namespace(
        prefix=prefix,
        servers=list(dict.fromkeys(servers)),
        origin=servers[-1],
        guarded=guarded,
        base_path=rules.get("base-path") or prefix,
        issuer=rules.get("issuer", ""),
        collections=collections,
    )


def root_of(url: str) -> str:
    """Scheme, host and port of an address; empty when it is none."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        return ""
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}" if usable else ""


def _ranked(links: list[str]) -> list[str]:
    """Name the addresses of Link headers in the order of their priority."""
    found = [(url, _RANK.search(rest)) for line in links for url, rest in _LINK.findall(line)]
    ranked = sorted(found, key=lambda one: int(one[1][1]) if one[1] else _LAST)
    return [url for url, _ in ranked]


def _pairs(header: str) -> dict[str, str]:
    return dict(part.strip().partition("=")[::2] for part in header.split(","))
