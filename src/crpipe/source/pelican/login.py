"""Get a token from its issuer in the browser (device flow); later calls renew it without one.

The device flow is that of wipac-rest-tools (optional extra ``icecube``); never called from inside a job.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import time
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import aiohttp

from crpipe.core.causes import is_present
from crpipe.core.errors import AccessError, ConfigError
from crpipe.core.files import digest, write_secret
from crpipe.source.pelican import tokens
from crpipe.source.pelican.director import Director, Namespace, cause
from crpipe.source.range_files import read_list
from crpipe.source.retries import TemporaryFailure, redact
from crpipe.source.uris import FEDERATIONS, WEB, Kind, SourcePattern, host_and_path, scheme_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from crpipe.config.loading import Config
    from crpipe.core.text import Progress

# Whether the token in use may read what the campaign needs; asks the director what that is.


def source_uris(config: Config) -> tuple[str, ...]:
    """Name what a token may be needed for: the raw files and the side tables, with placeholders."""
    source, pattern = config.source, SourcePattern.of(config)
    uris = [source.uri]
    if pattern.kind in {Kind.FLAT_LIST, Kind.RANGE_LISTS}:
        first = config.all_ranges()[0] if pattern.kind is Kind.RANGE_LISTS else None
        uris = read_list(pattern.list_file(first))
    return (*uris, *source.tables.values())


def _in_federations(uris: Iterable[str]) -> list[str]:
    """Choose the URIs that lead into a federation, one of each directory."""
    remote = {uri.rpartition("/")[0]: uri for uri in uris if uri and scheme_of(uri) in FEDERATIONS}
    return list(remote.values())


def _written_uri(config: Config) -> str:
    """Name a place in the federation that `crpipe sync` writes to; empty where it writes to none."""
    to = config.sync.to
    remote = to and scheme_of(to, "sync.to") in FEDERATIONS
    return f"{to.rstrip('/')}/run" if remote else ""


@dataclass(frozen=True, slots=True)
class Access:
    """What a person should read, and the problem in one line (empty when there is none).

    answered: whether the federation said what it asks for.
    """

    text: str
    problem: str
    answered: bool = True


def check_access(config: Config, *, write: bool = False) -> Access:
    """Compare the token in use with what the campaign's source needs; never shows the token itself.

    What `crpipe sync` needs is shown too; it is a problem only if ``write`` was asked for. Raise AccessError
    when the file that should hold a token cannot be read.
    """
    reading = check_reading(config, config.source.read_timeout_s)
    written = _written_uri(config)
    if not written:
        return reading
    writing = _check_writing(config, written)
    problem = reading.problem or (writing.problem if write else "")
    return Access(f"{reading.text}\n{writing.text}", problem, reading.answered)


def check_reading(config: Config, read_timeout_s: float) -> Access:
    """Compare the token in use with what raw files and side tables need; raise as ``check_access``."""
    uris = source_uris(config)
    remote = _in_federations(uris)
    if not remote:
        host = any(uri and scheme_of(uri) in WEB for uri in uris)
        tells = "its server asks for a token where it needs one" if host else "no token needed"
        return Access(f"{uris[0]}: no federation, {tells}", "")
    asked = {uri: namespace_of(uri, read_timeout_s) for uri in remote}
    if all(space is not None and not space.guarded for space, _ in asked.values()):
        return Access(f"{remote[0]}: open to everyone, no token needed", "")
    reason = next((why for _, why in asked.values() if why), "")
    needed = [
        tokens.scope_for(uri, space.base_path)
        for uri, (space, _) in asked.items()
        if space is not None and space.guarded
    ]
    token = tokens.find(config.source.token_file)
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
        readable = tokens.readable_by_others(token)
        if readable:
            lines.append(("warning", f"other users may read the token: chmod 600 {shlex.quote(readable)}"))
    if not problem:
        lines.append(("verdict", "covers every range of this campaign"))
    return Access(_table(lines), problem, not reason)


def _check_writing(config: Config, written: str) -> Access:
    """Compare the token in use with what `crpipe sync` needs."""
    space, problem = namespace_of(written, config.source.read_timeout_s)
    token = tokens.find(config.source.token_file)
    needed = [] if space is None else write_scopes(written, space)
    problem = problem or _problem(token, needed)
    hint = "" if space is None else "; `crpipe token --login --write` asks for one that may write"
    lines = [
        ("sync.to", config.sync.to),
        ("needs", " ".join(needed) or "unknown"),
        ("verdict", f"{problem}{hint}" if problem else "covers it"),
    ]
    return Access(_table(lines), f"{problem}{hint}" if problem else "")


def write_scopes(written: str, space: Namespace) -> list[str]:
    """Name the scopes that `crpipe sync` needs: it writes, and asks what arrived."""
    path = tokens.scope_for(written, space.base_path).partition(":")[2]
    return [f"{tokens.MODIFY}:{path}", f"storage.read:{path}"]


def _table(lines: list[tuple[str, str]]) -> str:
    return "\n".join(f"{name:11s} {value}" for name, value in lines)


def namespace_of(uri: str, read_timeout_s: float) -> tuple[Namespace | None, str]:
    """Ask the director about a URI; None and the reason when that is not possible."""
    host, path = host_and_path(uri)
    folder = path.partition("{")[0].rpartition("/")[0] or "/"

    async def ask() -> Namespace:
        async with Director(host, connections=1, read_timeout_s=read_timeout_s) as federation:
            return await federation.namespace(folder)

    try:
        return asyncio.run(ask()), ""
    except TemporaryFailure as error:
        return None, f"{error}; try again later"


def _problem(token: tokens.Token | None, needed: list[str]) -> str:
    if token is None:
        return tokens.none_found()
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


def log_in(config: Config, progress: Progress, *, write: bool = False) -> None:
    """Get a fresh token for the first remote source, and write it where `crpipe stage` finds it.

    write: one that may also write to ``sync.to``. The refresh token is kept beside the user's configuration,
    readable by the user alone; that of a token that may write has a file of its own. Raise AccessError if
    the issuer gives none, ConfigError if wipac-rest-tools is missing, or there is nothing to write to.
    """
    source, uris, written = config.source, source_uris(config), _written_uri(config)
    remote = _in_federations(uris)
    if write and not written:
        raise ConfigError(
            f"--write: sync.to is {config.sync.to or 'empty'}, no federation; set it to pelican://host/path, "
            "or leave --write out"
        )
    asked = [*remote, *([written] if write else [])]
    if not asked:
        raise AccessError(f"{uris[0]}: no federation, no token needed")
    space, problem = namespace_of(asked[0], source.read_timeout_s)
    if space is None:
        raise AccessError(f"{asked[0]}: {problem}")
    issuer = source.token_issuer or space.issuer
    scopes = [tokens.scope_for(uri, space.base_path) for uri in remote]
    scopes += _write_scopes(config, issuer) if write else []
    scope = " ".join(dict.fromkeys(scopes))
    endpoints = _endpoints(issuer)
    kept = _refresh_file(issuer, "write" if write else "")
    granted = _renewed(endpoints, source.token_client, kept)
    if granted is None:
        write_secret(kept, _from_browser(endpoints, source.token_client, scope).encode())
        granted = _renewed(endpoints, source.token_client, kept)
    if granted is None:
        raise AccessError(f"{issuer}: refuses the token that it just gave; check source.token_client")
    target = Path(source.token_file) if source.token_file else tokens.default_file()
    write_secret(target, granted.encode())
    progress.message(f"{target}: new token from {issuer} for {scope}")


def _write_scopes(config: Config, issuer: str) -> list[str]:
    """Name the scopes for ``sync.to``; raise AccessError when another issuer gives its tokens."""
    to, written = config.sync.to, _written_uri(config)
    space, problem = namespace_of(written, config.source.read_timeout_s)
    if space is None:
        raise AccessError(f"{to}: {problem}")
    if not config.source.token_issuer and space.issuer != issuer:
        raise AccessError(
            f"{to}: its tokens are issued by {space.issuer}, those of the source by {issuer}; one token "
            "cannot serve both: sync with a configuration of its own (source.token_file, source.token_issuer)"
        )
    return write_scopes(written, space)


def _endpoints(issuer: str) -> dict[str, str]:
    """Ask an issuer for its addresses; raise AccessError unless they are https, and on its own host."""
    endpoints = asyncio.run(_ask(issuer, f"{issuer.rstrip('/')}/.well-known/openid-configuration"))
    address = urlsplit(issuer)
    for name in ("token_endpoint", "device_authorization_endpoint"):
        if name == "device_authorization_endpoint" and name not in endpoints:
            continue  # renews only
        there = urlsplit(endpoints.get(name, ""))
        if address.scheme != "https" or (there.scheme, there.netloc) != (address.scheme, address.netloc):
            raise AccessError(
                f"{issuer}: names {endpoints.get(name)!r} as its {name}, which is not an https address of "
                "the issuer itself; nothing is sent there; check source.token_issuer"
            )
    return endpoints


def _from_browser(endpoints: dict[str, str], client: str, scope: str) -> str:
    """Wait until a person approves in a browser; return a refresh token."""
    try:
        library: Any = import_module("rest_tools.client.device_client")
    except ImportError as error:
        raise ConfigError(
            "crpipe token --login: wipac-rest-tools is missing; pip install 'crpipe[icecube]'"
        ) from error
    # The library uses requests, which has a variable of its own for a private authority.
    if "SSL_CERT_FILE" in os.environ:
        os.environ["REQUESTS_CA_BUNDLE"] = os.environ["SSL_CERT_FILE"]
    try:
        return str(
            library.CommonDeviceGrant().perform_device_grant(
                logging.getLogger(__name__),
                endpoints["device_authorization_endpoint"],
                endpoints["token_endpoint"],
                client,
                scopes=scope.split(),
            )
        )
    except (RuntimeError, KeyError) as error:
        raise AccessError(
            f"{endpoints.get('issuer')}: no token was given ({redact(str(error))}); check source.token_client"
        ) from error


def _renewed(endpoints: dict[str, str], client: str, kept: Path) -> str | None:
    """Turn the kept refresh token into an access token; None when there is none or it is refused."""
    if not is_present(kept):
        return None
    form = {"grant_type": "refresh_token", "refresh_token": kept.read_text(), "client_id": client}
    answer = asyncio.run(_ask(endpoints.get("issuer", ""), endpoints["token_endpoint"], form))
    if "access_token" not in answer:
        return None
    if "refresh_token" in answer:
        write_secret(kept, answer["refresh_token"].encode())
    return answer["access_token"]


async def _ask(issuer: str, url: str, form: dict[str, str] | None = None) -> dict[str, str]:
    """Ask the issuer; a refusal (status 4xx) of a form is an answer without a token."""
    try:
        async with (
            Director("", connections=1, read_timeout_s=60.0) as federation,
            federation.session.request(
                "POST" if form else "GET",
                url,
                data=form,
                raise_for_status=form is None,
                allow_redirects=form is None,  # what is sent is a secret
            ) as answer,
        ):
            reply: Any = await answer.json(content_type=None)
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        raise AccessError(
            f"{issuer}: the token issuer does not answer ({cause(error)}); try again"
        ) from error
    if not isinstance(reply, dict):
        raise AccessError(f"{issuer}: the token issuer's answer cannot be understood; try again")
    return {str(name): str(value) for name, value in reply.items()}


def _refresh_file(issuer: str, kind: str = "") -> Path:
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    readable = "".join(c if c.isalnum() else "-" for c in issuer)
    name = "-".join(filter(None, ("refresh", kind, readable, digest(issuer))))
    return home / "crpipe" / name  # a.b and a-b are two issuers
