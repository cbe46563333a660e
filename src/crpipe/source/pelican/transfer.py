"""Copy one file from the servers of its namespace: resume, length, checksum; avoid servers that fail."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, NoReturn
from urllib.parse import quote, urlsplit

from crpipe.campaign.raw_files import LISTED, SERVER_ONLY, SIZE_ONLY, Entry, Verification
from crpipe.core import checksums
from crpipe.core.errors import AccessError, ChangedError, SourceError, TransferError
from crpipe.source.local import file_type_problem
from crpipe.source.pelican.director import AVOIDED_S, BUSY, NOT_FOUND, Director, root_of
from crpipe.source.pelican.download import Answer, DownloadError, Downloads, PartialFile
from crpipe.source.pelican.server_checksums import Named, ServerChecksums
from crpipe.source.pelican.tokens import Token, Tokens, scope_for
from crpipe.source.retries import AdaptiveDiskCalls, Failure, TemporaryFailure
from crpipe.source.uris import host_and_path

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from datetime import datetime
    from pathlib import Path

    from crpipe.source.pelican.director import Namespace, SingleHost

DENIED = {401, 403}
SMALL = 1 << 23  # bytes of a file whose checksum a server computes before it sends it, without a long pause
LOOKS = 2  # times that all servers are asked for a file before it is believed that none has it
WANTED = "crc32c,adler32;q=0.8,md5;q=0.5"
_TIME = "%Y-%m-%d %H:%M:%S"
_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)")


class Renewed(TemporaryFailure):
    """Try again at once, with a new token, or asking for less; the try does not count."""

    def __init__(self, reason: str = "the token was replaced") -> None:
        super().__init__(reason, Failure.PROGRESS_MADE)


class _DownloadVersion:
    """The answers that make up a copy so far, and whether they are of one and the same file."""

    def __init__(self, server: str, answer: Answer) -> None:
        self._version = self._of(server, answer)
        self.is_one = True

    def go_on(self, server: str, answer: Answer) -> None:
        """Take in the answer that continues the copy."""
        version = self._of(server, answer)
        self.is_one = self.is_one and version == self._version and any(version[1:])

    def if_range(self, server: str) -> dict[str, str]:
        """Ask for the rest of a file only if it is the one that was begun; weak ETags may not be used."""
        tag = self._version[1]
        known = server == self._version[0] and re.fullmatch(r'"[!#-~]*"', tag)
        return {"If-Range": tag} if known else {}

    @staticmethod
    def _of(server: str, answer: Answer) -> tuple[str, str, datetime | None]:
        return server, answer.header("ETag"), answer.mtime


class Transfer:
    """Copies files of one federation; copies at the same time share connections and knowledge of servers."""

    def __init__(
        self,
        federation: SingleHost,
        downloads: Downloads,
        steps: AdaptiveDiskCalls,
        tokens: Tokens,
        *,
        require_checksum: bool = False,
    ) -> None:
        self._federation = federation
        self._downloads = downloads
        self._steps = steps
        self._tokens = tokens
        self._checksums = ServerChecksums(required=require_checksum)
        self._algorithm = checksums.OWN  # the one that was named last
        self._missing: defaultdict[str, set[str]] = defaultdict(set)  # servers without the file, by path
        self._absent: Counter[str] = Counter()  # times that no server had a file, by path
        self._begun: dict[str, _DownloadVersion] = {}  # copies that are not finished, by path
        self._silent: set[str] = set()  # servers that name no checksum with the bytes of a file

    async def fetch(self, entry: Entry, part: Path) -> Verification:
        """Make one try to copy and verify a file; what arrived stays in ``part`` for the next try.

        Raise TemporaryFailure, TransferError (no server has the file), AccessError or DiskError.
        """
        path = host_and_path(entry.uri)[1]
        space = await self._federation.namespace(path)
        server = await self._server(space, entry.uri)
        token = self._tokens.current() if space.guarded else None
        copied: asyncio.Future[Answer | None] = asyncio.get_running_loop().create_future()
        if not self._names_beside(entry, space, server):
            _set(copied, None)
        asking = asyncio.create_task(self._checksum(entry, space, server, token, copied))
        algorithm = entry.listed.algorithm if entry.listed else self._algorithm
        try:
            with await self._steps.do(lambda: PartialFile(part, entry.size or 0, algorithm)) as copy:
                if copy.kept:
                    _set(copied, None)
                with self._avoiding(space, server, path):
                    await self._copy(entry, copy, space, server, token, copied)
                named = await asking
                with self._avoiding(space, server, path):
                    proof = await self._verify(entry, copy, space, server, named)
        finally:
            if not asking.done() or asking.cancelled() or asking.exception():
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)
        self._begun.pop(path, None)
        return proof

    async def look_up(self, uri: str) -> Answer:
        """Ask about a file without copying it, until a server has it.

        Raise TemporaryFailure without an answer, AccessError when no server accepts the token.
        """
        path = host_and_path(uri)[1]
        space = await self._federation.namespace(path)
        token = self._tokens.current() if space.guarded else None
        missing: set[str] = set()
        server = space.pick_server()
        while True:
            answer = await self._head(server, path, authorization(token))
            if answer.status in DENIED:
                self._denied(uri, answer, space, server, token)
            if answer.status not in NOT_FOUND:
                return answer
            missing.add(server)
            left = not missing >= set(space.servers)
            server = space.pick_server(missing) if left else await self._another(space, path, missing)
            if not server:
                return answer

    async def checksum(self, entry: Entry) -> Named | None:
        """Ask for the checksum of a file without copying it; None where no server has one."""
        space = await self._federation.namespace(host_and_path(entry.uri)[1])
        token = self._tokens.current() if space.guarded else None
        return await self._checksum(entry, space, space.pick_server(), token)

    async def _server(self, space: Namespace, uri: str) -> str:
        """Choose the server to copy from; raise TransferError when none has the file."""
        path = host_and_path(uri)[1]
        missing = self._missing.get(path, set())
        if not missing >= set(space.servers):
            return space.pick_server(missing)
        another = await self._another(space, path, missing)
        if another:
            return another
        del self._missing[path]  # asked again, should this job try once more
        servers = f" from each of {len(missing)} servers" if len(missing) > 1 else ""
        self._absent[path] += 1
        if self._absent[path] < LOOKS:
            raise TemporaryFailure(f"no server has it (status 404{servers})")
        raise TransferError(f"{uri}: not there any more (status 404{servers})")

    async def _another(self, space: Namespace, path: str, missing: Collection[str]) -> str:
        """Ask the director who else has this very file; empty when there is no other server.

        Files of one namespace may be on different origins, and the director may have named caches alone.
        """
        servers: list[str] = []
        try:
            servers += await self._federation.servers_of(path)
            if not space.collections and isinstance(self._federation, Director):
                servers.append(root_of(await self._federation.upload_url(path)))
        except TemporaryFailure as error:
            if error.kind is not Failure.NOT_SERVED:
                raise
        others = [server for server in servers if server not in missing]
        space.servers += [server for server in others if server not in space.servers]
        return others[0] if others else ""

    @contextlib.contextmanager
    def _avoiding(self, space: Namespace, server: str, path: str) -> Iterator[None]:
        """Avoid a server for a while after it failed; one that only lacks this file may have the others."""
        try:
            yield
        except Renewed:
            raise
        except TemporaryFailure:
            if server not in self._missing.get(path, ()):
                space.avoid(server)
            raise

    async def _copy(
        self,
        entry: Entry,
        copy: PartialFile,
        space: Namespace,
        server: str,
        token: Token | None,
        copied: asyncio.Future[Answer | None],
    ) -> None:
        """Get what is missing; ``copied``, if nothing is set, takes the answer, asked for a checksum."""
        path = host_and_path(entry.uri)[1]
        headers = authorization(token) | ({} if copied.done() else {"Want-Digest": WANTED})
        if copy.kept:
            await asyncio.to_thread(copy.read_back)
            if copy.kept == copy.size:
                return
            # Closed: XRootD 5.5 answers an open range with an empty body.
            headers["Range"] = f"bytes={copy.kept}-{copy.size - 1}"
            headers |= self._begun[path].if_range(server) if path in self._begun else {}

        def receive(answer: Answer) -> Callable[[bytes], None]:
            if answer.status != 200:  # noqa: PLR2004
                # XRootD answers 500 to whom may not read a file, where it is asked for the checksum, too.
                self._refuse_both(server, copied, f"answers {answer.status}")
            self._check_status(entry, answer, space, server, token)
            _check_time(entry, answer, space)
            take = _taker(entry, answer, copy, space, server)
            _set(copied, answer)
            if not copy.position:
                self._begun[path] = _DownloadVersion(server, answer)
            elif path in self._begun:
                self._begun[path].go_on(server, answer)
            return take

        try:
            await self._downloads.get(_url(server, path), headers, receive)
        except DownloadError as error:
            if error.outage:
                raise TemporaryFailure(f"{server}: {error}", Failure.SERVER_BUSY) from error
            self._refuse_both(server, copied, str(error))
            raise _cut(server, copy, str(error)) from error
        if copy.position != copy.size:
            raise _cut(server, copy, "the connection ended early")

    def _refuse_both(self, server: str, copied: asyncio.Future[Answer | None], why: str) -> None:
        """Raise Renewed, and ask the server for less from now on, if it was asked for the checksum, too."""
        if not copied.done():
            self._silent.add(server)
            raise Renewed(f"{server}: {why} when also asked for a checksum")

    async def _verify(
        self, entry: Entry, copy: PartialFile, space: Namespace, server: str, named: Named | None
    ) -> Verification:
        """Compare the copy on the disk with the named checksum, or else with its type."""
        algorithm, expected, who = named or (checksums.OWN, "", "")
        checksum = copy.checksum()
        if algorithm != copy.algorithm:
            checksum = await asyncio.to_thread(checksums.of_file, copy.path, algorithm)
            self._algorithm = algorithm
        if expected and checksum != expected:
            says = "the source says" if entry.listed is None else f"{who} says"
            raise self._refused(
                entry,
                copy,
                f"{algorithm} is {checksum}, {says} {expected}: bytes were changed on the way",
            )
        if not expected:
            self._check_unnamed(entry, copy)
            return Verification(copy.size, checksum, algorithm, SIZE_ONLY)
        if entry.listed:
            return Verification(copy.size, checksum, algorithm, LISTED)
        alone = who == server != space.collections
        return Verification(copy.size, checksum, algorithm, SERVER_ONLY if alone else "source-checksum")

    def _check_unnamed(self, entry: Entry, copy: PartialFile) -> None:
        """Raise TemporaryFailure unless a copy of which nobody names a checksum is whole, and of its type."""
        begun = self._begun.get(host_and_path(entry.uri)[1])
        if begun is None or not begun.is_one:
            raise self._refused(
                entry,
                copy,
                "it came in pieces, and nothing that the server names shows that they are of one file: no "
                "checksum, and not the same ETag or Last-Modified",
                Failure.FILE,
            )
        problem = file_type_problem(copy.path, entry.path)
        if problem:
            raise self._refused(entry, copy, f"what came {problem}")

    def _refused(
        self, entry: Entry, copy: PartialFile, reason: str, kind: Failure = Failure.WRONG_BYTES
    ) -> TemporaryFailure:
        """Remove a copy that is not the file, so that the next try begins again."""
        copy.path.unlink()
        self._begun.pop(host_and_path(entry.uri)[1], None)
        return TemporaryFailure(reason, kind)

    def _check_status(
        self, entry: Entry, answer: Answer, space: Namespace, server: str, token: Token | None
    ) -> None:
        """Raise what a status other than success means for this file."""
        status = answer.status
        if status in {200, 206}:
            return
        if status in NOT_FOUND:
            self._missing[host_and_path(entry.uri)[1]].add(server)
            raise TemporaryFailure(f"{server}: does not have it (status {status})", Failure.PROGRESS_MADE)
        if status in DENIED:
            self._denied(entry.uri, answer, space, server, token)
        if status == 416:  # noqa: PLR2004 - range not satisfiable: the file there is shorter than ours
            raise TemporaryFailure(
                f"{server}: holds a shorter file than the manifest says", Failure.WRONG_BYTES
            )
        pause_s = answer.retry_after if status in BUSY else 0.0
        alone = not space.avoid(server, max(AVOIDED_S, pause_s))
        raise TemporaryFailure(
            f"{server}: answers {status}",
            Failure.SERVER_BUSY if status in BUSY else Failure.FILE,
            pause_s=pause_s if alone else 0.0,
        )

    def _denied(
        self, uri: str, answer: Answer, space: Namespace, server: str, token: Token | None
    ) -> NoReturn:
        """Raise what the refusal of a server means: look for another token, then at the other servers."""
        if token and self._tokens.reload(token):
            raise Renewed
        if not token:
            self._silent.discard(server)  # it may have refused because no token was sent
            try_with_token(uri, answer.status, space, self._tokens)
        if space.avoid(server):
            raise TemporaryFailure(f"{server}: answers {answer.status}", Failure.PROGRESS_MADE)
        raise refusal(uri, answer, space, token)

    def _names_beside(self, entry: Entry, space: Namespace, server: str) -> bool:
        """Return whether the answer that brings a file may also name its checksum: a request less.

        Not that of a large file, for whose checksum a server reads it before it sends the first byte.
        """
        small = (entry.size or 0) <= SMALL
        return (
            small and not entry.listed and server not in self._silent and not self._witnesses(space, server)
        )

    async def _checksum(
        self,
        entry: Entry,
        space: Namespace,
        server: str,
        token: Token | None,
        copied: asyncio.Future[Answer | None] | None = None,
    ) -> Named | None:
        """Ask the origin (or another cache), then the server itself, for a checksum; None where none has one.

        A cache that keeps an old file names the checksum of the old bytes. What a list has is not asked, nor
        the server if it named it in ``copied``.
        """
        if entry.listed:
            return entry.listed.algorithm, entry.listed.value, entry.listed.where
        path = host_and_path(entry.uri)[1]
        answer = await copied if copied else None
        if answer and not checksums.parse(answer.header("Digest")):
            self._silent.add(server)
            answer = None

        async def ask(server: str) -> Answer:
            if answer:
                return answer
            headers = authorization(token) | {"Want-Digest": WANTED}
            said = await self._downloads.head(_url(server, path), headers)
            if said.status in DENIED and token and self._tokens.reload(token):
                raise Renewed
            return said

        return await self._checksums.ask([*self._witnesses(space, server), server], path, ask)

    def _witnesses(self, space: Namespace, server: str) -> list[str]:
        """Name who may know a file better than the server it comes from: the origin, or one other cache."""
        if space.collections:
            return [space.collections] if space.collections != server else []
        return [other for other in space.servers if other != server][:1]

    async def _head(self, server: str, path: str, headers: dict[str, str]) -> Answer:
        try:
            return await self._downloads.head(_url(server, path), headers)
        except DownloadError as error:
            raise TemporaryFailure(f"{server}: {error}", Failure.SERVER_BUSY) from error


def _set(answer: asyncio.Future[Answer | None], value: Answer | None) -> None:
    if not answer.done():
        answer.set_result(value)


def try_with_token(uri: str, status: int, space: Namespace, tokens: Tokens) -> None:
    """Raise Renewed where a host refuses what came without a token, and there is one that it may see.

    Raise AccessError where there is none. Of a federation the director has said that none is needed.
    """
    if not space.is_host:
        return
    server = urlsplit(space.servers[0])
    why = f"{uri}: refused (status {status})"
    if server.scheme != "https":
        raise AccessError(f"{why}; the address is not https, so no token is sent")
    try:
        token = tokens.current()
    except AccessError as error:
        raise AccessError(f"{why}; {error}") from error
    if not token.is_for(server.hostname or ""):
        audience = token.claims["aud"]
        raise AccessError(
            f"{why}; the token from {token.place} is for {audience}, so it is not sent to {server.hostname}"
        )
    space.guarded = True
    raise Renewed


def refusal(
    uri: str, answer: Answer, space: Namespace, token: Token | None
) -> TemporaryFailure | AccessError:
    """Return the error of a refused request: for a person where the token shows why, else to be retried.

    A server that does not take a token (401) which names the right issuer and scope, and has not ended, may
    take it later: it reads the issuer's keys from time to time.
    """
    status = answer.status
    if token and answer.elsewhere:
        return AccessError(
            f"{uri}: refused (status {status}) by {answer.elsewhere}, to which it is redirected; a token is "
            "sent to no other server than the one that is named: name this one, or ask the site"
        )
    needed = scope_for(uri, space.base_path)
    why = "no token was sent, because the director says that none is needed"
    if token:
        why = "" if space.is_host else token.lacks(needed, space.issuer)
    if token is None or why:
        return AccessError(f"{uri}: refused (status {status}): {why}; renew it, see `crpipe token`")
    reason = f"refused (status {status}): the token from {token.place} is refused"
    if not space.is_host:  # which names no path that scopes are relative to
        reason += f"; the scope needed is {needed}"
    late = status == 401 and bool(token.claims)  # noqa: PLR2004
    return TemporaryFailure(reason, Failure.SERVER_BUSY if late else Failure.DENIED)


def authorization(token: Token | None) -> dict[str, str]:
    """Return the header that carries a token; nothing for namespaces that need none."""
    return {"Authorization": f"Bearer {token.text}"} if token else {}


def _url(server: str, path: str) -> str:
    return server + quote(path)


def _check_time(entry: Entry, answer: Answer, space: Namespace) -> None:
    """Raise ChangedError when a server names another time than its listing; that of a cache says nothing."""
    now = answer.mtime if space.is_host else None
    if now and entry.mtime and now != entry.mtime.replace(microsecond=0):
        raise ChangedError(
            f"{entry.uri}: last written {now:{_TIME}}, {entry.mtime:{_TIME}} when it was listed: it changed"
        )


def _taker(
    entry: Entry, answer: Answer, copy: PartialFile, space: Namespace, server: str
) -> Callable[[bytes], None]:
    """Write the body of an answer to the copy; raise TemporaryFailure when it is not the rest of the file."""
    compressed = answer.compression(copy.size, copy.size - copy.kept)
    if compressed and space.is_host:
        raise SourceError(f"{entry.uri}: {compressed}, or copy it by other means")
    if compressed:  # another cache may send it as it is
        raise TemporaryFailure(f"{server}: {compressed}")
    _position(answer, copy, server)
    promised = answer.length
    if promised is not None and copy.position + promised != copy.size:
        raise _other_size(server, copy.position + promised, copy.size)
    return copy.write


def _position(answer: Answer, copy: PartialFile, server: str) -> None:
    """Find where the body starts: a server may ignore the range and send everything."""
    if answer.status == 200:  # noqa: PLR2004
        if copy.kept:
            copy.restart()
        return
    span = _RANGE.match(answer.header("Content-Range"))
    if span is None or int(span[1]) != copy.kept:
        copy.restart()  # the next try asks for no range
        raise TemporaryFailure(f"{server}: answers another range than the one asked for")
    if span[3] != "*" and int(span[3]) != copy.size:
        raise _other_size(server, int(span[3]), copy.size)


def _other_size(server: str, offered: int, size: int) -> TemporaryFailure:
    return TemporaryFailure(
        f"{server}: offers {offered} bytes, the manifest says {size}; if the source changed, delete the "
        "manifest to list the range again",
        Failure.WRONG_BYTES,
    )


def _cut(server: str, copy: PartialFile, why: str) -> TemporaryFailure:
    have = copy.position
    return TemporaryFailure(
        f"{server}: {why} after {have} of {copy.size} bytes",
        Failure.PROGRESS_MADE if have > copy.kept else Failure.FILE,
    )
