"""Copies from a server; all that servers do wrong is in tests/support/misbehaving_table.yaml."""

import asyncio
import zlib

import pytest

from crpipe.campaign.raw_files import Entry
from crpipe.core.errors import SourceError
from crpipe.source.pelican.director import Namespace
from crpipe.source.pelican.download import Answer, DownloadError
from crpipe.source.pelican.server_checksums import ENOUGH, TRIES, ServerChecksums
from crpipe.source.pelican.tokens import Token, Tokens
from crpipe.source.pelican.transfer import Transfer, refusal
from crpipe.source.retries import AdaptiveDiskCalls, Failure, TemporaryFailure

CONTENT = (b"\x89HDF\r\n\x1a\n" + b"0123456789" * 100)[:1000]
GOOD = f"adler32={zlib.adler32(CONTENT):08x}"
ENTRY = Entry("f.h5", "pelican://h/ns/sim/0000000-0000999/f.h5", len(CONTENT), None)


def answer(status=200, **headers):
    return Answer(status, {name.replace("_", "-"): str(value) for name, value in headers.items()})


ANSWER = answer(Content_Length=len(CONTENT), Digest=GOOD)


class FakeDownloads:
    """Answers every GET and every HEAD with what a test says."""

    def __init__(self, get=None, head=None, body=CONTENT):
        self.get_answer = get or answer(Content_Length=len(CONTENT))
        self.head_answer = head or answer(405)
        self.body = body
        self.asked = []

    async def get(self, url, headers, receive):
        self.asked.append(("GET", url, headers))
        receive(self.get_answer)(self.body)
        return self.get_answer

    async def head(self, url, headers):
        self.asked.append(("HEAD", url, headers))
        return self.head_answer


class FakeDirector:
    """One server of a namespace that needs no token."""

    async def namespace(self, _):
        return Namespace("/ns", ["https://one"], False, "/ns", "https://issuer", "https://one")


def fetched(part, downloads):
    transfer = Transfer(FakeDirector(), downloads, AdaptiveDiskCalls(), tokens=None)
    return asyncio.run(transfer.fetch(ENTRY, part))


def test_a_token_is_not_blamed_for_a_server_that_did_not_get_it():
    space = Namespace("", ["https://one"], True, "", "", is_host=True)
    error = refusal("https://one/f", Answer(401, {}, "https://two"), space, Token("x", "here", {}))
    assert "by https://two, to which it is redirected" in str(error)
    assert "renew" not in str(error)


def test_a_checksum_that_the_server_names_is_compared(tmp_path):
    downloads = FakeDownloads(head=answer(Digest=GOOD))
    assert fetched(tmp_path / "part", downloads).verified == "source-checksum"
    assert not any("Authorization" in headers for _, _, headers in downloads.asked)
    with pytest.raises(TemporaryFailure, match="bytes were changed on the way"):
        fetched(tmp_path / "other", FakeDownloads(head=answer(Digest="adler32=00000001")))
    assert not (tmp_path / "other").exists()


def test_a_small_file_and_its_checksum_come_in_one_request(tmp_path, monkeypatch):
    downloads = FakeDownloads(ANSWER)
    assert fetched(tmp_path / "part", downloads).verified == "source-checksum"
    assert [verb for verb, _, _ in downloads.asked] == ["GET"]
    wrong = FakeDownloads(answer(Content_Length=len(CONTENT), Digest="adler32=00000001"))
    with pytest.raises(TemporaryFailure, match="bytes were changed on the way"):
        fetched(tmp_path / "other", wrong)
    # A server reads a file for its checksum: of a large one nothing would come for long.
    monkeypatch.setattr("crpipe.source.pelican.transfer.SMALL", len(CONTENT) - 1)
    downloads = FakeDownloads(head=answer(Digest=GOOD))
    fetched(tmp_path / "large", downloads)
    asked = {verb: "Want-Digest" in headers for verb, _, headers in downloads.asked}
    assert asked == {"GET": False, "HEAD": True}


def test_a_server_that_names_no_checksum_beside_a_file_is_asked_so_once(tmp_path):
    downloads = FakeDownloads(head=answer(Digest=GOOD))

    async def copies():
        transfer = Transfer(FakeDirector(), downloads, AdaptiveDiskCalls(), tokens=None)
        return [await transfer.fetch(ENTRY, tmp_path / name) for name in "ab"]

    assert {proof.verified for proof in asyncio.run(copies())} == {"source-checksum"}
    assert ["Want-Digest" in headers for verb, _, headers in downloads.asked if verb == "GET"] == [
        True,
        False,
    ]


def test_a_server_that_refuses_both_at_once_is_asked_for_one_after_the_other(tmp_path):
    downloads = FakeDownloads(answer(500), head=answer(Digest=GOOD))

    async def tries():
        transfer = Transfer(FakeDirector(), downloads, AdaptiveDiskCalls(), tokens=None)
        with pytest.raises(TemporaryFailure, match="when also asked for a checksum") as refused:
            await transfer.fetch(ENTRY, tmp_path / "part")
        assert refused.value.kind is Failure.PROGRESS_MADE  # it does not count
        downloads.get_answer = answer(Content_Length=len(CONTENT))
        return await transfer.fetch(ENTRY, tmp_path / "part")

    assert asyncio.run(tries()).verified == "source-checksum"


def test_a_server_that_is_silent_where_it_is_asked_for_both_is_asked_for_one_after_the_other(tmp_path):
    class Ends(FakeDownloads):
        async def get(self, url, headers, receive):
            if "Want-Digest" in headers:
                raise DownloadError("no answer in time")
            return await super().get(url, headers, receive)

    async def tries():
        transfer = Transfer(FakeDirector(), Ends(head=answer(Digest=GOOD)), AdaptiveDiskCalls(), tokens=None)
        with pytest.raises(TemporaryFailure, match="no answer in time when also asked") as silent:
            await transfer.fetch(ENTRY, tmp_path / "part")
        assert silent.value.kind is Failure.PROGRESS_MADE  # it does not count
        return await transfer.fetch(ENTRY, tmp_path / "part")

    assert asyncio.run(tries()).verified == "source-checksum"


def test_what_a_host_answers_without_a_token_is_no_reason_to_ask_it_for_less(tmp_path, monkeypatch):
    class Guarded(FakeDownloads):
        async def get(self, url, headers, receive):
            self.get_answer = ANSWER if "Authorization" in headers else answer(500 if len(headers) else 401)
            return await super().get(url, headers, receive)

    monkeypatch.setenv("BEARER_TOKEN", "x")
    host = Namespace("", ["https://one"], False, "", "", "https://one", is_host=True)
    director, downloads = FakeDirector(), Guarded()
    director.namespace = lambda _: asyncio.sleep(0, host)

    async def tries():
        transfer = Transfer(director, downloads, AdaptiveDiskCalls(), Tokens(""))
        for _ in range(2):  # refused for both, then for the file alone
            with pytest.raises(TemporaryFailure):
                await transfer.fetch(ENTRY, tmp_path / "part")
        return await transfer.fetch(ENTRY, tmp_path / "part")

    assert asyncio.run(tries()).verified == "source-checksum"
    assert "HEAD" not in {verb for verb, _, _ in downloads.asked[2:]}


def test_a_file_that_comes_compressed_is_named_as_that(tmp_path):
    packed = FakeDownloads(answer(Content_Length=10, Content_Encoding="gzip"))
    with pytest.raises(TemporaryFailure, match=r"compressed \(Content-Encoding: gzip\).*; ask the site"):
        fetched(tmp_path / "part", packed)
    director = FakeDirector()
    director.namespace = lambda _: asyncio.sleep(
        0, Namespace("", ["https://one"], False, "", "", is_host=True)
    )
    with pytest.raises(SourceError, match="or copy it by other means"):  # nobody else has it
        asyncio.run(Transfer(director, packed, AdaptiveDiskCalls(), None).fetch(ENTRY, tmp_path / "part"))
    stored = FakeDownloads(answer(Content_Length=len(CONTENT), Content_Encoding="x-gzip", Digest=GOOD))
    assert fetched(tmp_path / "part", stored).verified == "source-checksum"


def test_an_unfinished_copy_goes_on_where_it_stopped(tmp_path):
    part = tmp_path / "part"
    part.write_bytes(CONTENT[:400])
    downloads = FakeDownloads(
        answer(206, Content_Length=600, Content_Range="bytes 400-999/1000"), body=CONTENT[400:]
    )
    with pytest.raises(
        TemporaryFailure, match="nothing that the server names shows that they are of one file"
    ):
        fetched(part, downloads)
    assert not part.exists()
    part.write_bytes(CONTENT[:400])
    downloads.head_answer = answer(Digest=GOOD)
    assert fetched(part, downloads).size == 1000
    assert part.read_bytes() == CONTENT
    assert next(headers for verb, _, headers in downloads.asked if verb == "GET")["Range"] == "bytes=400-999"


def test_a_server_that_ignores_the_range_starts_the_copy_again(tmp_path):
    part = tmp_path / "part"
    part.write_bytes(b"x" * 400)
    fetched(part, FakeDownloads())
    assert part.read_bytes() == CONTENT


def test_what_may_pass_is_transient(tmp_path):
    with pytest.raises(TemporaryFailure, match="answers 503"):
        fetched(tmp_path / "part", FakeDownloads(answer(503), body=b""))


NAMES_ONE = Answer(200, {"Digest": "crc32c=0000002a"})
NAMES_NONE = Answer(200, {})
NAMED = ("crc32c", "0000002a")


class Servers:
    """Servers with one answer each, which can be changed; counts what they are asked."""

    def __init__(self, *, required=False, **answers):
        self.answers = answers
        self.asked = []
        self.checksums = ServerChecksums(required=required)

    def ask(self, path="f"):
        async def one(place):
            self.asked.append(place)
            if isinstance(self.answers[place], Exception):
                raise self.answers[place]
            return self.answers[place]

        found = asyncio.run(self.checksums.ask(list(self.answers), path, one))
        assert found is None or self.answers[found[2]] is NAMES_ONE
        return found and found[:2]

    def lasting(self, path="f"):
        """Ask until there is an outcome; return it with the number of tries that it took."""
        for tries in range(1, 10):
            try:
                return self.ask(path), tries
            except TemporaryFailure as error:
                if error.kind is not Failure.PROGRESS_MADE:
                    raise
        raise AssertionError


@pytest.mark.parametrize(
    "cache", [NAMES_ONE, NAMES_NONE, Answer(404, {}), Answer(500, {}), DownloadError("gone")]
)
def test_one_server_that_names_it_is_enough(cache):
    assert Servers(cache=cache, origin=NAMES_ONE).lasting()[0] == NAMED


@pytest.mark.parametrize("status", [400, 401, 403, 404])
def test_refusals_switch_nothing_off(status):
    servers = Servers(only=Answer(status, {}))
    for number in range(2 * ENOUGH):
        found, tries = servers.lasting(f"f{number}")
        assert (found, tries) == (None, TRIES + 1 if number < ENOUGH else 1)
    servers.answers["only"] = NAMES_ONE
    assert servers.ask("another") == NAMED


@pytest.mark.parametrize("answer", [Answer(500, {}), DownloadError("gone")])
def test_without_any_answer_a_file_is_never_accepted(answer):
    servers = Servers(cache=answer, origin=answer)
    for number in range(10):
        with pytest.raises(TemporaryFailure) as caught:
            servers.ask(f"f{number % 3}")
        assert caught.value.kind is not Failure.PROGRESS_MADE


def test_servers_that_say_that_they_have_none_are_asked_now_and_then(monkeypatch):
    servers = Servers(cache=NAMES_NONE, origin=Answer(405, {}))
    for number in range(20):
        assert servers.ask(f"f{number}") is None
    assert len(servers.asked) == 2 * (ENOUGH + 1)
    servers.answers["origin"] = NAMES_ONE
    monkeypatch.setattr("crpipe.source.pelican.server_checksums.AGAIN_S", 0.0)
    servers.checksums._rests.clear()
    assert servers.ask("later") == NAMED


def test_a_server_that_named_one_before_is_not_taken_for_one_without(monkeypatch):
    servers = Servers(only=NAMES_ONE)
    assert servers.ask() == NAMED
    servers.answers["only"] = NAMES_NONE
    assert servers.lasting() == (None, TRIES + 1)


@pytest.mark.parametrize("origin", [Answer(403, {}), Answer(500, {}), DownloadError("no answer in time")])
def test_an_origin_that_does_not_say_is_left_out_where_the_cache_has_none(origin):
    servers = Servers(cache=NAMES_NONE, origin=origin)
    assert servers.lasting("first") == (None, TRIES + 1)
    for number in range(20):
        servers.lasting(f"f{number}")
    asked = servers.asked.count("origin")
    servers.lasting("last")
    assert servers.asked.count("origin") == asked


@pytest.mark.parametrize("answer", [Answer(403, {}), Answer(500, {})])
def test_a_required_checksum_is_never_given_up(answer):
    servers = Servers(required=True, cache=NAMES_NONE, origin=answer)
    for number in range(20):
        with pytest.raises(TemporaryFailure):
            servers.ask(f"f{number % 2}")
    assert servers.asked.count("cache") == servers.asked.count("origin") == 20
