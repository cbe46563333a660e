"""Parse a WebDAV listing, the XML that a data server sends for a directory; refuse what is not whole."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree as ET

if TYPE_CHECKING:
    from collections.abc import Iterator

_DAV = "{DAV:}"


@dataclass(frozen=True, slots=True)
class Listed:
    """One file or directory of a listing; ``size`` is None when the server does not name it."""

    name: str
    size: int | None
    mtime: datetime | None
    is_folder: bool = False


def parse_listing(body: bytes, folder: str) -> list[Listed]:
    """Read the entries of a PROPFIND answer for ``folder``, but for the directory itself.

    Raise ValueError, with what is wrong, for anything that is not a whole listing of that directory.
    """
    try:
        tree = ET.fromstring(body)  # noqa: S314 - expat 2.4 and newer bound the growth of entities
    except ET.ParseError as error:
        raise ValueError(f"the listing is not whole XML ({error})") from error
    if tree.tag != f"{_DAV}multistatus":
        raise ValueError("the answer is not a WebDAV listing")
    return list(_entries(tree, folder.rstrip("/")))


def _entries(tree: ET.Element, folder: str) -> Iterator[Listed]:
    for response in tree.findall(f"{_DAV}response"):
        href = response.findtext(f"{_DAV}href")
        if not href:
            raise ValueError("the listing holds an entry without a name")
        path = unquote(urlsplit(href).path).rstrip("/")
        if path == folder:
            continue
        parent, _, name = path.rpartition("/")
        if parent != folder or name in {".", ".."}:
            raise ValueError(f"the listing of {folder} holds {path}, which is not in it")
        yield Listed(
            name,
            _size(response.findtext(f".//{_DAV}getcontentlength")),
            when(response.findtext(f".//{_DAV}getlastmodified")),
            response.find(f".//{_DAV}collection") is not None,
        )


def _size(text: str | None) -> int | None:
    return int(text) if text and text.strip().isdigit() else None


def when(text: str | None) -> datetime | None:
    """Read an HTTP date; None when there is none."""
    try:
        return parsedate_to_datetime(text).astimezone(UTC) if text else None
    except (ValueError, OverflowError):
        return None
