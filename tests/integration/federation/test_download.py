"""What a download must not do on its way: carry a token elsewhere, trust too much, leave threads."""

import asyncio
import threading

import pytest

from crpipe.core.errors import SourceError
from crpipe.source.pelican.director import Director
from crpipe.source.pelican.download import DownloadError, Downloads
from loopback import credentials

pytestmark = pytest.mark.federation
FILE = "part-0003.parquet"


def test_a_redirect_to_another_server_does_not_carry_the_token(
    campaign, proxy, elsewhere, wire, faults, federation
):
    wire(caches=[proxy.url, federation.topology.origin])
    path = f"/icecube/wipac/data/sim/testing/0000000-0000999/{FILE}"
    proxy.script("GET", FILE, faults.redirect(elsewhere.url, path))
    campaign.assert_identical(campaign.stage())
    assert (proxy.count("GET", FILE), elsewhere.count("GET", FILE)) == (1, 1)
    assert any("Authorization" in sent for _, _, sent in proxy.seen)
    assert not any("Authorization" in sent for _, _, sent in elsewhere.seen)


def test_a_redirect_to_a_server_that_needs_no_token_is_followed(
    campaign, proxy, elsewhere, wire, faults, federation
):
    folder = federation.data / "public" / "open" / "0000000-0000999"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "open.parquet").write_bytes(b"for everyone")
    wire(caches=[proxy.url], origin=proxy.url)
    path = "/public/open/0000000-0000999/open.parquet"
    proxy.script("GET", path, faults.redirect(elsewhere.url, path))
    campaign.stage(uri=federation.uri("/public/open/{range}/*.parquet"), token_file="")
    assert (campaign.raw / "open.parquet").read_bytes() == b"for everyone"
    assert (proxy.count("GET", path), elsewhere.count("GET", path)) == (1, 1)


def test_a_slow_body_is_not_taken_for_a_stall(campaign, proxy, wire, faults):
    wire(caches=[proxy.url], origin=proxy.url)
    proxy.script("GET", FILE, faults.trickle(0.2, 8))
    campaign.assert_identical(campaign.stage(read_timeout_s=0.8))
    assert proxy.count("GET", FILE) == 1


def test_only_the_named_authority_is_trusted(campaign, federation, tmp_path, monkeypatch):
    async def ask():
        async with Director("unused", connections=1, read_timeout_s=5.0) as director:
            return await Downloads(director.session).head(f"{federation.topology.origin}/", {})

    assert asyncio.run(ask()).status == 403
    credentials.write_certificates(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    with pytest.raises(DownloadError, match="its certificate is not trusted") as caught:
        asyncio.run(ask())
    assert caught.value.outage


def test_no_thread_is_left_when_a_range_fails(campaign, proxy, wire, faults):
    wire(caches=[proxy.url], origin=proxy.url)
    campaign.list()
    before = set(threading.enumerate())
    proxy.script("GET", FILE, always=faults.status(503))
    with pytest.raises(SourceError):
        campaign.stage(attempts=2)
    assert set(threading.enumerate()) == before
