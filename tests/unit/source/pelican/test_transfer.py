import asyncio
import time
import zlib

import pytest

from crpipe.campaign.raw_files import Entry
from crpipe.core.errors import AccessError, TransferError
from crpipe.source.pelican.director import Namespace
from crpipe.source.pelican.download import Answer, PartialFile
from crpipe.source.pelican.tokens import Token
from crpipe.source.pelican.transfer import Renewed, Transfer
from crpipe.source.retries import AdaptiveDiskCalls, Failure, TemporaryFailure

CONTENT = (b"\x89HDF\r\n\x1a\n" + b"0123456789" * 100)[:1000]
GOOD = f"adler32={zlib.adler32(CONTENT):08x}"
ENTRY = Entry("f.h5", "pelican://h/ns/sim/0000000-0000999/f.h5", len(CONTENT), None)


def answer(status=200, **headers):
    return Answer(status, {name.replace("_", "-"): str(value) for name, value in headers.items()})


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
    def __init__(self, guarded=False, servers=("https://one",)):
        self.host = "h"
        self.elsewhere = []
        self.space = Namespace(
            "/ns", list(servers), servers[-1], guarded, "/ns", "https://issuer", servers[-1]
        )

    async def namespace(self, _):
        return self.space

    async def servers_of(self, _):
        return [*self.space.servers, *self.elsewhere]


class FakeTokens:
    def __init__(self, another=False):
        self.another = another

    def current(self):
        return Token("secret", "here", {"scope": "storage.read:/other", "exp": time.time() + 100})

    def renew(self, _):
        return self.another


def fetched(part, downloads, director=None, tokens=None):
    transfer = Transfer(director or FakeDirector(), downloads, AdaptiveDiskCalls(), tokens or FakeTokens())
    return asyncio.run(transfer.fetch(ENTRY, part))


def test_a_whole_file_without_a_checksum_is_known_by_its_size(tmp_path):
    downloads = FakeDownloads()
    proof = fetched(tmp_path / "part", downloads)
    assert (proof.size, proof.verified, proof.algorithm) == (1000, "size-only", "crc32c")
    assert (tmp_path / "part").read_bytes() == CONTENT
    assert not any("Authorization" in headers for _, _, headers in downloads.asked)


def test_a_checksum_that_the_server_names_is_compared(tmp_path):
    proof = fetched(tmp_path / "part", FakeDownloads(head=answer(Digest=GOOD)))
    assert proof.verified == "source-checksum"
    with pytest.raises(TemporaryFailure, match="bytes were changed on the way"):
        fetched(tmp_path / "other", FakeDownloads(head=answer(Digest="adler32=00000001")))
    assert not (tmp_path / "other").exists()


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


@pytest.mark.parametrize(
    ("get", "body", "message"),
    [
        (answer(206, Content_Range="bytes 7-999/1000"), b"", "answers another range"),
        (answer(200, Content_Length=999), b"", "offers 999 bytes, the manifest says 1000"),
        (answer(200), CONTENT[:10], "the connection ended early after 10 of 1000 bytes"),
        (answer(416), b"", "holds a shorter file"),
        (answer(503), b"", "answers 503"),
    ],
)
def test_what_may_pass_is_transient(tmp_path, get, body, message):
    part = tmp_path / "part"
    part.write_bytes(CONTENT[:5] if get.status == 206 else b"")
    with pytest.raises(TemporaryFailure, match=message):
        fetched(part, FakeDownloads(get, body=body))


def test_a_file_that_is_gone_is_bad_for_good(tmp_path):
    downloads = FakeDownloads(answer(404), body=b"")
    transfer = Transfer(
        FakeDirector(servers=["https://one", "https://two"]), downloads, AdaptiveDiskCalls(), FakeTokens()
    )
    for look in range(2):
        for server in ("one", "two"):
            with pytest.raises(
                TemporaryFailure, match=rf"https://{server}: does not have it \(status 404\)$"
            ):
                asyncio.run(transfer.fetch(ENTRY, tmp_path / "part"))
        if not look:
            with pytest.raises(
                TemporaryFailure, match=r"no server has it \(status 404 from each of 2"
            ) as caught:
                asyncio.run(transfer.fetch(ENTRY, tmp_path / "part"))
            assert caught.value.kind is not Failure.PROGRESS_MADE  # the next look is at another time
    with pytest.raises(
        TransferError, match=r"f\.h5: not there any more \(status 404 from each of 2 servers\)$"
    ):
        asyncio.run(transfer.fetch(ENTRY, tmp_path / "part"))


def test_a_refusal_names_the_scope_that_is_needed(tmp_path):
    with pytest.raises(
        AccessError, match="scope is storage.read:/other, needed is storage.read:/sim; renew it"
    ) as caught:
        fetched(tmp_path / "part", FakeDownloads(answer(403), body=b""), FakeDirector(guarded=True))
    assert "secret" not in str(caught.value)
    with pytest.raises(AccessError, match="the director says that none is needed"):
        fetched(tmp_path / "part", FakeDownloads(answer(403), body=b""))


def test_a_replaced_token_is_tried_at_once(tmp_path):
    with pytest.raises(Renewed):
        fetched(
            tmp_path / "part",
            FakeDownloads(answer(403), body=b""),
            FakeDirector(guarded=True),
            FakeTokens(another=True),
        )


def test_a_partial_file_never_takes_more_bytes_than_listed(tmp_path):
    with (
        PartialFile(tmp_path / "part", 4, "crc32c") as part,
        pytest.raises(TemporaryFailure, match="more bytes than the 4"),
    ):
        part.write(b"12345")
