"""Copy one file from the servers of its namespace: resume, length, checksum; a bad server is passed over."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from typing import TYPE_CHECKING
from urllib.parse import quote

import aiohttp
from yarl import URL

from crpipe.errors import AccessError, TransferError
from crpipe.files import writing
from crpipe.source import checksums
from crpipe.source.backend import host_and_path
from crpipe.source.manifest import SIZE_ONLY, Entry, Proof
from crpipe.source.pelican import BUFFER, BUSY, NOT_FOUND, cause
from crpipe.source.retries import Transient
from crpipe.source.tokens import scope_for

if TYPE_CHECKING:
    from pathlib import Path

    from crpipe.source.pelican import Federation, Namespace
    from crpipe.source.tokens import Token, Tokens

DENIED = {401, 403}
SILENT = {400, 401, 403, 404, 405, 501}  # answers of servers that name no checksums
GIVE_UP = 3  # silent answers in a row after which a server is not asked for checksums again
WANTED = "crc32c,adler32;q=0.8,md5;q=0.5"


class Renewed(Transient):
    """The token was replaced while it was in use: try again at once, nobody is to blame."""

    def __init__(self) -> None:
        super().__init__("the token was replaced", progress=True)


class Transfer:
    """Copies files of one federation; many at once share its connections and what it learned of servers."""

    def __init__(self, federation: Federation, tokens: Tokens, campaign: str) -> None:
        self._federation = federation
        self._tokens = tokens
        self._campaign = campaign
        self._silent: Counter[str] = Counter()

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
            await self._copy(entry, part, space, server, token)
            named = await asking
            return await asyncio.to_thread(_verify, entry, part, named)
        except Renewed:
            raise
        except Transient:
            space.bench(server)
            raise
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    async def look_up(self, path: str) -> aiohttp.ClientResponse:
        """Ask a server about a file without copying it; raise Transient when there is no answer."""
        space = await self._federation.namespace(path)
        server = space.best()
        token = self._tokens.current() if space.guarded else None
        answer = await self._head(server, path, authorization(token))
        if answer.status in DENIED and token and self._tokens.renew(token):
            raise Renewed
        return answer

    async def _copy(
        self, entry: Entry, part: Path, space: Namespace, server: str, token: Token | None
    ) -> None:
        size = entry.size or 0
        begin = _resume_at(part, size)
        if begin == size and size:
            return
        headers = authorization(token)
        if begin:
            # Closed: XRootD 5.5 answers an open range with an empty body.
            headers["Range"] = f"bytes={begin}-{size - 1}"
        try:
            async with self._federation.session.get(
                _url(server, host_and_path(entry.uri)[1]), headers=headers, raise_for_status=False
            ) as answer:
                self._judge(entry, answer.status, space, server, token)
                await _save(answer, part, _position(answer, begin), size)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise Transient(f"{server}: {cause(error)}", outage=True) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _cut(server, part, begin, size, cause(error)) from error
        if _length(part) != size:
            raise _cut(server, part, begin, size, "the connection ended early")

    def _judge(self, entry: Entry, status: int, space: Namespace, server: str, token: Token | None) -> None:
        """Raise what a status other than success means for this file."""
        if status in {200, 206}:
            return
        if status in NOT_FOUND:
            raise TransferError(f"{entry.uri}: not there any more (status {status}); list the range again")
        if status in DENIED:
            if token and self._tokens.renew(token):
                raise Renewed
            if not space.bench(server):
                raise self._refusal(entry, status, space, token)
        if status == 416:  # noqa: PLR2004 - range not satisfiable: the file there is shorter than ours
            raise Transient(f"{server}: holds a shorter file than the manifest says")
        raise Transient(f"{server}: answers {status}", outage=status in BUSY)

    def _refusal(self, entry: Entry, status: int, space: Namespace, token: Token | None) -> AccessError:
        needed = scope_for(self._campaign, space.base_path)
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
            named = checksums.parse(answer.headers.get("Digest", ""))
            if answer.status == 200 and named:  # noqa: PLR2004
                self._silent[place] = 0
                return named
            if answer.status in DENIED and token and self._tokens.renew(token):
                raise Renewed
            if answer.status not in {200, *SILENT}:
                raise Transient(f"{place}: answers {answer.status} when asked for a checksum")
            self._silent[place] += 1
        return None

    async def _head(self, server: str, path: str, headers: dict[str, str]) -> aiohttp.ClientResponse:
        try:
            async with self._federation.session.head(
                _url(server, path), headers=headers, allow_redirects=True, raise_for_status=False
            ) as answer:
                return answer
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Transient(f"{server}: {cause(error)}", outage=True) from error


def authorization(token: Token | None) -> dict[str, str]:
    """The header that carries a token; nothing for namespaces that need none."""
    return {"Authorization": f"Bearer {token.text}"} if token else {}


def _url(server: str, path: str) -> URL:
    return URL(server + quote(path), encoded=True)


def _resume_at(part: Path, size: int) -> int:
    """Bytes that an earlier try left; a part that is longer than the file is of no use."""
    have = _length(part)
    if have > size:
        part.unlink()
        return 0
    return have


def _position(answer: aiohttp.ClientResponse, begin: int) -> int:
    """Where the body starts: a server may ignore the range and send everything."""
    if answer.status == 200:  # noqa: PLR2004
        return 0
    found = re.match(r"bytes (\d+)-", answer.headers.get("Content-Range", ""))
    if found is None or int(found[1]) != begin:
        raise Transient(f"{answer.url.host}: answers another range than the one asked for")
    return begin


async def _save(answer: aiohttp.ClientResponse, part: Path, begin: int, size: int) -> None:
    """Write the body at ``begin``; raise Transient when it cannot be or is not the rest of ``size`` bytes."""
    promised = answer.content_length
    if promised is not None and promised != size - begin:
        raise Transient(
            f"{answer.url.host}: offers {begin + promised} bytes, the manifest says {size}; if the source "
            "changed, list the range again"
        )
    waiting: list[bytes] = []
    held = 0
    try:
        async for chunk in answer.content.iter_any():
            waiting.append(chunk)
            held += len(chunk)
            if begin + held > size:
                waiting.clear()
                raise Transient(f"{answer.url.host}: sends more bytes than the {size} of the manifest")
            if held >= BUFFER:
                # In a thread: a slow disk must not hold up the other connections.
                await asyncio.to_thread(_append, part, begin, waiting)
                begin, waiting, held = begin + held, [], 0
    finally:
        if waiting:
            await asyncio.to_thread(_append, part, begin, waiting)


def _append(part: Path, begin: int, chunks: list[bytes]) -> None:
    with writing(part), part.open("r+b" if begin else "wb") as copy:
        copy.seek(begin)
        copy.writelines(chunks)


def _cut(server: str, part: Path, begin: int, size: int, why: str) -> Transient:
    have = _length(part)
    return Transient(f"{server}: {why} after {have} of {size} bytes", progress=have > begin)


def _length(part: Path) -> int:
    try:
        return part.stat().st_size
    except FileNotFoundError:
        return 0


def _verify(entry: Entry, part: Path, named: tuple[str, str] | None) -> Proof:
    """Hold what stands on the disk against the checksum that the source names."""
    part.touch()  # an empty file had no bytes to make it
    algorithm, expected = named or (checksums.OWN, "")
    found = checksums.of_file(part, algorithm)
    if expected and found != expected:
        part.unlink()
        raise Transient(f"{algorithm} is {found}, the source says {expected}: bytes were changed on the way")
    return Proof(entry.size or 0, found, algorithm, "source-checksum" if expected else SIZE_ONLY)
