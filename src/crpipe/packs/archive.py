"""The format of packs: plain tar files whose first member names every other one, its size and its sha256.

Equal contents give equal bytes. What comes out of a pack is what went in, or a PackError.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import platform
import tarfile
from dataclasses import replace
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING

from crpipe import __version__
from crpipe.campaign.records import PackedFile, PackFailure, PackRecord
from crpipe.core.causes import is_plain
from crpipe.core.errors import ConfigError, CrpipeError, LeaseError, PackError
from crpipe.core.files import (
    atomic_write,
    clear_tree,
    digest,
    disk_errors,
    make_folder,
    refuse_links,
    remove_tree,
    sha256,
)
from crpipe.core.lease import lease

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

FORMAT = 1
NAME, FAILED = "pack.json", "failed.json"
# What packs hold: a link (a range) to work on, the state of a link between two slices, and what came out.
LINK, STATE, LINK_OUT = "link", "state of a link", "result of a link"
RANGE, RANGE_OUT = "range", "result of a range"
_BLOCK, _PADDED = tarfile.BLOCKSIZE, tarfile.RECORDSIZE
_MOST_RECORD = 256 << 20  # bytes of pack.json
_CHUNK = 1 << 20
# What a person does about a pack that is not whole, by where it is read.
SEND_AGAIN = "send it again"
BRING_AGAIN = "bring it from its node again, or run its job again"


def new_record(kind: str, run: str, name: str, key: str) -> PackRecord:
    """Return the record of a pack that this crpipe writes."""
    return PackRecord(format=FORMAT, version=__version__, kind=kind, run=run, name=name, key=key, files={})


def write_pack(
    path: Path,
    record: PackRecord,
    members: Mapping[str, Path | bytes],
    known: Mapping[str, PackedFile] | None = None,
) -> PackRecord:
    """Write a pack atomically; return its record with all files.

    members: files, or their content, by their names in the pack. known: size and sha256 where a record names
    them; with a URI the file is not in the pack. Raise PackError when a file is not what is known of it.
    """
    files = {**{name: _describe(member) for name, member in members.items()}, **(known or {})}
    record = replace(record, files=dict(sorted(files.items())), seal="")
    record = replace(record, seal=digest(record.as_json()))
    with atomic_write(path) as part, tarfile.open(part, "w", format=tarfile.GNU_FORMAT) as tar:
        text = _text(record)
        tar.addfile(_header(NAME, len(text)), BytesIO(text))
        for name, file in record.files.items():
            if file.uri is None:
                _add(tar, name, file, members[name])
    return record


def write_failure(
    out: Path,
    kind: str,
    about: PackRecord,
    error: BaseException,
    log: Iterable[str] = (),
    members: Mapping[str, Path | bytes] | None = None,
) -> None:
    """Write a pack that says why there is no result for the pack ``about``; members: what there is of it."""
    failure = PackFailure(
        kind=type(error).__name__,
        error=str(error),
        exit_code=error.exit_code if isinstance(error, CrpipeError) else 1,
        host=platform.node(),
        log=tuple(log),
    )
    text = json.dumps(failure.as_json(), indent=1, sort_keys=True) + "\n"
    record = new_record(kind, about.run, about.name, about.key)
    write_pack(out, record, {**(members or {}), FAILED: text.encode()})


def _describe(member: Path | bytes) -> PackedFile:
    if isinstance(member, bytes):
        return PackedFile(size=len(member), sha256=hashlib.sha256(member).hexdigest())
    with disk_errors(member):
        return PackedFile(size=member.stat().st_size, sha256=sha256(member))


def _header(name: str, size: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o644
    return info


def _add(tar: tarfile.TarFile, name: str, file: PackedFile, member: Path | bytes) -> None:
    try:
        opened = BytesIO(member) if isinstance(member, bytes) else member.open("rb")
    except FileNotFoundError as error:
        raise PackError(
            f"{member!s}: missing, though it is recorded; `crpipe check` says what to do"
        ) from error
    with opened as handle:
        reader = _Hashing(handle)
        try:
            tar.addfile(_header(name, file.size), reader)
        except OSError as error:
            if "unexpected end of data" not in str(error):
                raise
        if handle.read(1) or reader.hash.hexdigest() != file.sha256:
            raise PackError(
                f"{member if isinstance(member, Path) else name}: not the bytes that are recorded of it, "
                "damaged or changed meanwhile; `crpipe check` finds out and says what to do"
            )


class _Hashing:
    """A file that hashes what is read from it."""

    def __init__(self, handle: IO[bytes]) -> None:
        self._handle, self.hash = handle, hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        """Read and hash."""
        piece = self._handle.read(size)
        self.hash.update(piece)
        return piece


def read_record(path: Path, kinds: Collection[str], remedy: str) -> PackRecord:
    """Read what a pack says of itself; raise PackError unless it is whole up to there and of such a kind."""
    with _opened(path, remedy) as (tar, first):
        return _record_of(path, tar, first, kinds, remedy)


def unpack_all(path: Path, folder: Path, kinds: Collection[str], remedy: str) -> PackRecord:
    """Unpack a pack into a folder, every file verified; return its record.

    Files that the pack names by their URIs are left to the caller. Raise PackError for anything else than
    what was packed; ``remedy`` says what to do about that.
    """
    with disk_errors(folder), _opened(path, remedy) as (tar, first):
        record = _record_of(path, tar, first, kinds, remedy)
        inside = {name: file for name, file in record.files.items() if file.uri is None}
        for name, file in inside.items():
            info = tar.next()
            if info is None or not info.isreg() or (info.name, info.size) != (name, file.size):
                raise _damaged(path, f"{name} is missing or has another size", remedy)
            content = tar.extractfile(info)
            target = folder / name
            make_folder(target.parent)
            refuse_links(folder, target.parent)
            if content is None or _copy(content, target) != file.sha256:
                raise _damaged(path, f"{name} has not the sha256 that was recorded", remedy)
        if tar.next() is not None or path.stat().st_size != _size_of(len(_text(record)), inside):
            raise _damaged(path, "it has another end than it was written with", remedy)
    return record


@contextlib.contextmanager
def unpacked(pack: Path, beside: Path, kinds: Collection[str]) -> Iterator[Path]:
    """Unpack what came back into a folder in ``beside``, which is deleted at the end."""
    incoming = beside / ".incoming"
    remove_tree(incoming)
    try:
        unpack_all(pack, incoming, kinds, BRING_AGAIN)
        yield incoming
    finally:
        remove_tree(incoming)


def refuse_other_key(pack: Path, record: PackRecord, key: str, plugins: str) -> None:
    """Raise PackError unless what a pack holds gives its key here, too; plugins: what may be other."""
    if key != record.key:
        raise PackError(
            f"{pack}: {record.kind} {record.name} was packed under the key {record.key}, and what it holds "
            f"gives {key} on {platform.node()}, where {plugins} has other defaults; install the same "
            "versions on both machines, and pack it again"
        )


def _text(record: PackRecord) -> bytes:
    return (json.dumps(record.as_json(), indent=1, sort_keys=True) + "\n").encode()


def _size_of(record: int, files: Mapping[str, PackedFile]) -> int:
    """Return the bytes of a pack: a header and whole blocks for each file, and for each long name."""
    total = 2 * _BLOCK
    for name, size in ((NAME, record), *((name, file.size) for name, file in files.items())):
        longer = len(name.encode()) + 1 if len(name.encode()) > tarfile.LENGTH_NAME else 0
        total += _BLOCK + -(-size // _BLOCK) * _BLOCK
        total += (_BLOCK + -(-longer // _BLOCK) * _BLOCK) if longer else 0
    return -(-total // _PADDED) * _PADDED


def _copy(content: IO[bytes], target: Path) -> str:
    hashed = hashlib.sha256()
    with target.open("wb") as out:
        while piece := content.read(_CHUNK):
            hashed.update(piece)
            out.write(piece)
    return hashed.hexdigest()


@contextlib.contextmanager
def _opened(path: Path, remedy: str) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    """Open a pack and its first member; what tarfile raises about it inside the block is a PackError."""
    if not is_plain(path) or not path.is_file():
        raise ConfigError(f"{path}: no such pack; name the file that `crpipe pack` wrote")
    try:
        tar = tarfile.open(path, "r:")  # noqa: SIM115 - closed below
        first = tar.next()
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise _damaged(path, str(error), remedy) from error
    with tar:
        if first is None or first.name != NAME:
            raise PackError(f"{path}: not a pack of crpipe, its first file is no {NAME}")
        try:
            yield tar, first
        except (tarfile.TarError, EOFError) as error:
            raise _damaged(path, str(error), remedy) from error


def _record_of(
    path: Path, tar: tarfile.TarFile, first: tarfile.TarInfo, kinds: Collection[str], remedy: str
) -> PackRecord:
    content = tar.extractfile(first)
    try:
        record = PackRecord.from_json(json.loads(content.read(_MOST_RECORD) if content else b""))
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"{NAME}: {error}", remedy) from error
    if digest(replace(record, seal="").as_json()) != record.seal:
        raise _damaged(path, f"{NAME} is not what its seal says", remedy)
    again = "pack it again" if remedy == SEND_AGAIN else remedy
    if (record.format, record.version) != (FORMAT, __version__):
        foreign = PackError(
            f"{path}: made by crpipe {record.version}, and this is crpipe {__version__}: use the same "
            f"version on both machines (crpipe --version); {again}"
        )
        foreign.foreign = True
        raise foreign
    if record.kind not in kinds:
        wanted = " or ".join(kinds)
        raise PackError(f"{path}: is the {record.kind} {record.name}, expected the {wanted}; {again}")
    for name in record.files:
        if not _is_inside(name):
            raise _damaged(path, f"{name!r} is no name of a file in it", remedy)
    return record


def _damaged(path: Path, why: str, remedy: str) -> PackError:
    error = PackError(f"{path}: this pack is damaged ({why}); {remedy}")
    error.damaged = True
    return error


def _is_inside(name: str) -> bool:
    parts = PurePosixPath(name).parts
    return bool(parts) and not name.startswith("/") and not {"..", "."} & {*parts} and "\0" not in name


@contextlib.contextmanager
def working_folder(out: Path, say: Callable[[str], None]) -> Iterator[Path]:
    """Hold a folder beside ``out`` for the work on a pack, and delete it at the end, however that comes.

    What a killed process left in it is the caller's to delete. Raise LeaseError while another one has it.
    """
    work = out.with_name(f".{out.name}.work")
    try:
        with lease(work, wait_s=0.0, say=say) as held:
            try:
                yield work
            finally:
                with contextlib.suppress(LeaseError):  # taken over by another host: it is that one's now
                    held.check()
                    _empty(work)
    finally:
        with contextlib.suppress(OSError):  # another process may have begun in it
            work.rmdir()


def _empty(work: Path) -> None:
    """Delete all in a folder, the lease last: whoever makes it again has the folder from then on."""
    for path in sorted(work.iterdir(), key=lambda path: path.name == "lease"):
        clear_tree(path) if path.is_dir() else path.unlink(missing_ok=True)
