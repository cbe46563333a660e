"""The file of a ledger: its sums come first, so that nobody reads the rows of 20,000 files for them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from crpipe.core.files import read_json, write_text
from crpipe.core.paths import wrong_form

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_FILES = b' "files": [\n'  # a line of the top level: no text in JSON holds a line's end
_END = b"\n ]\n}\n"


def write_ledger(path: Path, ledger: Mapping[str, Any]) -> None:
    """Write a ledger atomically: its sums, sorted and indented, then a line for each of its ``files``."""
    sums = {name: value for name, value in ledger.items() if name != "files"}
    head = json.dumps(sums, indent=1, sort_keys=True).removesuffix("\n}")
    rows = ",\n".join(f"  {json.dumps(row, sort_keys=True)}" for row in ledger["files"])
    write_text(path, f"{head},\n{_FILES.decode()}{rows}{_END.decode()}")


def read_sums(path: Path) -> dict[str, Any]:
    """Read a ledger without its ``files``; raise DataError when it is missing or damaged."""
    text = _sums(path) if path.exists() else None
    try:
        sums: dict[str, Any] | None = None if text is None else json.loads(text)
    except ValueError:
        sums = None
    if sums is None or wrong_form(path, sums | {"files": []}):
        whole = read_json(path)  # it says what is wrong, and what to type
        sums = {name: value for name, value in whole.items() if name != "files"}
    return sums


def read_sums_if_any(path: Path) -> dict[str, Any] | None:
    """Read a ledger without its ``files``, None when there is none; raise DataError when it is damaged."""
    return read_sums(path) if path.exists() else None


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
        size = file.seek(0, 2)
        file.seek(max(0, size - len(_END)))
        if file.read() != _END:
            return None
    return b"".join(lines).rstrip().removesuffix(b",") + b"}"
