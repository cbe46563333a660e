"""A small director: discovery, redirects with the headers of Pelican's own director, and the issuer's keys.

Run as ``python -m loopback.director FOLDER``.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
import uuid
from pathlib import Path

from aiohttp import web

from loopback.credentials import sign_token
from loopback.topology import OPEN, PROTECTED, Topology

TOKEN_S = 3600
_ORIGIN = "/api/v1.0/director/origin"


class LoopbackDirector:
    """Answers for the federation in ``folder``; its topology is read again for every request."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._scopes: dict[str, str] = {}  # of device codes and refresh tokens

    def app(self) -> web.Application:
        """Routes of the director and of the issuer."""
        app = web.Application()
        app.router.add_get("/.well-known/pelican-configuration", self.discovery)
        app.router.add_get("/issuer/.well-known/openid-configuration", self.openid)
        app.router.add_get("/issuer/jwks.json", self.keys)
        app.router.add_post("/issuer/device", self.device)
        app.router.add_post("/issuer/token", self.token)
        app.router.add_route("*", "/{path:.*}", self.redirect)
        return app

    async def discovery(self, _: web.Request) -> web.Response:
        """Return the address of the director."""
        here = Topology.load(self._folder)
        return web.json_response(
            {"director_endpoint": here.director, "jwks_uri": f"{here.issuer}/jwks.json"},
        )

    async def openid(self, _: web.Request) -> web.Response:
        """Return the address of the issuer's keys."""
        issuer = Topology.load(self._folder).issuer
        return web.json_response(
            {
                "issuer": issuer,
                "jwks_uri": f"{issuer}/jwks.json",
                "token_endpoint": f"{issuer}/token",
                "device_authorization_endpoint": f"{issuer}/device",
            }
        )

    async def keys(self, _: web.Request) -> web.Response:
        """Return the issuer's public keys."""
        return web.json_response(json.loads((self._folder / "keys" / "jwks.json").read_text()))

    async def device(self, request: web.Request) -> web.Response:
        """Start a device flow; here it is approved at once."""
        issuer = Topology.load(self._folder).issuer
        code = str(uuid.uuid4())
        self._scopes[code] = str((await request.post()).get("scope", ""))
        return web.json_response(
            {"device_code": code, "user_code": "LOOP-BACK", "verification_uri": issuer, "interval": 0}
        )

    async def token(self, request: web.Request) -> web.Response:
        """End a device flow, or renew its token; a refresh token can be used once."""
        form = await request.post()
        scope = self._scopes.pop(str(form.get("device_code") or form.get("refresh_token")), None)
        if scope is None:
            return web.json_response({"error": "invalid_grant"}, status=400)
        refresh = str(uuid.uuid4())
        self._scopes[refresh] = scope
        granted = " ".join(one for one in scope.split() if one.startswith("storage."))
        key = (self._folder / "keys" / "issuer.pem").read_text()
        issuer = Topology.load(self._folder).issuer
        access = sign_token(key, issuer, granted, TOKEN_S)
        return web.json_response({"access_token": access, "refresh_token": refresh, "expires_in": TOKEN_S})

    async def redirect(self, request: web.Request) -> web.Response:
        """Send everyone to the origin."""
        here = Topology.load(self._folder)
        path = request.path.removeprefix(_ORIGIN)
        namespace = next((name for name in (PROTECTED, OPEN) if f"{path}/".startswith(f"{name}/")), None)
        if namespace is None:
            return web.json_response({"status": "error", "msg": f"no sources for {path}"}, status=404)
        guarded = namespace == PROTECTED
        headers = {
            "Location": here.origin + path,
            "Link": f'<{here.origin}{path}>; rel="duplicate"; pri=1',
            "X-Pelican-Namespace": f"namespace={namespace}, require-token={str(guarded).lower()}, "
            f"collections-url={here.origin}",
            "X-Pelican-JobId": str(uuid.uuid4()),
        }
        if guarded:
            headers["X-Pelican-Authorization"] = f"issuer={here.issuer}"
            headers["X-Pelican-Token-Generation"] = (
                f"issuer={here.issuer}, max-scope-depth=3, strategy=OAuth2, base-path={PROTECTED}"
            )
        return web.Response(status=307, headers=headers)


async def serve(folder: Path) -> None:
    """Serve until the process is stopped."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "keys" / "host.pem", folder / "keys" / "host.key")
    runner = web.AppRunner(LoopbackDirector(folder).app(), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", Topology.load(folder).port, ssl_context=context).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
