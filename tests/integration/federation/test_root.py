"""A real XRootD server by its own protocol, with TLS: listings, checksums that name themselves, errors."""

import os
import shutil
import subprocess
import sys

import pytest

from crpipe.core import checksums
from crpipe.core.errors import AccessError, ListingError, TransferError
from crpipe.source import stores
from crpipe.source.source_checksum import ask_checksum, compare_file
from crpipe.source.uris import SourceOptions

pytestmark = pytest.mark.federation
FOLDER = "0000000-0000999"


@pytest.fixture
def host(federation, monkeypatch):
    pytest.importorskip("fsspec_xrootd", reason="pip install 'crpipe[remote]'")
    monkeypatch.setenv("X509_CERT_FILE", str(federation.certificate))
    return f"localhost:{federation.topology.origin_port}"


@pytest.fixture
def public(federation, campaign, host):
    folder = federation.data / "public" / FOLDER
    shutil.copytree(campaign.truth, folder)
    federation.warm()
    campaign.token_file.unlink()
    yield f"root://{host}//public/{{range}}/part-*.parquet"
    shutil.rmtree(folder)


def test_a_range_is_listed_and_verified(campaign, public):
    entries = campaign.list(uri=public)
    assert [entry.size for entry in entries] == [20_000 + index for index in range(12)]
    assert entries[0].uri == public.replace("{range}/part-*", f"{FOLDER}/part-0000")
    rows = campaign.stage(uri=public)
    campaign.assert_identical(rows)
    assert campaign.ways(rows) == {"source-checksum": 12}
    assert rows[0]["checksum"] == checksums.of_file(campaign.truth / rows[0]["path"], rows[0]["algorithm"])


def test_what_is_not_there_or_refused_is_named(campaign, public, host):
    with pytest.raises(
        ListingError, match=rf"range {FOLDER}: root://{host}//public/absent/.*: not there .*; check"
    ):
        campaign.list(uri=public.replace("{range}", "absent/{range}"), attempts=1)
    with pytest.raises(AccessError, match=r"refused \(.*permission denied\)"):
        campaign.list(uri=public.replace("public", "icecube/wipac"))


def test_a_name_that_its_client_cannot_read_ends_the_listing(campaign, federation, public, monkeypatch):
    """The client forgets the whole answer, and its caller would wait for ever."""
    monkeypatch.setattr(stores, "CLIENT_S", 1.0)
    odd = federation.data / "public" / FOLDER / os.fsdecode(b"\xe9.txt")
    odd.write_bytes(b"")
    try:
        with pytest.raises(ListingError, match=r"no answer after 3 s, .* a name is not UTF-8; rename that"):
            campaign.list(uri=public)
    finally:
        odd.unlink()


def test_one_list_names_files_by_three_protocols(campaign, federation, public, host, tmp_path):
    (tmp_path / f"{FOLDER}.txt").write_text(
        f"{public.replace('{range}/part-*', f'{FOLDER}/part-0001')}\n"
        f"https://{host}/public/{FOLDER}/part-0002.parquet\n"
        f"{federation.uri(f'/public/{FOLDER}/part-0003.parquet')}\n"
    )
    rows = campaign.stage(files=f"{tmp_path}/{{range}}.txt")
    campaign.assert_identical(rows)
    assert campaign.ways(rows) == {"source-checksum": 3}


def test_the_checksum_of_each_protocol_is_asked_for(campaign, federation, public, host):
    file = campaign.truth / "part-0004.parquet"
    value = checksums.of_file(file, "crc32c")
    path = f"public/{FOLDER}/part-0004.parquet"
    options = SourceOptions(attempts=1)
    for address in (f"root://{host}//{path}", f"davs://{host}/{path}", federation.uri(f"/{path}"), str(file)):
        assert str(ask_checksum(options, address)) == f"crc32c:{value}  {address}"
    with pytest.raises(ListingError, match=r"cannot be looked up \(status 404\).*; correct the address"):
        ask_checksum(options, f"https://{host}/public/absent")
    named = ask_checksum(options, f"https://{host}/{path}")
    other = campaign.folder / "other"
    other.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(
        TransferError, match=f"other: crc32c is .*, that of https://{host}/.* is {value}; copy it"
    ):
        compare_file(named, other)
    with pytest.raises(TransferError, match="part-0005.parquet: 20005 bytes, .* has 20004; copy it again"):
        compare_file(named, campaign.truth / "part-0005.parquet")


@pytest.mark.slow
def test_the_verb_compares_a_copy(campaign, public, host):
    address = public.replace("{range}/part-*", f"{FOLDER}/part-0004")
    file = campaign.truth / "part-0004.parquet"

    def crpipe(*words):
        command = [sys.executable, "-m", "crpipe", "checksum", *words]
        return subprocess.run(command, cwd=campaign.folder, capture_output=True, text=True, check=False)

    same = crpipe(address, "--compare", str(file))
    value = checksums.of_file(file, "crc32c")
    assert same.stdout == f"{file}: 20004 bytes, crc32c {value}: the same as {address}\n"
    wrong = crpipe(address, "--compare", str(campaign.truth / "part-0005.parquet"))
    assert (wrong.returncode, wrong.stdout) == (66, "")
    assert wrong.stderr.startswith("crpipe: ")
    assert "part-0005.parquet: 20005 bytes, " in wrong.stderr
