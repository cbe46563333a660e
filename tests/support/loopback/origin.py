"""The origin: a real XRootD server with SciTokens, as Pelican's own POSIX origin runs it."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shutil
import sqlite3
import stat
import time
from typing import TYPE_CHECKING

from crpipe.core.errors import SourceError
from loopback.credentials import DAYS
from loopback.topology import OPEN, PROTECTED, Topology

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

INSTALL = (
    "apt-get install --no-install-recommends xrootd-server xrootd-server-plugins xrootd-scitokens-plugins"
)
_USER = "xrootd"  # the user that the server changes to when root starts it; it refuses to run as root

_CONFIG = """\
all.role server
all.export {protected}
all.export {open}
oss.localroot {folder}/data
all.adminpath {folder}/run
all.pidpath {folder}/run
xrd.network nodnr
xrd.allow host 127.0.0.1
xrd.allow host [::ffff:127.0.0.1]
xrd.allow host [::1]
xrd.port {port}
xrd.protocol http:{port} libXrdHttp.so
xrd.tls {folder}/keys/host.pem {folder}/keys/host.key
xrd.tlsca certfile {folder}/keys/ca.pem
xrootd.tls all
http.header2cgi Authorization authz
xrootd.chksum max 10 crc32c adler32 md5 crc32
ofs.authorize 1
acc.authdb {folder}/authfile
ofs.authlib ++ libXrdAccSciTokens.so config={folder}/scitokens.cfg
xrootd.seclib libXrdSec.so
sec.protbind * none
scitokens.trace error
"""


def is_installed() -> bool:
    """Return whether the server's program is installed."""
    return shutil.which("xrootd") is not None


def check_reachable(folder: Path) -> None:
    """Raise SourceError when the server, which drops root's rights, could not enter ``folder``."""
    closed = next((path for path in folder.parents if not path.stat().st_mode & stat.S_IXOTH), None)
    if os.geteuid() == 0 and closed:
        raise SourceError(
            f"{closed}: user {_USER}, which the server runs as, may not enter; choose a folder outside of it"
        )


def check_owner(folder: Path) -> None:
    """Raise SourceError for a folder in which others could put keys or a configuration of theirs."""
    if not folder.exists():
        return
    found = folder.stat()
    if found.st_uid not in _own_users() or found.st_mode & stat.S_IWOTH:
        raise SourceError(
            f"{folder}: not yours, or anybody may write into it: keys and tokens are kept there; name a new "
            "folder"
        )


def _own_users() -> set[int]:
    """Name the users that a folder may belong to; root gives it to the server's user."""
    with contextlib.suppress(KeyError):
        if os.geteuid() == 0:
            return {0, pwd.getpwnam(_USER).pw_uid}
    return {os.geteuid()}


def configure(folder: Path, topology: Topology) -> None:
    """Write the server's configuration, its authorisations and the issuer's keys below ``folder``."""
    (folder / "origin.cfg").write_text(
        _CONFIG.format(folder=folder, port=topology.origin_port, protected=PROTECTED, open=OPEN)
    )
    (folder / "authfile").write_text(f"u * {OPEN} lr\n")
    (folder / "scitokens.cfg").write_text(
        f"[Issuer loopback]\nissuer = {topology.issuer}\nbase_path = {PROTECTED}\n"
    )
    _seed_keys(folder, topology.issuer)
    if os.geteuid() == 0:
        for path in (folder, *folder.rglob("*")):
            shutil.chown(path, _USER, _USER)


def _seed_keys(folder: Path, issuer: str) -> None:
    """Put the issuer's keys into the server's cache, so that it need not trust our certificate authority."""
    keys = json.loads((folder / "keys" / "jwks.json").read_text())
    until = int(time.time()) + DAYS * 86_400
    row = json.dumps({"jwks": keys, "next_update": until, "expires": until})
    with sqlite3.connect(folder / "cache" / "scitokens" / "scitokens_cpp.sqllite") as cache:
        cache.execute("CREATE TABLE keycache (issuer text UNIQUE PRIMARY KEY NOT NULL, keys text NOT NULL)")
        cache.execute("INSERT INTO keycache VALUES (?, ?)", (issuer, row))
    cache.close()


def start(folder: Path) -> int:
    """Start the server in the background and return its process id."""
    if not is_installed():
        raise SourceError(f"xrootd: not installed; {INSTALL}")
    command = ["xrootd", *(["-R", _USER] if os.geteuid() == 0 else []), "-c", str(folder / "origin.cfg")]
    command += ["-l", str(folder / "log" / "origin.log"), "-n", "origin"]
    environment = {name: value for name, value in os.environ.items() if name != "SSL_CERT_FILE"}
    environment["XDG_CACHE_HOME"] = str(folder / "cache")
    return spawn(command, environment, folder / "log" / "origin.out")


def spawn(command: list[str], environment: Mapping[str, str], log: Path) -> int:
    """Start a program that runs on after this process, with its output in ``log``; return its process id."""
    program = shutil.which(command[0])
    assert program is not None
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(log), flags, 0o644),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    return os.posix_spawn(program, command, environment, file_actions=actions, setsid=True)
