"""Parse a WebDAV listing, the XML that a data server sends for a directory; refuse what is not whole."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING
from urllib.parse import unquote
from xml.etree import ElementTree as ET

if TYPE_CHECKING:
    from collections.abc import Iterator

_DAV = "{DAV:}"
_ELEMENTS = {f"{_DAV}{name}" for name in ("response", "responsedescription", "sync-token")}
_HOST = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://[^/]*")
_NEVER_ESCAPED = re.compile(r'%(?![0-9a-fA-F]{2})|[^!-"$->@-~]')
_SLASHES = re.compile("//+")  # servers write one where the address has two
_DIGITS = 18  # of a size; more do not fit into 64 bits


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
    return list(_entries(tree, _SLASHES.sub("/", folder).rstrip("/")))


def _entries(tree: ET.Element, folder: str) -> Iterator[Listed]:
    responses = tree.findall(f"{_DAV}response")
    other = next((child.tag for child in tree if child.tag not in _ELEMENTS), "")
    if other:
        raise ValueError(f"the listing holds {other!r} beside its entries")
    paths = _paths([response.findtext(f"{_DAV}href") or "" for response in responses])
    for response, path in zip(responses, paths, strict=True):
        if path == folder:
            continue
        parent, _, name = path.rpartition("/")
        if parent != folder or name in {".", ".."}:
            raise ValueError(f"the listing of {folder} holds {path!r}, which is not in it")
        texts = {each.tag: each.text for each in reversed(list(response.iter()))}  # the first of each tag
        yield Listed(
            name,
            _size(texts.get(f"{_DAV}getcontentlength"), name),
            when(texts.get(f"{_DAV}getlastmodified")),
            f"{_DAV}collection" in texts,
        )


def _paths(hrefs: list[str]) -> list[str]:
    """Read the paths of all hrefs of one listing.

    WebDAV wants them escaped; XRootD 5.5 sends them as they are. One character that is never left as it is
    (a space, # or ?) shows that nothing in the listing is escaped.
    """
    if not all(hrefs):
        raise ValueError("the listing holds an entry without a name")
    paths = [_HOST.sub("", href, count=1) if "://" in href else href for href in hrefs]
    if not any(_NEVER_ESCAPED.search(path) for path in paths):
        paths = [unquote(path, errors="surrogateescape") for path in paths]
    return [_SLASHES.sub("/", path).rstrip("/") for path in paths]


def _size(text: str | None, name: str) -> int | None:
    digits = (text or "").strip()
    if not re.fullmatch("[0-9]+", digits):
        return None
    if len(digits) > _DIGITS:
        raise ValueError(f"the listing names an impossible size for {name!r}")
    return int(digits)


def when(text: str | None) -> datetime | None:
    """Read an HTTP date; None when there is none."""
    try:
        return parsedate_to_datetime(text).astimezone(UTC) if text else None
    except (ValueError, OverflowError):
        return None
