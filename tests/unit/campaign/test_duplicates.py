"""The same content in two ranges is found by plan, status and check, and not trained on unless allowed."""

import json
import re
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest

import raw_files
from campaign_files import write_ledger
from checked import FIRST, SECOND, Checked
from crpipe.campaign import duplicates
from crpipe.campaign.duplicates import find_twins
from crpipe.campaign.ledger import read_contents
from crpipe.core.errors import DataError, SourceError
from crpipe.core.files import read_json
from named import READERS

ALLOW = "ranges.duplicates=allow"
SAME = r"have the same content, so their events count twice"


def make_data(folder):
    """Two ranges of two files each; every file is another one."""
    for number, name in enumerate((FIRST, SECOND)):
        (folder / name).mkdir(parents=True)
        for place in range(2):
            path = folder / name / f"{place}.parquet"
            raw_files.write_parquet(path, np.arange(10) + place, seed=2 * number + place)
    return folder


def campaign_of(folder, data):
    keys = (f"source.uri={data}/{{range}}/*.parquet", f"source.reader={READERS['bundles']}")
    return Checked(folder, keys)


@pytest.fixture
def data(tmp_path):
    return make_data(tmp_path / "data")


@pytest.fixture
def campaign(tmp_path, data):
    return campaign_of(tmp_path / "campaign", data)


@pytest.fixture(scope="module")
def split_once(tmp_path_factory):
    """Both ranges are split, and one file is in both."""
    folder = tmp_path_factory.mktemp("double")
    doubled(make_data(folder / "data"))
    campaign = campaign_of(folder / "campaign", folder / "data")
    campaign.split(FIRST, SECOND)
    return campaign


@pytest.fixture
def double(split_once, tmp_path):
    """A copy of it."""
    return split_once.copy(tmp_path / "campaign")


def doubled(data, name="again.parquet"):
    """Copy a file of the first range into the second one."""
    shutil.copyfile(data / FIRST / "0.parquet", data / SECOND / name)


def ranges_of(campaign):
    return [str(name) for name in campaign.config.all_ranges()]


def status(campaign):
    return json.loads(campaign.crpipe("status", "--json"))["duplicates"]


@pytest.mark.parametrize("name", ["again.parquet", "0.parquet"])
def test_a_file_that_is_in_two_ranges_is_found_and_not_trained_on(campaign, data, name):
    doubled(data, name)
    with pytest.raises(
        SourceError, match=rf"0\.parquet of range {FIRST} and {name} of range {SECOND} {SAME}"
    ):
        campaign.crpipe("plan")  # before anything is copied
    campaign.split(FIRST)
    assert status(campaign) == ""
    campaign.split(SECOND)
    said = status(campaign)
    assert said.startswith(f"0.parquet of range {FIRST} and {name} of range {SECOND} have the same content")
    assert f"ranges.skip: [{SECOND}]" in said
    assert "TWICE" in campaign.crpipe("status")
    [finding] = campaign.check().errors
    assert "have the same content" in finding.what
    assert "ranges.duplicates: allow" in finding.remedy
    for refused in (("plan",), ("consolidate",), ("train", SECOND)):
        with pytest.raises((DataError, SourceError), match=SAME):
            campaign.crpipe(*refused)
    assert not campaign.paths.receipt(SECOND).exists()


def test_a_file_that_is_in_two_ranges_is_used_twice_where_that_is_allowed(campaign, data):
    doubled(data)
    allowing = Checked(campaign.folder, (*campaign.keys, ALLOW))
    assert "(ranges.duplicates: allow)" in allowing.crpipe("plan")
    allowing.split(FIRST, SECOND)
    allowing.crpipe("consolidate")
    assert "ranges.duplicates: allow" in allowing.crpipe("check")
    assert "ranges.skip" not in status(allowing)
    # The key changes no data: it may be set once the files are found.
    assert status(campaign)


def test_a_skipped_range_is_not_compared(double):
    skipping = Checked(double.folder, (*double.keys, f"ranges.skip=[{SECOND}]"))
    assert status(skipping) == ""
    skipping.crpipe("consolidate")
    skipping.crpipe("plan")


def test_files_without_events_are_no_duplicates(campaign, data):
    for name in (FIRST, SECOND):
        raw_files.write_parquet(data / name / "none.parquet", [])
    assert (data / FIRST / "none.parquet").read_bytes() == (data / SECOND / "none.parquet").read_bytes()
    campaign.split(FIRST, SECOND)
    assert status(campaign) == ""
    assert campaign.check().errors == []


def test_a_file_twice_in_one_range_is_left_to_its_ledger(campaign, data):
    shutil.copyfile(data / FIRST / "0.parquet", data / FIRST / "again.parquet")
    campaign.split(FIRST, SECOND)
    assert status(campaign) == ""
    assert read_json(campaign.paths.ledger(FIRST))["repeated"]["events"] == 10


def test_equal_size_and_checksum_of_other_events_is_a_coincidence(double):
    campaign = double
    ledgers = [campaign.paths.ledger(name) for name in (FIRST, SECOND)]
    first, second = map(read_json, ledgers)
    second["files"][2]["checksum"] = "00000000"  # the file that is really there twice
    for key in ("size", "checksum", "events", "items"):
        second["files"][1][key] = first["files"][0][key]
    write_ledger(ledgers[1], second)
    assert read_contents(ledgers[0])[:8] == read_contents(ledgers[1])[8:16]
    assert find_twins(campaign.paths, ranges_of(campaign)) is None
    campaign.paths.multiplicity(SECOND).unlink()  # nothing says any more that it is one
    assert find_twins(campaign.paths, ranges_of(campaign)) is not None


def test_a_ledger_of_an_earlier_version_is_compared_by_its_files(double):
    for name in (FIRST, SECOND):
        path = double.paths.ledger(name)
        head, _, _ = path.read_text().rpartition(',\n "contents"')
        path.unlink()
        path.write_text(f"{head}\n}}\n")
        assert "contents" not in read_json(path)
    assert find_twins(double.paths, ranges_of(double)).paths == ("0.parquet", "again.parquet")


def test_every_pair_is_counted(campaign, data):
    shutil.rmtree(data / SECOND)
    shutil.copytree(data / FIRST, data / SECOND)
    campaign.split(FIRST, SECOND)
    found = find_twins(campaign.paths, ranges_of(campaign))
    assert (found.count, found.paths) == (2, ("0.parquet", "0.parquet"))
    assert "(and 1 more such pairs)" in found.describe()


def test_contents_are_read_from_the_end_of_a_ledger(tmp_path, split_once):
    whole = read_json(split_once.paths.ledger(FIRST))
    row = whole["files"][0]
    whole["files"] = [row | {"path": f"{place:06d}", "checksum": f"{place:08x}"} for place in range(20_000)]
    path = tmp_path / "ledgers" / "many.json"
    path.parent.mkdir()
    write_ledger(path, whole)
    keys = np.frombuffer(read_contents(path), np.uint64)
    assert len(np.unique(keys)) == 20_000
    with path.open("r+b") as file:  # nothing but the end is read
        file.seek(path.stat().st_size // 2)
        file.write(b"\0" * 1000)
    assert read_contents(path) == keys.tobytes()


def test_a_ledger_whose_contents_were_changed_is_damaged(double):
    path = double.paths.ledger(FIRST)
    text = path.read_text()
    place = text.index('"contents": "') + len('"contents": "')
    path.write_text(text[:place] + ("B" if text[place] == "A" else "A") + text[place + 1 :])
    assert any("damaged: its bytes are not those" in each.what for each in double.check().errors)


def test_contents_that_end_within_a_key_are_damaged(double):
    path = double.paths.ledger(FIRST)
    path.write_text(re.sub(r'"contents": "[^"]*"', '"contents": "AAAA"', path.read_text()))
    with pytest.raises(DataError, match=r"damaged \(cut in a key\); `crpipe check`"):
        find_twins(double.paths, ranges_of(double))


def test_the_tables_that_are_compared_hold_the_group(split_once):
    assert "primary_major_id" in pq.read_schema(split_once.paths.multiplicity(FIRST)).names


@pytest.mark.parametrize("few", [0, 500_000])
def test_many_files_are_compared_as_few_are(split_once, monkeypatch, few):
    monkeypatch.setattr(duplicates, "_FEW", few)
    assert find_twins(split_once.paths, ranges_of(split_once)).paths == ("0.parquet", "again.parquet")
    assert find_twins(split_once.paths, [FIRST]) is None
    keys = {FIRST: bytes(16) + b"one key." + b"another.", SECOND: bytes(24)}
    assert duplicates._pairs(keys) == []
    keys[SECOND] += b"another."
    assert duplicates._pairs(keys) == [((FIRST, 3), (SECOND, 3))]
