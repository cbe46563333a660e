"""Raw files in a Pelican federation or on one web server: list a directory, look up files, copy one.

pelicanfs finds the servers of a federation; https:// and davs:// name theirs. Listings and copies go over
one HTTP session directly: pelicanfs answers an empty list for a damaged one, and its copies neither resume
nor verify.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self
from urllib.parse import quote

from crpipe.campaign.raw_files import Entry, Verification
from crpipe.core.errors import AccessError, ListingError
from crpipe.source.pelican.director import BUSY, NOT_FOUND, Director, Namespace, SingleHost
from crpipe.source.pelican.download import Answer, DownloadError, Downloads
from crpipe.source.pelican.tokens import Token, Tokens
from crpipe.source.pelican.transfer import (
    DENIED,
    Renewed,
    Transfer,
    authorization,
    refusal,
    try_with_token,
)
from crpipe.source.pelican.webdav import Listed, parse_listing
from crpipe.source.retries import AdaptiveDiskCalls, Deadline, Failure, TemporaryFailure
from crpipe.source.uris import FEDERATIONS, LISTS_NONE, RangeSource, SourceOptions, http_url, uri_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


LISTING_BYTES = 1 << 27  # of one directory: about 200,000 files
_LISTS_NOTHING = {400, 405, 415, 501}
_SIZELESS = {200, 405, 501}  # as an answer to HEAD without a size: it will be the same the next time


class RemoteSource:
    """One federation, or one web server, as a source of raw files."""

    def __init__(self, options: SourceOptions, scheme: str, host: str, deadline: Deadline) -> None:
        self._options = options
        self._scheme = scheme
        self._tokens = Tokens(options.token_file, deadline.say_once)
        # A copy in flight takes a connection for its bytes, and one for its checksum: with fewer than two for
        # each copy, small files wait for one another.
        kind, where = (Director, host) if scheme in FEDERATIONS else (SingleHost, http_url(scheme, host))
        self._federation = kind(
            where, connections=2 * options.concurrency, read_timeout_s=options.read_timeout_s
        )

    async def __aenter__(self) -> Self:
        """Open the session."""
        await self._federation.__aenter__()
        self._downloads = Downloads(self._federation.session)
        self._transfer = Transfer(
            self._federation,
            self._downloads,
            AdaptiveDiskCalls(),
            self._tokens,
            require_checksum=self._options.requires_checksum(f"{self._scheme}://host/"),
        )
        return self

    async def __aexit__(self, *error: object) -> None:
        """Close the session."""
        await self._federation.__aexit__(*error)

    async def fetch(self, entry: Entry, part: Path) -> Verification:
        """Copy one file to ``part``, from where an earlier try stopped, and verify it."""
        return await self._transfer.fetch(entry, part)

    async def listing(
        self, location: RangeSource, chosen: Callable[[str], bool]
    ) -> tuple[list[Entry], list[str]]:
        """List one directory; never walk, because a walk skips what it cannot list."""
        listed = await self._list(location)
        files = [file for file in listed if not file.is_folder and chosen(file.name)]
        unknown = next((file.name for file in files if file.size is None), None)
        if unknown:
            raise ListingError(
                f"{_where(location)}: the listing names no size for {unknown}; report it to the site"
            )
        entries = [Entry(file.name, _uri(location, file.name), file.size, file.mtime) for file in files]
        return entries, [file.name for file in listed if file.is_folder]

    async def _list(self, location: RangeSource) -> list[Listed]:
        folder = location.folder
        space = await self._federation.collection(folder)
        url = space.collections + quote(folder, errors="surrogateescape")
        token = self._tokens.current() if space.guarded else None
        headers = {"Depth": "1", **authorization(token)}
        body = bytearray()

        def keep(piece: bytes) -> None:
            body.extend(piece)
            if len(body) > LISTING_BYTES:
                raise ListingError(
                    f"{_where(location)}: the listing is larger than {LISTING_BYTES >> 20} MiB; put the "
                    "files into smaller directories, or name them in source.files"
                )

        try:
            answer = await self._downloads.get(url, headers, lambda _: keep, "PROPFIND")
            if space.is_host and answer.status in _LISTS_NOTHING:  # as nginx without the / of its location
                body.clear()
                answer = await self._downloads.get(f"{url}/", headers, lambda _: keep, "PROPFIND")
        except DownloadError as error:
            raise TemporaryFailure(
                f"the listing broke off ({error})", Failure.SERVER_BUSY if error.outage else Failure.FILE
            ) from error
        self._check_status(location, answer, space, token)
        try:
            return parse_listing(bytes(body), folder)
        except ValueError as error:
            if packed := answer.compression():
                raise ListingError(f"{_where(location)}: the listing {packed}{LISTS_NONE}") from error
            raise TemporaryFailure(str(error)) from error

    def _check_status(
        self, location: RangeSource, answer: Answer, space: Namespace, token: Token | None
    ) -> None:
        """Raise what an HTTP status other than success means for a listing."""
        status = answer.status
        if status < 300:  # noqa: PLR2004 - 200 OK and 207 Multi-Status
            return
        if status in DENIED:
            if token and self._tokens.reload(token):
                raise Renewed
            if not token:
                try:
                    try_with_token(_uri(location, ""), status, space, self._tokens)
                except AccessError as error:  # a plain server may refuse all methods but GET and HEAD
                    raise AccessError(f"{error}{LISTS_NONE}") from error
            refused = refusal(_uri(location, ""), answer, space, token)
            if isinstance(refused, TemporaryFailure) or answer.elsewhere:
                raise refused
            raise AccessError(f"{_where(location)}: listing refused (status {status}); see `crpipe token`")
        if status in NOT_FOUND:
            raise TemporaryFailure(f"no such directory (status {status})", Failure.MISSING)
        if space.is_host and status in _LISTS_NOTHING:
            raise ListingError(
                f"{_where(location)}: the server lists no directories (status {status} to PROPFIND); name "
                "the files in source.files"
            )
        raise _failure(answer, f"the server answers {status}")

    async def look_up(self, uri: str, path: str, _key: str = "") -> Entry:
        """Look up size and time of a file."""
        answer = await self._transfer.look_up(uri)
        if answer.status in NOT_FOUND:
            raise TemporaryFailure(f"{uri}: cannot be looked up (status {answer.status})", Failure.MISSING)
        if answer.status < 300 and answer.length is not None:  # noqa: PLR2004
            return Entry(path, uri, answer.length, answer.mtime)
        if answer.status not in _SIZELESS:
            raise _failure(answer, f"{uri}: the server answers {answer.status} without a size")
        raise ListingError(
            f"{uri}: the server names no size (status {answer.status} to HEAD), as many do of what "
            "they make while they send it; copy the file by other means, and name the copy"
        )

    async def checksum(self, uri: str) -> tuple[int, tuple[str, str] | None]:
        """Ask for the size of a file and its checksum, of the origin before a cache."""
        entry = await self.look_up(uri, uri)
        named = await self._transfer.checksum(entry)
        return entry.size or 0, named and named[:2]


def _failure(answer: Answer, text: str) -> TemporaryFailure:
    """Return the failure of a request that may be tried again, once a busy server wants it."""
    if answer.status in BUSY:
        return TemporaryFailure(text, Failure.SERVER_BUSY, pause_s=answer.retry_after)
    return TemporaryFailure(text)


def _where(location: RangeSource) -> str:
    return f"{location.what}: {_uri(location, '').rstrip('/')}"


def _uri(location: RangeSource, name: str) -> str:
    return uri_of(location.scheme, location.host, f"{location.folder.rstrip('/')}/{name}")
