"""Listings of a real origin: whole, or an error that names the range."""

import pytest

from crpipe.campaign.campaign import Campaign
from crpipe.core.errors import AccessError, ListingError, SourceError
from crpipe.setup.preview import look_at_source
from named import READERS

pytestmark = pytest.mark.federation
FOLDER = "0000000-0000999"


def test_a_listing_holds_names_sizes_and_times(campaign):
    entries = campaign.list()
    assert [entry.path for entry in entries] == [f"part-{index:04d}.parquet" for index in range(12)]
    assert [entry.size for entry in entries] == [20_000 + index for index in range(12)]
    assert entries[0].uri == campaign.source["uri"].replace("{range}/part-*", f"{FOLDER}/part-0000")
    assert all(entry.mtime for entry in entries)


@pytest.mark.parametrize(
    ("pattern", "count"), [("part-000[0-4].parquet", 5), ("part-????.parquet", 12), ("*.parquet", 13)]
)
def test_patterns_match_as_in_a_shell(campaign, pattern, count):
    assert len(campaign.list(uri=campaign.source["uri"].replace("part-*.parquet", pattern))) == count


def test_a_missing_directory_names_the_range(campaign):
    with pytest.raises(ListingError, match=rf"range {FOLDER}: .*: no such directory \(status 404\)"):
        campaign.list(uri=campaign.source["uri"].replace("testing", "absent"), token_file=wide(campaign))


def wide(campaign):
    campaign.give_token("storage.read:/")
    return str(campaign.token_file)


def test_a_path_of_no_namespace_names_the_federation(campaign):
    with pytest.raises(SourceError, match=r"nobody serves /elsewhere/.* \(status 404\); check source.uri"):
        campaign.list(uri=campaign.federation.uri("/elsewhere/{range}/*.parquet"))


def test_a_refused_token_names_the_range(campaign):
    campaign.give_token("storage.read:/elsewhere")
    with pytest.raises(AccessError, match=rf"range {FOLDER}: .*: listing refused \(status 403\)"):
        campaign.list()


def test_an_expired_token_is_told_before_the_server_is_asked(campaign):
    campaign.give_token(lifetime_s=-5)
    with pytest.raises(AccessError, match="the token expired on"):
        campaign.list()


def test_files_can_be_named_one_by_one(campaign, tmp_path):
    root = campaign.source["uri"].partition("/{range}")[0]
    (tmp_path / f"{FOLDER}.txt").write_text(
        f"{root}/{FOLDER}/part-0007.parquet\n{root}/{FOLDER}/part-0001.parquet\n"
    )
    entries = campaign.list(files=f"{tmp_path}/{{range}}.txt")
    assert [(entry.path, entry.size) for entry in entries] == [
        ("part-0001.parquet", 20_001),
        ("part-0007.parquet", 20_007),
    ]
    campaign.assert_identical(campaign.stage(files=f"{tmp_path}/{{range}}.txt"))


def test_a_named_file_that_is_not_there_is_told(campaign, tmp_path):
    root = campaign.source["uri"].partition("/{range}")[0]
    (tmp_path / f"{FOLDER}.txt").write_text(f"{root}/{FOLDER}/absent.parquet\n")
    with pytest.raises(ListingError, match=r"absent.parquet: cannot be looked up \(status 404\)"):
        campaign.list(files=f"{tmp_path}/{{range}}.txt")


def test_a_look_lists_the_first_range_and_reads_its_smallest_file(campaign):
    seen = look_at_source(Campaign.open(campaign.config(reader=READERS["bundles"])))
    assert seen.listed == {FOLDER: (12, sum(20_000 + index for index in range(12)))}
    # The files of this federation begin and end as Parquet, and hold no table.
    (problem,) = seen.problems
    assert problem.startswith(campaign.source["uri"].replace("{range}/part-*", f"{FOLDER}/part-0000"))
    assert "cannot be read whole" in problem
    assert not campaign.config().paths().manifest(FOLDER).exists()


def test_a_look_without_a_token_that_suits_is_a_warning(campaign):
    campaign.give_token("storage.read:/elsewhere")
    seen = look_at_source(Campaign.open(campaign.config(reader=READERS["bundles"])))
    assert not seen.listed
    assert not seen.problems
    assert "listing refused (status 403)" in seen.warnings[0]
