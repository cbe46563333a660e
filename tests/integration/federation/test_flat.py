"""Directories of a federation that no ranges are cut into, and side tables from it."""

import os

import pytest

from crpipe.campaign.raw_files import read_manifest
from crpipe.campaign.records import table_paths
from crpipe.core.errors import ConfigError, ListingError
from crpipe.core.files import read_json, sha256
from crpipe.source.counting import count_files
from crpipe.source.listing import list_range
from crpipe.source.side_tables import stage_tables
from opened import opened

pytestmark = pytest.mark.federation
FOLDER = "0000000-0000999"


def listed(config, name, campaign):
    list_range(opened(config), name, campaign)
    return [entry.path for entry in read_manifest(config.paths().manifest(name))]


def configured(campaign, pattern, **ranges):
    root = campaign.source["uri"].partition("/{range}")[0]
    config = campaign.config(uri=f"{root}/{pattern}")
    ranges = config.ranges.model_copy(update={"last": "auto", "size": 10, **ranges})
    return config.model_copy(update={"ranges": ranges})


def test_one_directory_is_cut_into_ranges_by_position(campaign):
    config = configured(campaign, f"{FOLDER}/part-*.parquet")
    assert count_files(opened(config), campaign) == 11
    assert [str(name) for name in config.all_ranges()] == ["0000000-0000009", "0000010-0000011"]
    assert listed(config, "0000010-0000011", campaign) == ["part-0010.parquet", "part-0011.parquet"]


def test_all_directories_below_one_are_cut_into_ranges_by_position(campaign):
    config = configured(campaign, "**/part-*.parquet")
    assert count_files(opened(config), campaign) == 11
    assert listed(config, "0000010-0000011", campaign) == [
        f"{FOLDER}/part-{number}.parquet" for number in ("0010", "0011")
    ]


def test_one_directory_is_cut_into_ranges_by_number(campaign):
    config = configured(campaign, f"{FOLDER}/part-{{number:04}}.parquet")
    assert count_files(opened(config), campaign) == 11
    assert len(listed(config, "0000000-0000009", campaign)) == 10
    assert any("2 files in" in line and line.endswith("with other names: ignored") for line in campaign.lines)


def test_range_directories_are_counted(campaign):
    config = configured(campaign, "{range}/part-*.parquet", size=1000)
    assert count_files(opened(config), campaign) == 999


def test_a_missing_directory_is_told(campaign):
    campaign.give_token("storage.read:/")
    with pytest.raises(
        ListingError, match=r"the source: .*: no such directory \(status 404\) \(4 attempts\); check source"
    ):
        count_files(opened(configured(campaign, "absent/*.parquet")), campaign)


@pytest.fixture
def geometry(federation):
    """A side table in the part of the federation that needs a token."""
    path = federation.data / "icecube/wipac/data/sim/testing/geometry.csv"
    path.write_bytes(os.urandom(50_000))
    federation.warm()
    yield path
    path.unlink(missing_ok=True)


def with_table(campaign, name="geometry.csv"):
    uri = campaign.federation.uri(f"/icecube/wipac/data/sim/testing/{name}")
    return campaign.config(tables={"geometry": uri})


def test_a_side_table_arrives_verified_and_once(campaign, geometry):
    config = with_table(campaign)
    stage_tables(opened(config), campaign)
    row = read_json(config.paths().tables())["geometry"]
    assert (row["verified"], row["sha256"], row["size"]) == ("source-checksum", sha256(geometry), 50_000)
    assert table_paths(config.paths().tables())["geometry"].read_bytes() == geometry.read_bytes()
    stage_tables(opened(config), campaign)
    assert campaign.lines[-1] == "tables: 1 file, 0 staged, 1 verified again"


@pytest.mark.parametrize("size", [50_000, 50_001])
def test_a_side_table_that_changed_is_refused(campaign, geometry, federation, size):
    config = with_table(campaign)
    stage_tables(opened(config), campaign)
    before = table_paths(config.paths().tables())["geometry"].read_bytes()
    geometry.write_bytes(os.urandom(size))
    os.utime(geometry, (1e9, 1e9))
    federation.warm()
    with pytest.raises(ConfigError, match=r"geometry\.csv: changed since .*tables\.json was written"):
        stage_tables(opened(config), campaign)
    assert table_paths(config.paths().tables())["geometry"].read_bytes() == before


def test_a_side_table_that_is_not_there_is_named(campaign):
    with pytest.raises(
        ListingError,
        match=r"absent\.csv: cannot be looked up \(status 404\) .*; correct source\.tables\.geometry",
    ):
        stage_tables(opened(with_table(campaign, "absent.csv")), campaign)
