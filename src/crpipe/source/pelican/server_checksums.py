"""Ask servers for the checksum of a file; one that has none is asked again now and then."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

from crpipe.core import checksums
from crpipe.source.pelican.download import Answer, DownloadError
from crpipe.source.retries import Failure, TemporaryFailure

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Ask = Callable[[str], Awaitable[Answer]]

Named = tuple[str, str, str]  # algorithm, checksum in hexadecimal, the server that named it
ENOUGH = 3  # files in a row without a checksum after which a server is asked now and then only
AGAIN_S = 5.0
TRIES = 2  # times that a server which did not say is asked again for one file
_HAS_NONE = {200, 405, 501}  # without a Digest header: this server names no checksums
_REFUSES = {400, 401, 403, 404}  # says nothing about the checksums of other files


class ServerChecksums:
    """Which servers name checksums, learned from their answers; shared by all copies of a federation.

    ``required``: a copy without a checksum is of no use, so that every server is asked for every file.
    """

    def __init__(self, *, required: bool) -> None:
        self._required = required
        self._none: Counter[str] = Counter()  # files in a row for which a server said that it has none
        self._unsaid: Counter[str] = Counter()  # files in a row that were accepted though it did not say
        self._naming: set[str] = set()  # servers that named one, for any file
        self._rests: dict[str, float] = {}
        self._tries: Counter[str] = Counter()  # by path

    async def ask(self, servers: list[str], path: str, ask: Ask) -> Named | None:
        """Ask the servers in turn for the checksum of ``path``; None when none of them has one.

        Raise TemporaryFailure while one may: a server that refuses, or does not answer, is asked again.
        It is left out in the end if another server has answered: a copy is then known by its size.
        """
        places = list(dict.fromkeys(servers))
        unsaid: dict[str, TemporaryFailure] = {}
        reached = False
        for server in places:
            if self._is_resting(server, places):
                reached = True
                continue
            try:
                answer = await ask(server)
            except DownloadError as error:
                unsaid[server] = TemporaryFailure(
                    f"{server}: {error}, when asked for a checksum", Failure.SERVER_BUSY
                )
                continue
            named = checksums.parse(answer.header("Digest"))
            if answer.status == 200 and named:  # noqa: PLR2004
                self._naming.add(server)
                self._none[server] = self._unsaid[server] = 0
                if not self._required:  # one that was asked before, and knows better, may say it soon
                    self._accept(path, unsaid, reached=True)
                return *named, server
            if answer.status in _HAS_NONE and server not in self._naming:
                self._none[server] += 1
                reached = True
                continue
            reached = reached or answer.status in _REFUSES | _HAS_NONE
            unsaid[server] = TemporaryFailure(f"{server}: answers {answer.status} when asked for a checksum")
        self._accept(path, unsaid, reached=reached)
        return None

    def _accept(self, path: str, unsaid: dict[str, TemporaryFailure], *, reached: bool) -> None:
        """Raise what may pass; when it lasts, accept it where a server has answered at all."""
        if not unsaid:
            return
        self._tries[path] += 1
        lasts = self._tries[path] > TRIES or all(self._unsaid[place] >= ENOUGH for place in unsaid)
        if self._required or not reached:
            raise next(iter(unsaid.values()))
        if not lasts:  # such a try does not count: the copy is there, and will be taken in the end
            raise TemporaryFailure(str(next(iter(unsaid.values()))), Failure.PROGRESS_MADE)
        self._unsaid.update(unsaid.keys())

    def _is_resting(self, server: str, places: list[str]) -> bool:
        """Return whether a server is left out this time.

        One that said so often that it has no checksums; or one that says nothing while another one did.
        """
        silent = self._none[server] >= ENOUGH or (
            self._unsaid[server] >= ENOUGH
            and any(
                self._none[other] >= ENOUGH or other in self._naming for other in places if other != server
            )
        )
        if self._required or not silent:
            return False
        now = time.monotonic()
        if now < self._rests.get(server, 0.0):
            return True
        self._rests[server] = now + AGAIN_S
        return False
