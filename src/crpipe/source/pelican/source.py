"""Raw files in a Pelican federation (pelican://, osdf://): list a range's directory, look up files, copy one.

pelicanfs finds the servers. Listings go over its HTTP session directly, because pelicanfs answers an empty
list for a damaged one; copies go over libcurl, because pelicanfs cannot resume or verify.
"""

from __future__ import annotations

import fnmatch
from typing import TYPE_CHECKING

import aiohttp
from yarl import URL

from crpipe.core.errors import ListingError
from crpipe.core.raw_files import Entry
from crpipe.source.flush import Steps
from crpipe.source.pelican.curl import Curl
from crpipe.source.pelican.director import BUSY, NOT_FOUND, Director, cause
from crpipe.source.pelican.tokens import Tokens
from crpipe.source.pelican.transfer import DENIED, Renewed, Transfer, authorization
from crpipe.source.pelican.webdav import parse_listing, when
from crpipe.source.retries import Transient, each, persist
from crpipe.source.uris import host_and_path

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import Self

    from crpipe.config.sections import SourceSection
    from crpipe.core.ranges import Range
    from crpipe.core.raw_files import Proof
    from crpipe.source.pelican.tokens import Token
    from crpipe.source.pelican.webdav import Listed
    from crpipe.source.retries import Deadline
    from crpipe.source.uris import RangeSource


class RemoteSource:
    """One federation as a source of raw files."""

    def __init__(self, config: SourceSection, host: str, deadline: Deadline) -> None:
        self._config = config
        self._deadline = deadline
        self._tokens = Tokens(config.token_file)
        self._federation = Director(
            host, connections=config.concurrency, read_timeout_s=config.read_timeout_s
        )
        # A copy in flight takes a connection for its bytes, and one for its checksum: with fewer than two for
        # each copy, small files wait for one another.
        self._curl = Curl(connections=2 * config.concurrency, read_timeout_s=config.read_timeout_s)

    async def __aenter__(self) -> Self:
        """Open the session."""
        await self._federation.__aenter__()
        await self._curl.__aenter__()
        self._transfer = Transfer(self._federation, self._curl, Steps(), self._tokens, self._config.uri)
        return self

    async def __aexit__(self, *error: object) -> None:
        """Close the session."""
        await self._curl.__aexit__(*error)
        await self._federation.__aexit__(*error)

    async def fetch(self, entry: Entry, part: Path) -> Proof:
        """Copy one file to ``part``, going on where an earlier try stopped, and verify it."""
        return await self._transfer.fetch(entry, part)

    async def entries(self, name: Range, place: RangeSource) -> Sequence[Entry]:
        """List the range's own directory; never walk, because a walk skips what it cannot list."""
        where = f"range {name}: pelican://{place.host}{place.folder}"
        try:
            found = await persist(
                lambda: self._list(where, place.folder),
                attempts=self._config.attempts,
                deadline=self._deadline,
            )
        except Transient as error:
            raise ListingError(
                f"{where}: {error}; run the same command again later, or skip the range with ranges.skip"
            ) from error
        matching = [file for file in found if fnmatch.fnmatchcase(file.name, place.pattern)]
        unknown = next((file.name for file in matching if file.size is None), None)
        if unknown:
            raise ListingError(f"{where}: the listing tells no size for {unknown}; ask the site to mend it")
        root = f"pelican://{place.host}{place.folder}"
        return [Entry(file.name, f"{root}/{file.name}", file.size, file.mtime) for file in matching]

    async def _list(self, where: str, folder: str) -> list[Listed]:
        url, guarded = await self._federation.collection(folder)
        token = self._tokens.current() if guarded else None
        headers = {"Depth": "1", **authorization(token)}
        try:
            async with self._federation.session.request(
                "PROPFIND", URL(url, encoded=True), headers=headers, raise_for_status=False
            ) as answer:
                body = await answer.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Transient(f"the listing broke off ({cause(error)})") from error
        self._judge(where, answer.status, token)
        try:
            return parse_listing(body, folder)
        except ValueError as error:
            raise Transient(str(error)) from error

    def _judge(self, where: str, status: int, token: Token | None) -> None:
        """Raise what an HTTP status other than success means for a listing."""
        if status < 300:  # noqa: PLR2004 - 200 OK and 207 Multi-Status
            return
        if status in DENIED:
            if token and self._tokens.renew(token):
                raise Renewed
            raise ListingError(f"{where}: listing refused (status {status}); see `crpipe token`")
        if status in NOT_FOUND:
            raise ListingError(
                f"{where}: no such directory (status {status}); check source.uri, or skip the range with "
                "ranges.skip"
            )
        raise Transient(f"the server answers {status}", outage=status in BUSY)

    async def describe(self, uris: Sequence[str], paths: Sequence[str]) -> Sequence[Entry]:
        """Look up size and time of named files, several at once."""
        found: dict[str, Entry] = {}

        async def look_up(item: tuple[str, str]) -> None:
            uri, path = item
            found[path] = await persist(
                lambda: self._head(uri, path), attempts=self._config.attempts, deadline=self._deadline
            )

        try:
            await each(zip(uris, paths, strict=True), look_up, self._config.concurrency)
        except Transient as error:
            raise ListingError(f"source.files: {error}; run the same command again later") from error
        return [found[path] for path in paths]

    async def _head(self, uri: str, path: str) -> Entry:
        answer = await self._transfer.look_up(host_and_path(uri)[1])
        if answer.status in {*NOT_FOUND, *DENIED}:
            raise ListingError(f"{uri}: cannot be looked up (status {answer.status}); correct source.files")
        if answer.status >= 300 or answer.length is None:  # noqa: PLR2004
            raise Transient(f"{uri}: the server answers {answer.status} without a size")
        return Entry(path, uri, answer.length, when(answer.header("Last-Modified")))
