"""Start and stop a loopback federation: keys, XRootD origin, director, on free ports of this machine."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import ssl
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from crpipe.core.errors import SourceError
from crpipe.core.files import write_secret
from loopback import credentials, origin
from loopback.topology import OPEN, PROTECTED, Topology

if TYPE_CHECKING:
    from collections.abc import Iterator

TOKEN_S = 12 * 3600  # lifetime of the token that `up` writes
START_S = 20.0  # longest time that a server may take to start
PROBE_S = 2.0  # longest time that one probe may take: the first connection may hang
_FOLDERS = ("keys", "cache/scitokens", "run", "log", f"data{PROTECTED}", f"data{OPEN}")


class LoopbackFederation:
    """A federation in ``folder``: it serves the files in ``data``; keys are in ``keys``, logs in ``log``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.data = self.folder / "data"

    @property
    def certificate(self) -> Path:
        """Certificate authority to trust; name it in SSL_CERT_FILE."""
        return self.folder / "keys" / "ca.pem"

    @property
    def topology(self) -> Topology:
        """Where everything is."""
        return Topology.load(self.folder)

    def uri(self, path: str) -> str:
        """``pelican://`` URI of a path of this federation."""
        return f"pelican://{self.topology.host}{path}"

    def token(self, scope: str = "storage.read:/", lifetime_s: float = 3600) -> str:
        """Issue a token; scopes are relative to the protected namespace."""
        key = (self.folder / "keys" / "issuer.pem").read_text()
        return credentials.sign_token(key, self.topology.issuer, scope, lifetime_s)

    def up(self) -> list[str]:
        """Create what is missing, start what does not run, and wait until both servers answer.

        Return a shell script, line by line: comments with the addresses, and the variables to export.
        """
        if not origin.is_installed():
            raise SourceError(f"xrootd: not installed; {origin.INSTALL}")
        origin.check_owner(self.folder)
        with _alone():
            if not (self.folder / "topology.json").exists():
                self._make()
            origin.check_reachable(self.folder)
            if not self._alive("origin"):
                self.start_origin()
            if not self._alive("director"):
                self._start_director()
        here = self.topology
        for port, log in ((here.origin_port, "origin.log"), (here.port, "director.out")):
            self._await(port, log)
        self.warm()
        return [
            f"# {self.data} is served as {self.uri('/')}",
            f"export SSL_CERT_FILE={self.certificate}",
            f"export BEARER_TOKEN_FILE={self._write_token()}",
        ]

    def down(self) -> str:
        """Stop both servers; keep the files."""
        for name in ("director", "origin"):
            self.stop(name)
        return f"{self.folder}: stopped"

    def start_origin(self) -> None:
        """Start the origin alone."""
        self._pid_file("origin").write_text(str(origin.start(self.folder)))

    def stop(self, name: str, signum: int = signal.SIGTERM) -> None:
        """Stop ``origin`` or ``director`` and wait until it is gone."""
        deadline = time.monotonic() + START_S
        while self._alive(name) and time.monotonic() < deadline:
            pid = int(self._pid_file(name).read_text())
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signum)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
            time.sleep(0.02)
        self._pid_file(name).unlink(missing_ok=True)

    def await_origin(self) -> None:
        """Wait until the origin answers."""
        self._await(self.topology.origin_port, "origin.log")

    def _write_token(self) -> Path:
        path = self.folder / "token"
        write_secret(path, self.token(lifetime_s=TOKEN_S).encode())
        return path

    def warm(self) -> int:
        """Request the checksum of every file from the origin, one at a time; return their number.

        XRootD 5.5 can hang or crash when many clients ask for sums that it does not have yet. Asked by one
        it does so once among some thousands of files: then it is started again.
        """
        files = sorted(path for path in self.data.rglob("*") if path.is_file())
        headers = {"Want-Digest": "crc32c", "Authorization": f"Bearer {self.token()}"}
        for file in files:
            path = "/" + quote(str(file.relative_to(self.data)))
            request = urllib.request.Request(
                f"https://localhost:{self.topology.origin_port}{path}", headers=headers, method="HEAD"
            )
            try:
                self._open(request)
            except OSError:
                self.stop("origin", signal.SIGKILL)
                self.start_origin()
                self.await_origin()
                self._open(request)
        return len(files)

    def _make(self) -> None:
        for name in _FOLDERS:
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        port, origin_port = _free_ports(2)
        here = Topology(port, origin_port)
        credentials.write_certificates(self.folder / "keys")
        credentials.write_issuer(self.folder / "keys")
        origin.configure(self.folder, here)
        here.save(self.folder)

    def _start_director(self) -> None:
        command = [sys.executable, "-m", "loopback.director", str(self.folder)]
        paths = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
        pid = origin.spawn(command, environment, self.folder / "log" / "director.out")
        self._pid_file("director").write_text(str(pid))

    def _pid_file(self, name: str) -> Path:
        return self.folder / "run" / f"{name}.pid"

    def _alive(self, name: str) -> bool:
        """Return whether the recorded process is one of ours: its command line names the folder."""
        try:
            pid = int(self._pid_file(name).read_text())
            with open(f"/proc/{pid}/cmdline", "rb") as handle:  # noqa: PTH123 - not a path of ours
                return str(self.folder).encode() in handle.read()
        except (OSError, ValueError):
            return False

    def _await(self, port: int, log: str) -> None:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            with contextlib.suppress(urllib.error.URLError, OSError):
                self._open(urllib.request.Request(f"https://localhost:{port}/", method="HEAD"), PROBE_S)
                return
            time.sleep(0.02)
        raise SourceError(f"port {port}: no answer within {START_S:g} s; see {self.folder / 'log' / log}")

    def _open(self, request: urllib.request.Request, timeout_s: float = START_S) -> None:
        """Send a request; any HTTP status is an answer."""
        context = ssl.create_default_context(cafile=self.certificate)
        try:
            with urllib.request.urlopen(request, timeout=timeout_s, context=context):
                pass
        except urllib.error.HTTPError as answer:
            answer.close()


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Keep what is made inside this user's alone: keys, the servers' configuration, their logs."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
