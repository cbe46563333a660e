import datetime as dt

import pytest

from crpipe.source.pelican.webdav import Listed, parse_listing, when
from crpipe.source.uris import uri_of

TIME = "Sat, 21 Nov 2026 03:34:57 GMT"


def response(href, *props):
    found = f"<D:propstat><D:prop>{''.join(props)}</D:prop></D:propstat>"
    return f"<D:response><D:href>{href}</D:href>{found}</D:response>"


def listing(*responses):
    return f'<?xml version="1.0"?><D:multistatus xmlns:D="DAV:">{"".join(responses)}</D:multistatus>'.encode()


FOLDER = response("/a/b/", "<D:resourcetype><D:collection/></D:resourcetype>")
FILE = response(
    "/a/b/one.parquet",
    "<D:getcontentlength>17</D:getcontentlength>",
    f"<D:getlastmodified>{TIME}</D:getlastmodified>",
)


def test_entries_come_without_the_directory_itself_and_directories_are_marked():
    inner = response("/a/b/inner/", "<D:resourcetype><D:collection/></D:resourcetype>")
    moment = dt.datetime(2026, 11, 21, 3, 34, 57, tzinfo=dt.UTC)
    assert parse_listing(listing(FOLDER, inner, FILE), "/a/b") == [
        Listed("inner", None, None, is_folder=True),
        Listed("one.parquet", 17, moment),
    ]


def test_names_are_decoded_and_hosts_in_them_are_allowed():
    spaced = response(
        "https://server:8443/a/b/with%20space.parquet", "<D:getcontentlength>0</D:getcontentlength>"
    )
    assert parse_listing(listing(FOLDER, spaced), "/a/b/") == [Listed("with space.parquet", 0, None)]


def test_what_some_servers_leave_as_it_is_says_nothing_of_the_rest():
    """Wsgidav leaves the semicolon, nginx brackets and more; both escape the space."""
    names = [response("/a/b/one;1%20x.parquet"), response("/a/b/[2]%20x.parquet")]
    entries = parse_listing(listing(FOLDER, *names), "/a/b")
    assert [entry.name for entry in entries] == ["one;1 x.parquet", "[2] x.parquet"]


def test_a_name_in_latin_1_says_nothing_of_the_other_files():
    odd, _ = parse_listing(listing(FOLDER, response("/a/b/%E9.txt"), FILE), "/a/b")
    assert uri_of("https", "host", f"/a/b/{odd.name}") == "https://host/a/b/%E9.txt"


@pytest.mark.parametrize("folder", ["//a/b", "/a//b/"])
def test_two_slashes_in_an_address_are_one_directory(folder):
    """XRootD's addresses have them; its listings, as those of most servers, have one."""
    assert [entry.name for entry in parse_listing(listing(FOLDER, FILE), folder)] == ["one.parquet"]


@pytest.mark.parametrize(
    "length", ["", "<D:getcontentlength/>", "<D:getcontentlength>-1</D:getcontentlength>"]
)
def test_a_missing_size_stays_unknown(length):
    assert parse_listing(listing(response("/a/b/one", length)), "/a/b")[0].size is None


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (listing(FOLDER, FILE)[:-20], "not whole XML"),
        (b"", "not whole XML"),
        (b"<html></html>", "not a WebDAV listing"),
        (listing(FOLDER, FILE.replace("<D:href>/a/b/one.parquet</D:href>", "")), "an entry without a name"),
        (
            listing(FOLDER, FILE.replace("/a/b/one", "/a/other/one")),
            "holds '/a/other/one.parquet', which is not",
        ),
        (
            listing(FOLDER, FILE.replace("/a/b/one", "/a/b/inner/one")),
            "holds '/a/b/inner/one.parquet', which",
        ),
        (listing(FOLDER, FILE.replace("one.parquet", "..")), "which is not in it"),
    ],
)
def test_what_is_not_a_whole_listing_is_refused(body, message):
    with pytest.raises(ValueError, match=message):
        parse_listing(body, "/a/b")


@pytest.mark.parametrize("text", [None, "", "yesterday"])
def test_an_unreadable_time_is_unknown(text):
    assert when(text) is None
