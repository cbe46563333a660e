"""A real XRootD server by https:// and davs://, without a director: listings, checksums, tokens, resume."""

import shutil

import pytest

from crpipe.core.errors import AccessError, ListingError

pytestmark = pytest.mark.federation
FOLDER = "0000000-0000999"


@pytest.fixture
def host(federation):
    return f"localhost:{federation.topology.origin_port}"


@pytest.fixture
def protected(campaign, host):
    return {"uri": f"davs://{host}/icecube/wipac/data/sim/testing/{{range}}/part-*.parquet"}


@pytest.fixture
def public(federation, campaign, host):
    """The same files where no token is needed, some with names that an address escapes."""
    folder = federation.data / "public" / FOLDER
    shutil.copytree(campaign.truth, folder)
    (folder / "part-0003.parquet").rename(folder / "part 3%+ü.parquet")
    federation.warm()
    yield {"uri": f"https://{host}/public/{{range}}/part*.parquet"}
    shutil.rmtree(folder)


@pytest.mark.parametrize("scheme", ["https", "davs"])
def test_a_range_is_listed_and_verified(campaign, protected, scheme):
    source = {"uri": protected["uri"].replace("davs", scheme)}
    entries = campaign.list(**source)
    assert [entry.size for entry in entries] == [20_000 + index for index in range(12)]
    assert all(entry.mtime and entry.uri.startswith(f"{scheme}://localhost:") for entry in entries)
    rows = campaign.stage(**source)
    campaign.assert_identical(rows)
    assert campaign.ways(rows) == {"source-checksum": 12}


def test_no_token_is_needed_where_the_server_asks_for_none(campaign, public):
    campaign.token_file.unlink()
    rows = campaign.stage(**public)
    assert campaign.ways(rows) == {"source-checksum": 12}
    (odd,) = (row for row in rows if "%" in row["path"])
    assert odd["path"] == "part 3%+ü.parquet"
    assert odd["uri"].endswith("/part%203%25%2B%C3%BC.parquet")
    assert (campaign.raw / odd["path"]).read_bytes() == (campaign.truth / "part-0003.parquet").read_bytes()


def test_a_missing_token_is_told(campaign, protected):
    campaign.token_file.unlink()
    with pytest.raises(AccessError, match=r"refused \(status 403\); source.token_file: .* cannot be read"):
        campaign.list(**protected)


def test_a_token_for_other_paths_is_refused(campaign, protected):
    campaign.give_token("storage.read:/elsewhere")
    with pytest.raises(AccessError, match=r"\(status 403\): the token from .* is refused.*; see"):
        campaign.list(**protected, attempts=1)


def test_a_missing_directory_names_the_range(campaign, protected, host):
    campaign.give_token("storage.read:/")
    with pytest.raises(ListingError, match=rf"range {FOLDER}: davs://{host}/.*: no such directory"):
        campaign.list(uri=protected["uri"].replace("testing", "absent"))


def test_the_token_is_sent_only_once_it_is_asked_for(campaign, misbehaving):
    campaign.stage(uri=f"{misbehaving.url('near')}/{{range}}/part*.parquet")
    assert misbehaving.count("near", "GET", ".parquet") == 12
    assert not any("authorization" in one.headers for one in misbehaving.asked)


def test_one_list_names_files_by_federation_and_by_host(campaign, federation, host, tmp_path):
    path = f"/icecube/wipac/data/sim/testing/{FOLDER}/part-000"
    (tmp_path / f"{FOLDER}.txt").write_text(
        f"{federation.uri(path)}1.parquet\nhttps://{host}{path}2.parquet\n"
    )
    rows = campaign.stage(files=f"{tmp_path}/{{range}}.txt")
    campaign.assert_identical(rows)
    assert [row["path"] for row in rows] == ["part-0001.parquet", "part-0002.parquet"]
    assert campaign.ways(rows) == {"source-checksum": 2}
