"""Whether the token in use may read what the campaign needs; asks the director what that is."""

from __future__ import annotations

import asyncio
import shlex
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from crpipe.source.pelican import tokens
from crpipe.source.pelican.director import Director
from crpipe.source.retries import Transient
from crpipe.source.uris import FEDERATIONS, host_and_path, scheme_of

if TYPE_CHECKING:
    from crpipe.source.pelican.namespaces import Namespace


@dataclass(frozen=True, slots=True)
class TokenJob:
    """What a token is needed for.

    uris: those of the raw files and of the side tables, with placeholders. issuer, client: for a login; an
    empty issuer means the one that the director names. to: where `crpipe sync` writes; empty if nowhere.
    """

    uris: tuple[str, ...]
    token_file: str = ""
    read_timeout_s: float = 60.0
    issuer: str = ""
    client: str = "crpipe"
    to: str = ""

    def written(self) -> str:
        """Give a URI below the place in a federation that `crpipe sync` writes to; empty if it is none."""
        remote = self.to and scheme_of(self.to, "sync.to") in FEDERATIONS
        return f"{self.to.rstrip('/')}/run" if remote else ""

    def remote(self) -> list[str]:
        """The URIs that lead into a federation, one of each directory."""
        found = {uri.rpartition("/")[0]: uri for uri in self.uris if uri and scheme_of(uri) in FEDERATIONS}
        return list(found.values())


@dataclass(frozen=True, slots=True)
class Access:
    """What a person should read, and the problem in one line (empty when there is none).

    answered: whether the federation said what it asks for.
    """

    text: str
    problem: str
    answered: bool = True


def check_access(job: TokenJob, *, write: bool = False) -> Access:
    """Compare the token in use with what the campaign's source needs; never shows the token itself.

    What `crpipe sync` needs is shown too; it is a problem only if ``write`` was asked for. Raise AccessError
    when the file that should hold a token cannot be read.
    """
    reading = _check_reading(job)
    if not job.written():
        return reading
    writing = _check_writing(job)
    problem = reading.problem or (writing.problem if write else "")
    return Access(f"{reading.text}\n{writing.text}", problem, reading.answered)


def _check_reading(job: TokenJob) -> Access:
    remote = job.remote()
    if not remote:
        return Access(f"{job.uris[0]}: no federation, no token needed", "")
    asked = {uri: namespace_of(job, uri) for uri in remote}
    if all(space is not None and not space.guarded for space, _ in asked.values()):
        return Access(f"{remote[0]}: open to everyone, no token needed", "")
    reason = next((why for _, why in asked.values() if why), "")
    needed = [
        tokens.scope_for(uri, space.base_path)
        for uri, (space, _) in asked.items()
        if space is not None and space.guarded
    ]
    token = tokens.find(job.token_file)
    problem = reason or _problem(token, needed)
    lines = [
        *(("source", uri) for uri in remote),
        ("needs", " ".join(dict.fromkeys(needed)) or "unknown"),
        ("token from", token.place if token else "nowhere"),
    ]
    if token:
        lines += [
            ("issuer", str(token.claims.get("iss", "not named in the token"))),
            ("scope", " ".join(token.scopes) or "not named in the token"),
            ("ends", _end(token)),
        ]
        readable = tokens.exposed(token)
        if readable:
            lines.append(("warning", f"other users may read the token: chmod 600 {shlex.quote(readable)}"))
    if not problem:
        lines.append(("verdict", "covers every range of this campaign"))
    return Access(_table(lines), problem, not reason)


def _check_writing(job: TokenJob) -> Access:
    """Compare the token in use with what `crpipe sync` needs."""
    space, problem = namespace_of(job, job.written())
    token = tokens.find(job.token_file)
    needed = [] if space is None else write_scopes(job, space)
    problem = problem or _problem(token, needed)
    hint = "" if space is None else "; `crpipe token --login --write` asks for one that may write"
    lines = [
        ("sync.to", job.to),
        ("needs", " ".join(needed) or "unknown"),
        ("verdict", f"{problem}{hint}" if problem else "covers it"),
    ]
    return Access(_table(lines), f"{problem}{hint}" if problem else "")


def write_scopes(job: TokenJob, space: Namespace) -> list[str]:
    """Name the scopes that `crpipe sync` needs: it writes, and asks what arrived."""
    path = tokens.scope_for(job.written(), space.base_path).partition(":")[2]
    return [f"{tokens.MODIFY}:{path}", f"storage.read:{path}"]


def _table(lines: list[tuple[str, str]]) -> str:
    return "\n".join(f"{name:11s} {value}" for name, value in lines)


def namespace_of(job: TokenJob, uri: str) -> tuple[Namespace | None, str]:
    """Ask the director about a URI; None and the reason when that is not possible."""
    host, path = host_and_path(uri)
    folder = path.partition("{")[0].rpartition("/")[0] or "/"

    async def ask() -> Namespace:
        async with Director(host, connections=1, read_timeout_s=job.read_timeout_s) as federation:
            return await federation.namespace(folder)

    try:
        return asyncio.run(ask()), ""
    except Transient as error:
        return None, f"{error}; try again later"


def _problem(token: tokens.Token | None, needed: list[str]) -> str:
    if token is None:
        return (
            "no token found; put one into source.token_file, BEARER_TOKEN, BEARER_TOKEN_FILE or "
            f"{tokens.default_file()}, for example with `crpipe token --login`"
        )
    if token.left_s <= 0:
        return f"{token.place}: the token has expired; renew it"
    lacking = [scope for scope in dict.fromkeys(needed) if token.claims and not token.covers(scope)]
    if lacking:
        return f"{token.place}: no scope of the token covers {' '.join(lacking)}; ask for one that does"
    return ""


def _end(token: tokens.Token) -> str:
    if token.expires == float("inf"):
        return "not named in the token"
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(token.expires))
    hours = token.left_s / 3600
    return f"{when} ({hours:.1f} h left)" if hours > 0 else f"{when} ({-hours:.1f} h ago)"
