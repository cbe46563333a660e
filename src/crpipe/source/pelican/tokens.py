"""Bearer tokens: where they are found, what they allow, when they end.

Found in this order (WLCG bearer token discovery): source.token_file, BEARER_TOKEN, BEARER_TOKEN_FILE,
$XDG_RUNTIME_DIR/bt_u<uid>, /tmp/bt_u<uid>.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
import shlex
import stat
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from crpipe.core.errors import AccessError
from crpipe.core.ranges import PATTERN
from crpipe.source.uris import FEDERATIONS, host_and_path, scheme_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

MARGIN_S = 60.0  # a token this close to its end is looked up again: it may end on its way to the server
_FOREVER = 1e11  # seconds since the epoch: the year 5138; clocks cannot show much later ones
MODIFY = "storage.modify"
_ANY = {"ANY", "https://wlcg.cern.ch/jwt/v1/any"}  # audiences of tokens for every server
_READ = ("storage.read", "storage.stage", "read")


@dataclass(frozen=True, slots=True)
class Token:
    """One bearer token: its text, the place it was found in, and its claims (empty if it is not a JWT)."""

    text: str = field(repr=False)
    place: str
    claims: dict[str, Any]
    file: Path | None = None

    @classmethod
    def parse(cls, text: str, source: str, file: Path | None = None) -> Token:
        """Read a token's text, bare or as the ``access_token`` of a JSON object."""
        bare = text.strip()
        if bare.startswith("{"):
            try:
                bare = str(json.loads(bare)["access_token"])
            except (ValueError, KeyError, TypeError) as error:
                raise AccessError(f"{source}: holds JSON without access_token; renew the token") from error
        if not bare:
            raise AccessError(f"{source}: holds an empty token; renew it")
        if not re.fullmatch("[!-~]+", bare):
            raise AccessError(
                f"{source}: holds more than a token, or none (white space, or letters beyond ASCII, inside); "
                "write the token alone into it"
            )
        return cls(bare, source, _claims(bare), file)

    @property
    def expires(self) -> float:
        """Seconds since the epoch; infinite when the token names no end."""
        end = self.claims.get("exp")
        if isinstance(end, int | float) and end < _FOREVER:
            return max(0.0, float(end))
        return float("inf")

    @property
    def left_s(self) -> float:
        """Seconds until the token ends; negative once it has."""
        return self.expires - time.time()

    @property
    def scopes(self) -> list[str]:
        """What the token allows."""
        return " ".join(self._texts("scope")).split()

    def _texts(self, claim: str) -> list[str]:
        """Read a claim that is one text, or a list of them."""
        named = self.claims.get(claim) or []
        return [str(one) for one in (named if isinstance(named, list) else [named])]

    def lacks(self, needed: str, issuer: str) -> str:
        """Describe why the token cannot be accepted, as far as its claims show it; empty: nothing is seen."""
        named = self.claims.get("iss", "")
        if self.claims and not self.covers(needed):
            return f"the token's scope is {' '.join(self.scopes) or 'empty'}, needed is {needed}"
        if issuer and named and str(named).rstrip("/") != issuer.rstrip("/"):
            return f"the token is from {named}, needed is one from {issuer}"
        return ""

    def is_for(self, host: str) -> bool:
        """Return whether a server of this name is among those that the token is for; most name no server."""
        audience = self._texts("aud")
        return not audience or any(
            one in _ANY or (urlsplit(one).hostname or one.partition(":")[0]) == host for one in audience
        )

    def covers(self, needed: str) -> bool:
        """Return whether a scope of the token allows what ``needed`` names, below its path."""
        action, _, path = needed.partition(":")
        actions = (MODIFY, "write") if action == MODIFY else _READ
        return any(_covers(scope, path, actions) for scope in self.scopes)


class Tokens:
    """The current token; looked up again when it is near its end or refused."""

    def __init__(self, token_file: str, say: Callable[[str], object] = str) -> None:
        self._token_file = token_file
        self._say = say
        self._token: Token | None = None

    def current(self) -> Token:
        """Return a token that has not ended; raise AccessError when there is none."""
        if self._token is None or self._token.left_s < MARGIN_S:
            self._token = self._found()
        if self._token is None:
            raise AccessError(none_found())
        if self._token.left_s <= 0:
            ago = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self._token.expires))
            raise AccessError(f"{self._token.place}: the token expired on {ago}; renew it")
        return self._token

    def reload(self, refused: Token) -> bool:
        """Read the token again after ``refused`` was; return whether there is another one now.

        Raise TemporaryFailure when its place cannot be read just now, though the token has not ended.
        """
        try:
            self._token = find(self._token_file)
        except AccessError as error:
            if refused.left_s <= 0:
                raise
            # `status` asks for a token, too, and does not pay for asyncio.
            from crpipe.source.retries import TemporaryFailure  # noqa: PLC0415

            raise TemporaryFailure(f"the token was refused; {error}") from error
        return self._token is not None and self._token.text != refused.text

    def _found(self) -> Token | None:
        """Find the token; while the one in use is valid, a file that is just being replaced is none."""
        old = self._token if self._token and self._token.left_s > 0 else None
        try:
            new = find(self._token_file)
        except AccessError:
            if old is None:
                raise
            return old
        if new and (file := readable_by_others(new)):
            self._say(f"warning: other users may read the token: chmod 600 {shlex.quote(file)}")
        return old if old and (new is None or _is_cut(new.text, old.text)) else new


def find(token_file: str) -> Token | None:
    """Find the token of this user; None when there is none in any place."""
    if token_file:
        return _from_file(Path(token_file), "source.token_file")
    if os.environ.get("BEARER_TOKEN"):
        return Token.parse(os.environ["BEARER_TOKEN"], "BEARER_TOKEN")
    if os.environ.get("BEARER_TOKEN_FILE"):
        return _from_file(Path(os.environ["BEARER_TOKEN_FILE"]), "BEARER_TOKEN_FILE")
    for path in (_runtime_file(), _temporary_file()):
        if _is_own(path):
            return _from_file(path, "the WLCG place")
    return None


def find_for(uris: Iterable[str], token_file: str) -> Token | None:
    """Find the token for a job that reads ``uris``; None when none of them needs one or there is none."""
    if not any(uri and scheme_of(uri) in FEDERATIONS for uri in uris):
        return None
    return find(token_file)


def none_found() -> str:
    """Return the message that names where a token may be put."""
    return (
        "no token found; put one into source.token_file, BEARER_TOKEN, BEARER_TOKEN_FILE or "
        f"{default_file()}, for example with `crpipe token --login`"
    )


def default_file() -> Path:
    """Return where a new token is put so that `find` and other tools see it."""
    return _runtime_file()


def scope_for(uri: str, base_path: str) -> str:
    """Name the scope that reads every range of ``uri``, e.g. ``storage.read:/data/sim``.

    Scopes are relative to the issuer's ``base_path`` and stop at the first part that differs between ranges:
    one token then serves the whole campaign.
    """
    path = host_and_path(uri)[1]
    parts = [part for part in path.split("/") if part]
    base = [part for part in base_path.split("/") if part]
    if parts[: len(base)] == base:
        parts = parts[len(base) :]
    kept = []
    for part in parts[:-1]:
        if set(part) & set("*?[{") or PATTERN.search(part):
            break
        kept.append(part)
    return "storage.read:/" + "/".join(kept)


def _is_own(path: Path) -> bool:
    """Return whether this user put the file there: anybody may write into /tmp.

    A link of another user could lead to any secret of this one, which would be sent as a token.
    """
    try:
        link, file = path.lstat(), path.stat()
    except OSError:
        return False
    is_own = link.st_uid == file.st_uid == os.getuid()
    return is_own and stat.S_ISREG(file.st_mode) and file.st_nlink == 1


def _from_file(path: Path, what: str) -> Token:
    try:
        return Token.parse(path.read_text(), f"{what} ({path})", path)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise AccessError(f"{what}: {path} cannot be read ({reason}); name an existing file") from error


def _runtime_file() -> Path:
    folder = os.environ.get("XDG_RUNTIME_DIR")
    return Path(folder) / f"bt_u{os.getuid()}" if folder else _temporary_file()


def _temporary_file() -> Path:
    return Path("/tmp") / f"bt_u{os.getuid()}"  # noqa: S108 - named by WLCG's discovery order


def _claims(text: str) -> dict[str, Any]:
    parts = text.split(".")
    if len(parts) != 3:  # noqa: PLR2004 - header, claims, signature
        return {}
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (binascii.Error, ValueError):
        return {}
    return claims if isinstance(claims, dict) else {}


def _is_cut(new: str, old: str) -> bool:
    """Return whether ``new`` is the first part of a token like ``old``: its file is just being written."""
    parts, before = new.split("."), old.split(".")
    if len(before) != 3:  # noqa: PLR2004 - header, claims, signature
        return False
    return len(parts) < len(before) or (parts[0] == before[0] and len(parts[2]) < len(before[2]))


def readable_by_others(token: Token) -> str:
    """Name the file of a token that other users of this machine may read; empty when there is none."""
    if token.file is None:
        return ""
    try:
        mode = token.file.stat().st_mode
    except OSError:
        return ""
    return str(token.file) if mode & (stat.S_IRGRP | stat.S_IROTH) else ""


def _covers(scope: str, path: str, actions: tuple[str, ...]) -> bool:
    action, _, allowed = scope.partition(":")
    return action in actions and (path.rstrip("/") + "/").startswith(allowed.rstrip("/") + "/")
