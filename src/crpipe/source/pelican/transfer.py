"""Copy one file from the servers of its namespace: resume, length, checksum; avoid servers that fail."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from typing import TYPE_CHECKING
from urllib.parse import quote

from crpipe.core import checksums
from crpipe.core.errors import AccessError, TransferError
from crpipe.core.raw_files import SIZE_ONLY, Entry, Proof
from crpipe.source.pelican.director import BUSY, NOT_FOUND
from crpipe.source.pelican.download import DownloadError
from crpipe.source.pelican.partial_file import Part
from crpipe.source.pelican.tokens import scope_for
from crpipe.source.retries import Transient
from crpipe.source.uris import host_and_path

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from crpipe.source.flush import Steps
    from crpipe.source.pelican.director import Director, Namespace
    from crpipe.source.pelican.download import Answer, Downloads
    from crpipe.source.pelican.tokens import Token, Tokens

DENIED = {401, 403}
SILENT = {400, 401, 403, 404, 405, 501}  # answers of servers that name no checksums
GIVE_UP = 3  # silent answers in a row after which a server is not asked for checksums again
WANTED = "crc32c,adler32;q=0.8,md5;q=0.5"


class Renewed(Transient):
    """The token was replaced while it was in use: try again at once; the try does not count."""

    def __init__(self) -> None:
        super().__init__("the token was replaced", progress=True)


class Transfer:
    """Copies files of one federation; copies at the same time share connections and knowledge of servers."""

    def __init__(self, federation: Director, downloads: Downloads, steps: Steps, tokens: Tokens) -> None:
        self._federation = federation
        self._downloads = downloads
        self._steps = steps
        self._tokens = tokens
        self._silent: Counter[str] = Counter()
        self._algorithm = checksums.OWN  # the one that was named last

    async def fetch(self, entry: Entry, part: Path) -> Proof:
        """Make one try to copy and verify a file; what arrived stays in ``part`` for the next try.

        Raise Transient, TransferError (the file is not there, or is not what its manifest says), AccessError
        or DiskError.
        """
        path = host_and_path(entry.uri)[1]
        space = await self._federation.namespace(path)
        server = space.best()
        token = self._tokens.current() if space.guarded else None
        asking = asyncio.create_task(self._checksum(space, server, path, token))
        try:
            with await self._steps.do(lambda: Part(part, entry.size or 0, self._algorithm)) as copy:
                await self._copy(entry, copy, space, server, token)
                return await self._verify(copy, await asking)
        except Renewed:
            raise
        except Transient:
            space.bench(server)
            raise
        finally:
            if not asking.done() or asking.cancelled() or asking.exception():
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)

    async def look_up(self, path: str) -> Answer:
        """Ask a server about a file without copying it; raise Transient when there is no answer."""
        space = await self._federation.namespace(path)
        server = space.best()
        token = self._tokens.current() if space.guarded else None
        answer = await self._head(server, path, authorization(token))
        if answer.status in DENIED and token and self._tokens.renew(token):
            raise Renewed
        return answer

    async def _copy(
        self, entry: Entry, copy: Part, space: Namespace, server: str, token: Token | None
    ) -> None:
        headers = authorization(token)
        if copy.found:
            await asyncio.to_thread(copy.read_back)
            if copy.found == copy.size:
                return
            # Closed: XRootD 5.5 answers an open range with an empty body.
            headers["Range"] = f"bytes={copy.found}-{copy.size - 1}"

        def receive(answer: Answer) -> Callable[[bytes], None]:
            self._check_status(entry, answer.status, space, server, token)
            return _taker(answer, copy, server)

        try:
            await self._downloads.get(_url(server, host_and_path(entry.uri)[1]), headers, receive)
        except DownloadError as error:
            if error.outage:
                raise Transient(f"{server}: {error}", outage=True) from error
            raise _cut(server, copy, str(error)) from error
        if copy.position != copy.size:
            raise _cut(server, copy, "the connection ended early")

    async def _verify(self, copy: Part, named: tuple[str, str] | None) -> Proof:
        """Compare the copy on the disk with the checksum that the source names."""
        algorithm, expected = named or (checksums.OWN, "")
        found = copy.checksum()
        if algorithm != copy.algorithm:
            found = await asyncio.to_thread(checksums.of_file, copy.path, algorithm)
            self._algorithm = algorithm
        if expected and found != expected:
            copy.path.unlink()
            raise Transient(
                f"{algorithm} is {found}, the source says {expected}: bytes were changed on the way"
            )
        return Proof(copy.size, found, algorithm, "source-checksum" if expected else SIZE_ONLY)

    def _check_status(
        self, entry: Entry, status: int, space: Namespace, server: str, token: Token | None
    ) -> None:
        """Raise what a status other than success means for this file."""
        if status in {200, 206}:
            return
        if status in NOT_FOUND:
            raise TransferError(f"{entry.uri}: not there any more (status {status})")
        if status in DENIED:
            if token and self._tokens.renew(token):
                raise Renewed
            if not space.bench(server):
                raise self._refusal(entry, status, space, token)
        if status == 416:  # noqa: PLR2004 - range not satisfiable: the file there is shorter than ours
            raise Transient(f"{server}: holds a shorter file than the manifest says")
        raise Transient(f"{server}: answers {status}", outage=status in BUSY)

    def _refusal(self, entry: Entry, status: int, space: Namespace, token: Token | None) -> AccessError:
        needed = scope_for(entry.uri, space.base_path)
        if token is None:
            why = "no token was sent, because the director says that none is needed"
        elif token.claims and not token.covers(needed):
            why = f"the token's scope is {' '.join(token.scopes) or 'empty'}, needed is {needed}"
        else:
            why = f"the token from {token.place} is refused; the scope needed is {needed}"
        return AccessError(f"{entry.uri}: refused (status {status}): {why}; renew it, see `crpipe token`")

    async def _checksum(
        self, space: Namespace, server: str, path: str, token: Token | None
    ) -> tuple[str, str] | None:
        """Ask the server, then the origin, for the file's checksum; None when neither names one."""
        for place in dict.fromkeys([server, space.origin]):
            if self._silent[place] >= GIVE_UP:
                continue
            answer = await self._head(place, path, authorization(token) | {"Want-Digest": WANTED})
            named = checksums.parse(answer.header("Digest"))
            if answer.status == 200 and named:  # noqa: PLR2004
                self._silent[place] = 0
                return named
            if answer.status in DENIED and token and self._tokens.renew(token):
                raise Renewed
            if answer.status not in {200, *SILENT}:
                raise Transient(f"{place}: answers {answer.status} when asked for a checksum")
            self._silent[place] += 1
        return None

    async def _head(self, server: str, path: str, headers: dict[str, str]) -> Answer:
        try:
            return await self._downloads.head(_url(server, path), headers)
        except DownloadError as error:
            raise Transient(f"{server}: {error}", outage=True) from error


def authorization(token: Token | None) -> dict[str, str]:
    """The header that carries a token; nothing for namespaces that need none."""
    return {"Authorization": f"Bearer {token.text}"} if token else {}


def _url(server: str, path: str) -> str:
    return server + quote(path)


def _taker(answer: Answer, copy: Part, server: str) -> Callable[[bytes], None]:
    """Write the body of an answer to the copy; raise Transient when it is not the rest of the file."""
    _position(answer, copy, server)
    promised = answer.length
    if promised is not None and copy.position + promised != copy.size:
        raise Transient(
            f"{server}: offers {copy.position + promised} bytes, the manifest says {copy.size}; if the "
            "source changed, delete the manifest to list the range again"
        )

    return copy.write


def _position(answer: Answer, copy: Part, server: str) -> None:
    """Find where the body starts: a server may ignore the range and send everything."""
    if answer.status == 200:  # noqa: PLR2004
        if copy.found:
            copy.restart()
        return
    found = re.match(r"bytes (\d+)-", answer.header("Content-Range"))
    if found is None or int(found[1]) != copy.found:
        raise Transient(f"{server}: answers another range than the one asked for")


def _cut(server: str, copy: Part, why: str) -> Transient:
    have = copy.position
    return Transient(f"{server}: {why} after {have} of {copy.size} bytes", progress=have > copy.found)
