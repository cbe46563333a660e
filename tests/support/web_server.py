"""A plain web server on loopback: files with sizes, times and ETags, ranges if asked, and no listings."""

import asyncio
import threading
import time

from aiohttp import web


class WebServer:
    """Serves a folder; ``seen`` has what was asked, and ``faults`` what goes wrong with the next bodies.

    ranges: whether parts of a file can be asked for; "first": every part begins at the first byte. token:
    what a client must show. other: the answer to methods beside GET and HEAD.
    present: files were last written when they are asked for. busy: how many
    requests are answered with 429 first. heads: whether HEAD is answered.
    """

    def __init__(self, folder, *, ranges=True, token="", other=405, present=False):
        self.folder, self.ranges, self.token, self.present = folder, ranges, token, present
        self.other = other
        self.seen, self.faults, self.busy, self.heads = [], [], 0, True

    def __enter__(self):
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(ready)))
        self._thread.start()
        assert ready.wait(10)
        return self

    def __exit__(self, *_):
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    @property
    def url(self):
        return f"http://localhost:{self.port}"

    async def _serve(self, ready):
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0)
        await runner.setup()
        site = web.TCPSite(runner, "localhost", 0)
        await site.start()
        self.port = runner.addresses[0][1]
        ready.set()
        await self._stop.wait()
        await runner.cleanup()

    async def _answer(self, request):
        self.seen.append((request.method, request.path, request.headers.get("Range", "")))
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            return web.Response(status=401)
        if self.busy:
            self.busy -= 1
            return web.Response(status=429, headers={"Retry-After": "2"})
        if request.method not in {"GET", *(["HEAD"] if self.heads else [])}:
            return web.Response(status=self.other)
        file = self.folder / request.match_info["path"]
        if not file.is_file():
            return web.Response(status=404)
        share = self.faults.pop(0) if request.method == "GET" and self.faults else 1.0
        if self.ranges is True and share == 1.0 and not self.present:
            return web.FileResponse(file)
        return await self._send(request, file, share)

    async def _send(self, request, file, share):
        """Send the whole file, or a share of it, and then break the connection."""
        content, status = file.read_bytes(), file.stat()
        tag = f'"{status.st_mtime_ns:x}-{status.st_size:x}"'
        response = web.StreamResponse(headers={"Content-Length": str(len(content)), "ETag": tag})
        if self.ranges == "first" and "Range" in request.headers:
            response.set_status(206)
            response.headers["Content-Range"] = f"bytes 0-{len(content) - 1}/{len(content)}"
        response.last_modified = time.time() if self.present else status.st_mtime
        await response.prepare(request)
        if request.method == "GET":
            await response.write(content[: int(share * len(content))])
        if share < 1:
            await asyncio.sleep(0.05)
            request.transport.abort()
        return response
