"""The file of a ledger: its sums come first, so that nobody reads the rows of 20,000 files for them.

Its last line, ``contents``, has a key of each file's content: 8 bytes for each row of ``files``, in base64.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crpipe.campaign.raw_files import STAGED
from crpipe.core.causes import is_present, is_there, persist
from crpipe.core.errors import DataError
from crpipe.core.files import read_json, write_text
from crpipe.core.paths import wrong_form

if TYPE_CHECKING:
    from collections.abc import Iterable

_FILES = b' "files": [\n'  # a line of the top level: no text in JSON holds a line's end
_END = b"\n ]\n}\n"  # of a ledger without contents, as earlier versions wrote them
_CONTENTS = re.compile(rb'\n \],\n "contents": "([A-Za-z0-9+/=]*)"\n}\n\Z')
_BLOCK = 1 << 18


def write_ledger(path: Path, ledger: Mapping[str, Any]) -> None:
    """Write a ledger atomically: its sums, sorted and indented, a line for each of its ``files``, contents.

    Contents are made from the files, whatever the ledger says of them.
    """
    sums = {name: value for name, value in ledger.items() if name not in {"files", "contents"}}
    head = json.dumps(sums, indent=1, sort_keys=True).removesuffix("\n}")
    rows = ",\n".join(f"  {json.dumps(row, sort_keys=True)}" for row in ledger["files"])
    end = f'\n ],\n "contents": "{contents_of(ledger["files"])}"\n}}\n'
    write_text(path, f"{head},\n{_FILES.decode()}{rows}{end}")


def contents_of(files: Iterable[Mapping[str, Any]]) -> str:
    """Give the value of ``contents`` for some rows of ``files``."""
    return base64.b64encode(content_keys(files)).decode()


def content_keys(files: Iterable[Mapping[str, Any]]) -> bytes:
    """Give 8 bytes for each row of a ledger's ``files``: equal for equal content, 0 where nothing can double.

    Example: a file that was set aside, or that holds no events, has 0.
    """
    return b"".join(
        blake2b(
            f"{row['size']} {row['algorithm']} {row['checksum']} {row['events']} {row['items']}".encode(),
            digest_size=8,
        ).digest()
        if row["state"] == STAGED and row["events"] and row["checksum"]
        else bytes(8)
        for row in files
    )


def read_contents(path: Path) -> bytes:
    """Read the keys of the contents of a range's files; raise DataError for a damaged ledger.

    Only the end of the file is read, but in a ledger of an earlier version. Empty where there is no ledger.
    """
    try:
        found = persist(lambda: _contents(path))
        if found is None:
            return content_keys(read_json(path)["files"])
        return base64.b64decode(found, validate=True)
    except FileNotFoundError:
        return b""
    except (binascii.Error, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: damaged ({error}); `crpipe check` says how to repair it") from error


def read_sums(path: Path) -> dict[str, Any]:
    """Read a ledger without its ``files``; raise DataError when it is missing or damaged."""
    text = persist(lambda: _sums(path)) if is_present(path) else None
    try:
        sums: dict[str, Any] | None = None if text is None else json.loads(text)
    except ValueError:
        sums = None
    if sums is None or wrong_form(path, sums | {"files": []}):
        whole = read_json(path)  # it says what is wrong, and what to type
        sums = {name: value for name, value in whole.items() if name not in {"files", "contents"}}
    return sums


def read_sums_if_any(path: Path) -> dict[str, Any] | None:
    """Read a ledger without its ``files``, None when there is none; raise DataError when it is damaged."""
    return read_sums(path) if is_present(path) else None


def _sums(path: Path) -> bytes | None:
    """Give the text of the sums; None where the file was cut, or was not written by ``write_ledger``."""
    lines = []
    with path.open("rb") as file:
        for line in file:
            if line == _FILES:
                break
            lines.append(line)
        else:
            return None
    if _contents(path) is None:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - len(_END)))
            if file.read() != _END:
                return None
    return b"".join(lines).rstrip().removesuffix(b",") + b"}"


def _contents(path: Path) -> bytes | None:
    """Give the text of the contents at the end of a ledger, None where it has none."""
    with path.open("rb") as file:
        size, end = file.seek(0, 2), b""
        # Block by block from the end, until the line before that of the contents is there.
        while len(end) < size and end.count(b"\n", 0, -len(_END)) < 2:  # noqa: PLR2004 - both its ends
            file.seek(max(0, size - len(end) - _BLOCK))
            end = file.read(min(_BLOCK, size - len(end))) + end
        found = _CONTENTS.search(end)
    return found[1] if found else None


# Side tables of a campaign: files that hold for all ranges, such as a geometry or a list of dead channels.
#
# ``source.tables`` names them; the tables job stages each once, verified, and records its hash.


Tables = Mapping[str, Path]  # the name in source.tables -> the verified copy


def read_tables(record: Path) -> dict[str, dict[str, Any]]:
    """Read tables.json: {name: {uri, path, size, sha256}}; empty when the campaign has no side tables yet."""
    if not is_present(record):
        return {}
    found: dict[str, dict[str, Any]] = read_json(record)
    return found


def table_paths(record: Path) -> dict[str, Path]:
    """Find the copy of each side table; raise DataError when one is missing or has another size."""
    paths = {}
    for name, row in read_tables(record).items():
        path = record.parent / row["path"]
        if not is_there(path) or persist(path.stat).st_size != row["size"]:
            raise DataError(
                f"{path}: the copy of table {name} is missing or has another size; delete {record} and run "
                "the same command again"
            )
        paths[name] = path
    return paths


def table_keys(record: Path) -> dict[str, str]:
    """Return the hashes of the side tables as keys for a fingerprint: {"tables.NAME": sha256}."""
    return {f"tables.{name}": row["sha256"] for name, row in read_tables(record).items()}
