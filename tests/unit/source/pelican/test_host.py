"""Files of one web server, named in lists; a token goes only to a server that asks for one over TLS."""

import gzip
import http.server
import os
import threading
import time

import pytest

from crpipe.core.errors import AccessError, ChangedError, ConfigError, ListingError, TransferError
from crpipe.core.text import NullProgress
from crpipe.source.listing import list_range
from crpipe.source.pelican.download import Answer, Downloads
from crpipe.source.pelican.login import check_access
from crpipe.source.pelican.tokens import Token
from crpipe.source.stage import stage_range
from opened import listed, opened
from web_server import WebServer

FILES = 4


@pytest.fixture(autouse=True)
def no_token_of_this_user(monkeypatch, tmp_path):
    for name in ("BEARER_TOKEN", "BEARER_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


@pytest.fixture
def files(tmp_path):
    """Files with names that an address has to escape."""
    folder = tmp_path / "served"
    folder.mkdir()
    for index in range(FILES):
        (folder / f"part {index}%.bin").write_bytes(bytes([index]) * 300_000)
        os.utime(folder / f"part {index}%.bin", (1.7e9, 1.7e9))
    return folder


@pytest.fixture
def server(files):
    with WebServer(files) as server:
        yield server


@pytest.fixture
def by_list(configure, tmp_path, name):
    """Configure a list of files; ``uris`` are its lines."""

    def make(uris, **source):
        (tmp_path / f"{name}.txt").write_text("".join(f"{uri}\n" for uri in uris))
        keys = {"files": f"{tmp_path}/{{range}}.txt", "require_checksum": False, "attempts": 3} | source
        return configure(**keys)

    return make


def addresses(server):
    return [f"{server.url}/part%20{index}%25.bin" for index in range(FILES)]


def staged(config, name):
    listed(config, name)
    stage_range(opened(config), str(name), NullProgress())
    return config.paths().raw(str(name))


def assert_identical(raw, files):
    assert {file.name: file.read_bytes() for file in raw.glob("*.bin")} == {
        file.name: file.read_bytes() for file in files.iterdir()
    }


def test_named_files_arrive_whole(by_list, server, name, files):
    assert_identical(staged(by_list(addresses(server)), name), files)


def test_a_file_goes_on_where_it_was_cut(by_list, server, name, files):
    server.faults = [0.5]
    raw = staged(by_list(addresses(server), concurrency=1), name)
    assert_identical(raw, files)
    (begin,) = [part for method, _, part in server.seen if method == "GET" and part]
    assert begin.startswith(("bytes=1", "bytes=2"))
    assert begin.endswith("-299999")


def test_a_server_without_ranges_begins_again(by_list, name, files):
    with WebServer(files, ranges=False) as server:
        server.faults = [0.5]
        assert_identical(staged(by_list(addresses(server), concurrency=1), name), files)
        assert [part for _, _, part in server.seen if part]


def test_a_server_that_sends_another_range_begins_again(by_list, name, files):
    with WebServer(files, ranges="first") as server:
        server.faults = [0.5]
        assert_identical(staged(by_list(addresses(server), concurrency=1), name), files)
        assert [part for _, _, part in server.seen if part]


def test_a_file_whose_time_is_always_the_present_has_not_changed(by_list, name, files):
    with WebServer(files, present=True) as server:
        config = by_list(addresses(server))
        assert [entry.mtime for entry in listed(config, name)] == [None] * FILES
        time.sleep(1.1)
        server.faults = [0.5]
        assert_identical(staged(config, name), files)


def test_a_busy_server_is_asked_again_when_it_wants(by_list, server, name, files):
    server.busy = 1
    begin = time.monotonic()
    assert len(listed(by_list(addresses(server)), name)) == FILES
    assert time.monotonic() - begin > 2


def test_a_server_without_sizes_is_not_asked_again(by_list, server, name):
    server.heads = False
    with pytest.raises(
        ListingError, match=r"names no size \(status 405 to HEAD\), .*; copy the file by other"
    ):
        listed(by_list(addresses(server), concurrency=1), name)
    assert len(server.seen) == 1


def test_a_server_that_refuses_head_alone_sends_its_files(by_list, server, name, files, monkeypatch):
    config = by_list(addresses(server), deadline_minutes=0.1)
    listed(config, name)
    server.heads, server.other = False, 403
    monkeypatch.setattr("crpipe.source.stage.confirm_listing", lambda *_: None)  # which asks by HEAD
    stage_range(opened(config), str(name), NullProgress())
    assert_identical(config.paths().raw(str(name)), files)


def test_a_directory_that_is_listed_with_a_slash_at_its_end_alone_is_asked_so(configure, name, monkeypatch):
    """A location of nginx, whose name ends with the slash, does not have what is asked for without."""
    item = "<response><href>/d/a.bin</href><propstat><prop><getcontentlength>5</getcontentlength></prop>"

    async def get(_self, url, _headers, receive, _method):
        answer = Answer(207 if url.endswith("/") else 405, {})
        body = f"<multistatus xmlns='DAV:'>{item}</propstat></response></multistatus>" * url.endswith("/")
        receive(answer)(body.encode() or b"<html>")
        return answer

    monkeypatch.setattr(Downloads, "get", get)
    (entry,) = listed(configure(uri="https://one/d/*.bin"), "0000000-0000000")
    assert (entry.path, entry.size) == ("a.bin", 5)


def test_a_listing_that_comes_compressed_is_named_as_that(configure, name, monkeypatch):
    async def get(_self, _url, _headers, receive, _method):
        answer = Answer(207, {"Content-Encoding": "gzip"})
        receive(answer)(gzip.compress(b"<multistatus/>"))
        return answer

    monkeypatch.setattr(Downloads, "get", get)
    with pytest.raises(ListingError, match=r"listing comes compressed \(Content-Encoding: gzip\)"):
        listed(configure(uri="https://one/{range}/*.bin", attempts=1), name)


def test_the_server_of_python_s_library_is_enough(by_list, name, files):
    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args):
            super().__init__(*args, directory=str(files))

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("localhost", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        server.url = f"http://localhost:{server.server_port}"
        assert_identical(staged(by_list(addresses(server)), name), files)
        with pytest.raises(
            ListingError, match=r"lists no directories \(status 501 to PROPFIND\); name the files in"
        ):
            list_range(
                opened(by_list([], files="", uri=f"{server.url}/{{range}}/*.bin")), str(name), NullProgress()
            )
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_sizes_alone_must_be_asked_for(by_list, server, name):
    with pytest.raises(TransferError, match=r"names no checksum; .* write source.require_checksum: false"):
        staged(by_list(addresses(server), require_checksum=None), name)


def test_a_file_that_was_written_again_is_refused(by_list, server, name, files):
    config = by_list(addresses(server))
    listed(config, name)
    (files / "part 2%.bin").write_bytes(b"\xff" * 300_000)
    os.utime(files / "part 2%.bin", (1e9, 1e9))
    with pytest.raises(
        ChangedError, match=r"part%202%25.bin: last written 2001-09-09 01:46:40, .* it changed"
    ):
        stage_range(opened(config), str(name), NullProgress())


def test_what_is_not_there_is_named(by_list, server, name):
    with pytest.raises(ListingError, match=r"/absent.bin: cannot be looked up \(status 404\)"):
        listed(by_list([f"{server.url}/absent.bin"]), name)


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("https://h/a.bin?download=1", r"write the address up to the \? or #"),
        ("https://user:secret@h/a.bin", "write no password into an address"),
        ("http://far.org/a.bin", "anybody on the way could change the files; write https://"),
        ("dav://far.org/a.bin", "anybody on the way could change the files; write davs://"),
        ("https:///a.bin", "names no host"),
    ],
)
def test_a_wrong_address_is_an_error(by_list, name, uri, message):
    with pytest.raises(ConfigError, match=message) as caught:
        listed(by_list([uri]), name)
    assert "secret" not in str(caught.value)


def test_a_token_is_not_sent_without_tls(by_list, name, files, monkeypatch):
    monkeypatch.setenv("BEARER_TOKEN", "key")
    with (
        WebServer(files, token="key") as server,
        pytest.raises(
            AccessError, match=r"refused \(status 401\); the address is not https, so no token is sent"
        ),
    ):
        staged(by_list(addresses(server)), name)


def test_a_server_that_refuses_to_list_has_a_way_without_a_token(by_list, name, files):
    with (
        WebServer(files, other=403) as server,
        pytest.raises(AccessError, match=r"refused \(status 403\); .*, or name the files in source\.files"),
    ):
        listed(by_list([], files="", uri=f"{server.url}/{{range}}/*.bin"), name)


@pytest.mark.parametrize(
    ("audience", "is_for"),
    [
        (None, True),
        ("ANY", True),
        (["https://wlcg.cern.ch/jwt/v1/any"], True),
        ("door.site.org", True),
        (["x.org", "https://door.site.org:2880/"], True),
        ("door.site.org:2880", True),
        ("site.org", False),
        (["https://door.site.org.evil.org"], False),
    ],
)
def test_a_token_for_other_servers_is_known(audience, is_for):
    claims = {} if audience is None else {"aud": audience}
    assert Token("x", "here", claims).is_for("door.site.org") is is_for


def test_one_list_names_files_of_several_sources(by_list, server, name, files, tmp_path):
    with WebServer(files) as other:
        uris = addresses(server)
        (tmp_path / "here").mkdir()
        (tmp_path / "here" / "own.bin").write_bytes(b"own")
        mixed = [
            uris[0],
            addresses(other)[1].replace("http://", "dav://"),
            str(tmp_path / "here" / "own.bin"),
        ]
        raw = staged(by_list(mixed), name)
    assert sorted(file.read_bytes()[:1] for file in raw.rglob("*.bin")) == [b"\0", b"\1", b"o"]


def test_crpipe_token_says_that_the_server_asks(by_list, server, name):
    access = check_access(by_list(addresses(server)))
    assert "its server asks for a token where it needs one" in access.text
    assert not access.problem
