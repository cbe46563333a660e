"""May this campaign read its source? The token in use, what it allows, and what the campaign needs."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from crpipe.source.pelican import tokens
from crpipe.source.pelican.director import Director
from crpipe.source.retries import Transient
from crpipe.source.uris import FEDERATIONS, place_of

if TYPE_CHECKING:
    from crpipe.config.loading import Config
    from crpipe.source.pelican.director import Namespace


@dataclass(frozen=True, slots=True)
class Access:
    """What a person should read, and the problem in one line (empty when there is none)."""

    text: str
    problem: str


def check_access(config: Config) -> Access:
    """Compare the token in use with what the campaign's source needs; never shows the token itself.

    Raise AccessError when the place that should hold a token cannot be read.
    """
    if place_of(config, config.all_ranges()[0]).scheme not in FEDERATIONS:
        return Access(f"{config.source.uri}: no federation, no token needed", "")
    space, reason = namespace_of(config)
    if space is not None and not space.guarded:
        return Access(f"{config.source.uri}: open to everyone, no token needed", "")
    token = tokens.find(config.source.token_file)
    needed = tokens.scope_for(config.source.uri, space.base_path) if space else ""
    problem = reason or _problem(token, needed)
    lines = [
        ("source", config.source.uri),
        ("needs", needed or "unknown"),
        ("token from", token.place if token else "nowhere"),
    ]
    if token:
        lines += [
            ("issuer", str(token.claims.get("iss", "not told by the token"))),
            ("scope", " ".join(token.scopes) or "not told by the token"),
            ("ends", _end(token)),
        ]
    if not problem:
        lines.append(("verdict", "covers every range of this campaign"))
    return Access("\n".join(f"{name:11s} {value}" for name, value in lines), problem)


def namespace_of(config: Config) -> tuple[Namespace | None, str]:
    """Ask the director about the campaign's source; None and the reason when that is not possible."""
    place = place_of(config, config.all_ranges()[0])
    if place.scheme not in FEDERATIONS:
        return None, "no federation, no token needed"

    async def ask() -> Namespace:
        timeout_s = config.source.read_timeout_s
        async with Director(place.host, connections=1, read_timeout_s=timeout_s) as federation:
            return await federation.namespace(place.folder)

    try:
        return asyncio.run(ask()), ""
    except Transient as error:
        return None, f"{error}; try again later"


def _problem(token: tokens.Token | None, needed: str) -> str:
    if token is None:
        return (
            "no token found; put one into source.token_file, BEARER_TOKEN, BEARER_TOKEN_FILE or "
            f"{tokens.default_file()}, for example with `crpipe token --login`"
        )
    if token.left_s <= 0:
        return f"{token.place}: the token has expired; renew it"
    if token.claims and not token.covers(needed):
        return f"{token.place}: no scope of the token covers {needed}; ask for one that does"
    return ""


def _end(token: tokens.Token) -> str:
    if token.expires == float("inf"):
        return "not told by the token"
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(token.expires))
    hours = token.left_s / 3600
    return f"{when} ({hours:.1f} h left)" if hours > 0 else f"{when} ({-hours:.1f} h ago)"
