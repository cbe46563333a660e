"""`check --source` finds what a listing lacked, or what changed since; its remedies lose nothing."""

import os

import numpy as np
import pytest

import raw_files
from checked import FIRST, SECOND, Checked
from crpipe.campaign.raw_files import read_manifest
from crpipe.check.check import open_files
from crpipe.check.findings import CheckReport
from crpipe.check.source_now import check_source
from crpipe.core.errors import DataError, ListingError
from crpipe.core.text import NullProgress
from named import READERS


@pytest.fixture
def campaign(tmp_path):
    data = tmp_path / "data"
    for number, name in enumerate((FIRST, SECOND)):
        (data / name).mkdir(parents=True)
        for place in range(3):
            raw_files.write_parquet(data / name / f"{place}.parquet", np.arange(9), seed=3 * number + place)
    keys = (f"source.uri={data}/{{range}}/*.parquet", f"source.reader={READERS['bundles']}")
    return Checked(tmp_path / "campaign", keys)


@pytest.fixture
def source(tmp_path):
    return tmp_path / "data"


def findings(campaign):
    """The one thing that is wrong, and what to type."""
    config, report = campaign.config, CheckReport()
    check_source(report, open_files(config), (), NullProgress())
    [finding] = report.errors
    with pytest.raises(DataError, match="1 thing is wrong"):
        campaign.crpipe("check", "--source")
    return finding.what, finding.remedy


def test_a_source_that_is_what_was_listed_is_fine(campaign):
    campaign.split(FIRST)
    campaign.crpipe("list", SECOND)
    assert "nothing is wrong" in campaign.crpipe("check", "--source")


def test_a_listing_that_lacked_files_is_found_later(campaign, source):
    late = source / FIRST / "2.parquet"
    late.rename(source / "late")
    campaign.split(FIRST)
    (source / "late").rename(late)
    assert "nothing is wrong" in campaign.crpipe("check")
    finding, remedy = findings(campaign)
    assert "2.parquet: new" in finding
    campaign.type(remedy)
    assert "nothing is wrong" in campaign.crpipe("check", "--source")
    assert len(read_manifest(campaign.paths.manifest(FIRST))) == 3


def test_a_file_that_was_written_again_is_found(campaign, source):
    campaign.split(FIRST)
    raw_files.write_parquet(source / FIRST / "1.parquet", np.arange(9), seed=77)
    os.utime(source / FIRST / "1.parquet", (2e9, 2e9))
    finding, remedy = findings(campaign)
    assert "1.parquet: " in finding
    campaign.type(remedy)
    assert "nothing is wrong" in campaign.crpipe("check", "--source")


def test_files_that_are_gone_are_a_note_once_their_range_is_split(campaign, source):
    campaign.split(FIRST)
    campaign.crpipe("list", SECOND)
    (source / FIRST / "0.parquet").unlink()
    said = campaign.crpipe("check", "--source")
    assert f"not judged: {FIRST}: 1 of its files are not in the source any more" in said
    (source / SECOND / "0.parquet").unlink()
    finding, remedy = findings(campaign)
    assert "0.parquet: gone" in finding
    campaign.type(remedy)
    campaign.crpipe("check", "--source")


def test_no_remedy_replaces_a_range_by_a_poorer_one(campaign, source):
    campaign.split(FIRST)
    (source / FIRST / "0.parquet").rename(source / FIRST / "9.parquet")
    finding, remedy = findings(campaign)
    assert "9.parquet: new, once the files that are gone are restored" in finding
    assert remedy == f"crpipe check --source {FIRST}"


def test_a_file_that_was_set_aside_is_not_missed(campaign, source):
    aside = Checked(campaign.folder, (*campaign.keys, "source.on_bad_file=quarantine"))
    aside.crpipe("list", FIRST)
    (source / FIRST / "1.parquet").unlink()
    for verb in ("stage", "split"):
        aside.crpipe(verb, FIRST)
    assert "nothing is wrong" in aside.crpipe("check", "--source")


def test_a_source_that_does_not_answer_is_an_error(campaign, source):
    campaign.split(FIRST)
    (source / FIRST).rename(source / "elsewhere")
    with pytest.raises(ListingError, match="cannot be listed"):
        campaign.crpipe("check", "--source")
