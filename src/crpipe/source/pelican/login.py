"""Get a token from its issuer in the browser (device flow); later calls renew it without one.

The device flow is that of wipac-rest-tools (optional extra ``icecube``); never called from inside a job.
"""

from __future__ import annotations

import asyncio
import logging
import os
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import aiohttp

from crpipe.core.causes import is_present
from crpipe.core.errors import AccessError, ConfigError
from crpipe.core.files import digest, write_secret
from crpipe.source.pelican import tokens
from crpipe.source.pelican.director import Director, cause
from crpipe.source.pelican.token_check import TokenJob, namespace_of, write_scopes
from crpipe.source.retries import redact

if TYPE_CHECKING:
    from crpipe.core.progress import Progress


def log_in(job: TokenJob, progress: Progress, *, write: bool = False) -> None:
    """Get a fresh token for the first remote source, and write it where `crpipe stage` finds it.

    write: one that may also write to ``sync.to``. The refresh token is kept beside the user's configuration,
    readable by the user alone; that of a token that may write has a file of its own. Raise AccessError if
    the issuer gives none, ConfigError if wipac-rest-tools is missing, or there is nothing to write to.
    """
    remote = job.remote()
    if write and not job.written():
        raise ConfigError(
            f"--write: sync.to is {job.to or 'empty'}, no federation; set it to pelican://host/path, or "
            "leave --write out"
        )
    asked = [*remote, *([job.written()] if write else [])]
    if not asked:
        raise AccessError(f"{job.uris[0]}: no federation, no token needed")
    space, problem = namespace_of(job, asked[0])
    if space is None:
        raise AccessError(f"{asked[0]}: {problem}")
    issuer = job.issuer or space.issuer
    scopes = [tokens.scope_for(uri, space.base_path) for uri in remote]
    scopes += _write_scopes(job, issuer) if write else []
    scope = " ".join(dict.fromkeys(scopes))
    endpoints = _endpoints(issuer)
    kept = _refresh_file(issuer, "write" if write else "")
    granted = _renewed(endpoints, job.client, kept)
    if granted is None:
        write_secret(kept, _from_browser(endpoints, job.client, scope).encode())
        granted = _renewed(endpoints, job.client, kept)
    if granted is None:
        raise AccessError(f"{issuer}: refuses the token that it just gave; check source.token_client")
    target = Path(job.token_file) if job.token_file else tokens.default_file()
    write_secret(target, granted.encode())
    progress.say(f"{target}: new token from {issuer} for {scope}")


def _write_scopes(job: TokenJob, issuer: str) -> list[str]:
    """Name the scopes for ``sync.to``; raise AccessError when another issuer gives its tokens."""
    space, problem = namespace_of(job, job.written())
    if space is None:
        raise AccessError(f"{job.to}: {problem}")
    if not job.issuer and space.issuer != issuer:
        raise AccessError(
            f"{job.to}: its tokens are issued by {space.issuer}, those of the source by {issuer}; one token "
            "cannot serve both: sync with a configuration of its own (source.token_file, source.token_issuer)"
        )
    return write_scopes(job, space)


def _endpoints(issuer: str) -> dict[str, str]:
    """Ask an issuer for its addresses; raise AccessError unless they are https, and on its own host."""
    found = asyncio.run(_ask(issuer, f"{issuer.rstrip('/')}/.well-known/openid-configuration"))
    own = urlsplit(issuer)
    for name in ("token_endpoint", "device_authorization_endpoint"):
        if name == "device_authorization_endpoint" and name not in found:
            continue  # renews only
        there = urlsplit(found.get(name, ""))
        if own.scheme != "https" or (there.scheme, there.netloc) != (own.scheme, own.netloc):
            raise AccessError(
                f"{issuer}: names {found.get(name)!r} as its {name}, which is not an https address of the "
                "issuer itself; nothing is sent there; check source.token_issuer"
            )
    return found


def _from_browser(endpoints: dict[str, str], client: str, scope: str) -> str:
    """Let a person approve in a browser; return a refresh token."""
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
            found: Any = await answer.json(content_type=None)
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        raise AccessError(
            f"{issuer}: the token issuer does not answer ({cause(error)}); try again"
        ) from error
    if not isinstance(found, dict):
        raise AccessError(f"{issuer}: the token issuer's answer cannot be understood; try again")
    return {str(name): str(value) for name, value in found.items()}


def _refresh_file(issuer: str, kind: str = "") -> Path:
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    readable = "".join(c if c.isalnum() else "-" for c in issuer)
    name = "-".join(filter(None, ("refresh", kind, readable, digest(issuer))))
    return home / "crpipe" / name  # a.b and a-b are two issuers
