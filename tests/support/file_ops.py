"""Watches the file operations of real processes: each waits for leave before it is executed.

Every fsync, rename, link, unlink, mkdir and rmdir that goes through the C library is seen (file_ops.c),
whatever language it comes from. Linux with a C compiler.
"""

import os
import re
import selectors
import socket
import struct
import subprocess
import threading
import uuid
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")


@dataclass(frozen=True)
class Operation:
    """What process ``pid`` is about to do to ``path``; that of an fsync is the file's present name."""

    what: str
    pid: int
    file: int
    path: Path

    def opened(self):
        """Open the file of an fsync once more."""
        return os.open(f"/proc/{self.pid}/fd/{self.file}", os.O_RDONLY)


class FileOps:
    """A context manager; processes with its ``variables`` in their environment are watched.

    before: called with each Operation, one at a time. Unless it returns True, the process goes on; else it is
    held where it is, until it is killed or ``release`` is called.
    """

    def __init__(self, folder, before):
        library = folder / "file_ops.so"
        if not library.exists():
            command = ["cc", "-O1", "-shared", "-fPIC", "-o", library, SOURCE, "-ldl", "-lpthread"]
            subprocess.run(command, check=True)
        name = f"crpipe-{uuid.uuid4().hex}"
        self.variables = {"LD_PRELOAD": str(library), "FILE_OPS": name}
        self._before = before
        self._held = []
        self._failed = None
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.bind(f"\0{name}")
        self._socket.listen(64)
        self._ended = threading.Event()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._socket, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._ended.set()
        self._thread.join()
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()
        self._selector.close()
        if self._failed:
            raise self._failed

    def release(self):
        """Release every held process."""
        held, self._held = self._held, []
        for channel in held:
            _answer(channel)

    def _serve(self):
        while not self._ended.is_set():
            for key, _ in self._selector.select(0.1):
                if key.fileobj is self._socket:
                    self._selector.register(self._socket.accept()[0], selectors.EVENT_READ)
                else:
                    self._hear(key.fileobj)

    def _hear(self, channel):
        text = _received(channel)
        if not text:
            self._selector.unregister(channel)
            channel.close()
            return
        try:
            held = self._before(_operation(text, channel)) is True
        except FileNotFoundError:
            held = False  # killed meanwhile
        except Exception as error:  # noqa: BLE001 - raised at the end: nobody may wait for ever
            self._failed, held = self._failed or error, False
        if held:
            self._held.append(channel)
        else:
            _answer(channel)


def _received(channel):
    try:
        return channel.recv(1 << 14)
    except ConnectionError:
        return b""


def _answer(channel):
    try:
        channel.send(b".")
    except OSError:
        return  # killed meanwhile


def _operation(text, channel):
    credentials = channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid = struct.unpack("3i", credentials)[0]
    what, file, path = re.fullmatch(rb"(\w+) (-?\d+) (.*)", text, re.DOTALL).groups()
    own = Path(f"/proc/{pid}")
    is_open = what == b"fsync"
    named = (
        (own / "fd" / file.decode()).readlink() if is_open else (own / "cwd").readlink() / os.fsdecode(path)
    )
    return Operation(what.decode(), pid, int(file), named)
