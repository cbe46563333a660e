"""Raw files behind fsspec: XRootD (root://), S3 and its like (s3://), Google (gs://) and Azure (abfs://).

A checksum counts only where the server's answer names its algorithm. The library finds the credentials.
"""

from __future__ import annotations

import asyncio
import re
import threading
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self, TypeVar

from crpipe.campaign.raw_files import LISTED, SIZE_ONLY, Entry, Verification
from crpipe.core import checksums
from crpipe.core.errors import AccessError, ChangedError, ConfigError, ListingError, require
from crpipe.source.local import file_type_problem
from crpipe.source.pelican.download import PartialFile
from crpipe.source.retries import Failure, TemporaryFailure, redact
from crpipe.source.uris import RangeSource, SourceOptions, host_and_path, uri_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


Answer = TypeVar("Answer")
Info = dict[str, Any]

PIECE = 1 << 24  # bytes of one request
CLIENT_S = 60.0  # that XRootD's client may take longer than its timeout
_EXTRA = "remote"
_UNTRIED = "cloud"
_HTTP = "aiohttp:ClientError"  # what the libraries leave as it is where a body breaks off
_LIBRARIES = {  # module, extra, and the bases of the errors that are no OSError
    "root": ("fsspec_xrootd", _EXTRA, ()),
    "s3": ("s3fs", _EXTRA, ("botocore.exceptions:BotoCoreError", _HTTP)),
    "gs": ("gcsfs", _UNTRIED, ("gcsfs.retry:HttpError", _HTTP)),
    "abfs": ("adlfs", _UNTRIED, ("azure.core.exceptions:AzureError", _HTTP)),
}
_SECOND = timedelta(seconds=1)  # MinIO and Ceph list milliseconds, and name whole seconds for one object
_TIMES = ("mtime", "LastModified", "last_modified", "updated")
_MISSING = ("[3011]", "no such file", "unable to locate", "not found", "does not exist")
_REFUSED = re.compile(
    r"\[3010\]|permission denied|not authorized|auth failed|forbidden|credential|profilenotfound"
    "|invalidconfig|ssotoken|tokenretrieval|provided token|bad request"  # so S3, to HEAD, of an old token
)
_SUBMITTED = re.compile(r"Failed to submit .* request: ")  # names an address in memory
_CREDENTIALS = "docs/pelican.md says where credentials are found"
_NAMES_NONE = ("[3013]", "not supported")  # XRootD's answer where no checksum is configured


def named_checksum(fs: Any, scheme: str, path: str, info: Info) -> tuple[str, str] | None:
    """Ask for the checksum of a file as (algorithm, hexadecimal); None where the answer names no algorithm.

    An ETag is none: of an object in parts it is no hash of the content. So is a checksum of parts.
    """
    if scheme == "root":
        try:
            algorithm, value = fs.checksum(path)
        except OSError as error:
            if any(words in str(error) for words in _NAMES_NONE):
                return None
            raise
        named = {algorithm.lower(): value}
    elif scheme == "s3":
        bucket, _, name = path.partition("/")
        head = fs.call_s3("head_object", Bucket=bucket, Key=name, ChecksumMode="ENABLED")
        whole = head.get("ChecksumType") == "FULL_OBJECT"
        named = {each: head.get(f"Checksum{each.upper()}") for each in checksums.DIGITS} if whole else {}
    elif scheme == "gs":
        named = {"crc32c": info.get("crc32c"), "md5": info.get("md5Hash")}
    else:
        content = (info.get("content_settings") or {}).get("content_md5")
        named = {"md5": bytes(content).hex() if content else None}
    for algorithm in checksums.DIGITS:
        value = checksums.decode(algorithm, named.get(algorithm) or "")
        if value:
            return algorithm, value
    return None


class _Outcome(Future[Answer]):
    """What the block that it is entered for returns or raises."""

    def __enter__(self) -> None:
        """Begin the block."""

    def __exit__(self, _kind: object, error: BaseException | None, _where: object) -> bool:
        """Take what the block raised."""
        if error is not None:
            self.set_exception(error)
        return True


class FsspecSource:
    """One server or bucket as a source of raw files; the library works in threads of its own."""

    def __init__(self, options: SourceOptions, scheme: str, host: str) -> None:
        self._options = options
        self._scheme = scheme
        self._host = host
        self._is_closed = False

    async def __aenter__(self) -> Self:
        """Open the library's file system, or raise MissingExtra; nothing is connected yet."""
        module, extra, errors = _LIBRARIES[self._scheme]
        require(module, extra=extra, why=f"to read {self._scheme}://")
        bases = [each.partition(":") for each in errors]
        self._errors = (OSError, *(getattr(import_module(name), base) for name, _, base in bases))
        from fsspec import get_filesystem_class  # noqa: PLC0415 - 0.2 s that other sources do not pay

        seconds = self._options.read_timeout_s
        limits: dict[str, Any] = {}
        if self._scheme == "root":
            limits = {"timeout": max(1, int(seconds))}
        elif self._scheme == "s3":
            limits = {"config_kwargs": {"connect_timeout": min(10.0, seconds), "read_timeout": seconds}}
        kind: Any = get_filesystem_class(self._scheme)
        # Not url_to_fs, for which the :: of an IPv6 address begins another URL.
        named = kind._get_kwargs_from_urls(f"{self._scheme}://{self._host}/")  # noqa: SLF001
        self._fs: Any = kind(**named, skip_instance_cache=True, use_listings_cache=False, **limits)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close what the library keeps open; a call that still runs changes nothing any more."""
        self._is_closed = True
        if self._scheme == "root":
            await self._call(self._fs.invalidate_cache)

    async def fetch(self, entry: Entry, part: Path) -> Verification:
        """Copy one file to ``part``, from where an earlier try stopped, and verify it."""
        return await self._call(self._copy, entry, part)

    async def checksum(self, uri: str) -> tuple[int, tuple[str, str] | None]:
        """Ask for size and checksum of a file; None where the server names none."""
        info = await self._call(self._info, uri)
        return int(info["size"]), await self._call(self._named, uri, info)

    async def listing(
        self, location: RangeSource, chosen: Callable[[str], bool]
    ) -> tuple[list[Entry], list[str]]:
        """List the chosen files of one directory, and name the directories in it."""
        uri = self._uri(location, "")
        folder = self._path(uri).rstrip("/") or "/"
        where = f"{location.what}: {uri}"
        listed = await self._call(self._ask, where, partial(self._ls, folder, where))
        paths = [(str(info["name"]).rstrip("/"), info) for info in listed]
        nameless = any(path == folder and info["type"] == "directory" for path, info in paths)
        if nameless and location.deep and self._scheme == "s3":
            raise ListingError(
                f"{location.what}: {uri} has keys that go on with a second /, which are not listed; name the "
                "files in source.files, or rename them"
            )
        named = [(path.rpartition("/")[2], info) for path, info in paths if path != folder]
        files = [(name, info) for name, info in named if info["type"] != "directory" and chosen(name)]
        folders = [name for name, info in named if info["type"] == "directory"]
        return [_entry(name, self._uri(location, name), info) for name, info in files], folders

    async def look_up(self, uri: str, path: str, key: str) -> Entry:
        """Look up size and time of a file."""
        info = await self._call(self._info, uri)
        if info["type"] == "directory":
            raise ListingError(f"{uri}: is a directory; correct {key}")
        return _entry(path, uri, info)

    def _ls(self, folder: str, where: str) -> list[Info]:
        """List a directory; raise ListingError where XRootD's client forgets the answer."""
        if self._scheme != "root":
            return list(self._fs.ls(folder, detail=True))
        try:  # its own limit ends all other waiting before
            limit_s = 2 * self._options.read_timeout_s + CLIENT_S
            return list(self._fs.ls(folder, detail=True, timeout=limit_s))
        except TimeoutError as error:
            raise ListingError(
                f"{where}: XRootD's client has no answer after {limit_s:g} s, as where a name is not UTF-8; "
                "rename that file, or name the files in source.files"
            ) from error

    async def _call(self, work: Callable[..., Answer], *args: object) -> Answer:
        """Do blocking work in a thread that a stop or a deadline does not wait for, as for those of asyncio.

        The library of S3 asks a server that says nothing 25 times, and waits each time until its timeout.
        """
        answer = _Outcome[Answer]()
        answer.set_running_or_notify_cancel()

        def run() -> None:
            with answer:
                answer.set_result(work(*args))

        threading.Thread(target=run, daemon=True).start()
        return await asyncio.wrap_future(answer)

    def _copy(self, entry: Entry, part: Path) -> Verification:
        size, listed = entry.size or 0, entry.listed
        info = self._info(entry.uri)
        _check_listed(entry, info)
        named = (listed.algorithm, listed.value) if listed else self._named(entry.uri, info)
        if named is None:
            part.unlink(missing_ok=True)  # nothing would show that the pieces are of one file
        algorithm, expected = named or (checksums.OWN, "")
        with PartialFile(part, size, algorithm) as copy:
            self._read(entry.uri, copy.position, size, copy.write)
            checksum = copy.checksum()
        _check_listed(entry, self._info(entry.uri))
        if expected and checksum != expected:
            part.unlink()
            says = listed.where if listed else "the source"
            raise TemporaryFailure(
                f"{algorithm} is {checksum}, {says} says {expected}: bytes were changed on the way",
                Failure.WRONG_BYTES,
            )
        problem = "" if expected else file_type_problem(part, entry.path)
        if problem:
            part.unlink()
            raise TemporaryFailure(f"what came {problem}", Failure.WRONG_BYTES)
        way = LISTED if listed else "source-checksum" if expected else SIZE_ONLY
        return Verification(size, checksum, algorithm, way)

    def _read(self, uri: str, start: int, size: int, write: Callable[[bytes], object]) -> None:
        """Pass the bytes from ``start`` on to ``write`` piece by piece."""
        for begin in range(start, size, PIECE):
            end = min(size, begin + PIECE)
            piece = self._ask(uri, partial(self._fs.cat_file, self._path(uri), start=begin, end=end))
            if len(piece) != end - begin:
                raise TemporaryFailure(f"{len(piece)} of {end - begin} bytes came")
            write(piece)

    def _named(self, uri: str, info: Info) -> tuple[str, str] | None:
        path = self._path(uri)
        return self._ask(uri, lambda: named_checksum(self._fs, self._scheme, path, info))

    def _info(self, uri: str) -> Info:
        path = self._path(uri)
        return self._ask(uri, lambda: dict(self._fs.info(path)))

    def _ask(self, where: str, question: Callable[[], Answer]) -> Answer:
        """Ask the library; raise TemporaryFailure for what may pass, and AccessError for a refusal."""
        try:
            answer = question()
        except self._errors as error:
            text = " ".join(redact(_SUBMITTED.sub("", str(error)) or type(error).__name__).split())
            words = f"{type(error).__name__} {text}".lower()
            if isinstance(error, PermissionError) or _REFUSED.search(words):
                raise AccessError(f"{where}: refused ({text}); {_CREDENTIALS}") from error
            is_answer = isinstance(
                error, OSError
            )  # others are of the library itself: no login, no connection
            if isinstance(error, FileNotFoundError) or (
                is_answer and any(each in words for each in _MISSING)
            ):
                raise TemporaryFailure(f"{where}: not there ({text})", Failure.MISSING) from error
            raise TemporaryFailure(f"{where}: {text}", Failure.SERVER_BUSY) from error
        except (ValueError, RecursionError) as error:  # the latter of S3, where a redirect names no place
            reason = "it is redirected without end" if isinstance(error, RecursionError) else error
            raise ConfigError(f"{where}: {reason}; correct the address, or AWS_ENDPOINT_URL") from error
        if self._is_closed:  # nobody waits for this copy, and another job may make it now
            raise TemporaryFailure(f"{where}: closed meanwhile")
        return answer

    def _path(self, uri: str) -> str:
        host, path = host_and_path(uri)
        return path if self._scheme == "root" else f"{host.partition('@')[0]}{path}"

    def _uri(self, location: RangeSource, name: str) -> str:
        return uri_of(self._scheme, self._host, f"{location.folder.rstrip('/')}/{name}")


class FsspecPlace(FsspecSource):
    """A second place below one address of such a store."""

    def __init__(self, options: SourceOptions, to: str) -> None:
        scheme, _, rest = to.partition("://")
        super().__init__(options, scheme, rest.partition("/")[0])
        self._to = to.rstrip("/")

    async def send(self, file: Path, name: str) -> None:
        """Send a file; compare the checksum that the store names with the file's own, or read it back."""
        await self._call(self._send, file, f"{self._to}/{name}")

    async def size(self, name: str) -> int | None:
        """Return the size in bytes that a file has there; None where it is missing."""
        try:
            return int((await self._call(self._info, f"{self._to}/{name}"))["size"])
        except TemporaryFailure as error:
            if error.kind is Failure.MISSING:
                return None
            raise

    async def read(self, name: str, write: Callable[[bytes], object]) -> bool:
        """Pass a file to ``write`` piece by piece; return False where it is missing."""
        size = await self.size(name)
        if size is not None:
            await self._call(self._read, f"{self._to}/{name}", 0, size, write)
        return size is not None

    def _send(self, file: Path, uri: str) -> None:
        size = file.stat().st_size
        self._ask(uri, lambda: self._fs.put_file(str(file), self._path(uri)))
        info = self._info(uri)
        if int(info["size"]) != size:
            raise TemporaryFailure(f"{uri}: {info['size']} of {size} bytes arrived")
        algorithm, arrived = self._named(uri, info) or (checksums.OWN, "")
        if not arrived:
            running = checksums.new(algorithm)
            self._read(uri, 0, size, running.update)
            arrived = running.hexdigest()
        if checksums.of_file(file, algorithm) != arrived:
            raise TemporaryFailure(
                f"{uri}: what arrived has another {algorithm}, or the file changed meanwhile"
            )


def _entry(path: str, uri: str, info: Info) -> Entry:
    return Entry(path, uri, int(info["size"]), _time(info))


def _time(info: Info) -> datetime | None:
    """Return when a file was last written; each library has a name and a type of its own for that."""
    value = next((info[name] for name in _TIMES if info.get(name)), None)
    if isinstance(value, int | float):
        return datetime.fromtimestamp(value, UTC)
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    return value.astimezone(UTC) if isinstance(value, datetime) else None


def _check_listed(entry: Entry, info: Info) -> None:
    """Raise ChangedError unless a file has the size and the time of its listing."""
    size, time = int(info["size"]), _time(info)
    if size != entry.size:
        raise ChangedError(f"{entry.uri}: has {size} bytes, {entry.size} when it was listed: it changed")
    if time and entry.mtime and abs(time - entry.mtime) >= _SECOND:
        raise ChangedError(f"{entry.uri}: last written {time}, {entry.mtime} when it was listed: it changed")
