"""One WebDAV listing: the XML that a data server sends for a directory; nothing in it may slip."""

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
    """One file of a listing; ``size`` is None when the server does not tell it."""

    name: str
    size: int | None
    mtime: datetime | None


def parse_listing(body: bytes, folder: str) -> list[Listed]:
    """Read the files of a PROPFIND answer for ``folder``, without directories.

    Raise ValueError, saying what is wrong, for anything that is not a whole listing of that directory.
    """
    try:
        tree = ET.fromstring(body)  # noqa: S314 - expat 2.4 and newer bound the growth of entities
    except ET.ParseError as error:
        raise ValueError(f"the listing is not whole XML ({error})") from error
    if tree.tag != f"{_DAV}multistatus":
        raise ValueError("the answer is not a WebDAV listing")
    return list(_files(tree, folder.rstrip("/")))


def _files(tree: ET.Element, folder: str) -> Iterator[Listed]:
    for response in tree.findall(f"{_DAV}response"):
        href = response.findtext(f"{_DAV}href")
        if not href:
            raise ValueError("the listing holds an entry without a name")
        path = unquote(urlsplit(href).path).rstrip("/")
        if path == folder or response.find(f".//{_DAV}collection") is not None:
            continue
        yield Listed(
            path.rpartition("/")[2],
            _size(response.findtext(f".//{_DAV}getcontentlength")),
            when(response.findtext(f".//{_DAV}getlastmodified")),
        )


def _size(text: str | None) -> int | None:
    return int(text) if text and text.strip().isdigit() else None


def when(text: str | None) -> datetime | None:
    """Read an HTTP date; None when there is none."""
    try:
        return parsedate_to_datetime(text).astimezone(UTC) if text else None
    except ValueError:
        return None
