import pytest

from crpipe.core.errors import ConfigError, DataError, ListingError
from crpipe.core.files import read_json
from crpipe.core.text import NullProgress
from crpipe.source.positions import RecordedPositions, natural_order


@pytest.fixture
def positions(tmp_path):
    return RecordedPositions(tmp_path / "positions.json", tmp_path / "positions.parquet")


def test_numbers_in_names_sort_by_their_value():
    names = ["file10", "file2", "b", "file1a", "file1", "file01", "7", "10x3", "10x20"]
    assert natural_order(names) == ["7", "10x3", "10x20", "b", "file01", "file1", "file1a", "file2", "file10"]


def test_a_name_that_is_there_twice_is_refused():
    with pytest.raises(ListingError, match="names b twice"):
        natural_order(["a", "b", "b"])


def test_the_first_listing_is_recorded(positions):
    positions.record_or_check(["a", "b"], 1, "/data/*", NullProgress())
    assert read_json(positions.record) == {"files": 2, "last": 1, "source": "/data/*"}
    assert positions.read() == ["a", "b"]
    positions.record_or_check(["a", "b"], 1, "/data/*", NullProgress())


def test_a_later_listing_with_other_names_is_refused_with_the_differences(positions):
    names = [f"file{number}" for number in range(12)]
    positions.record_or_check(names, 11, "/data/*", NullProgress())
    with pytest.raises(ListingError) as caught:
        positions.record_or_check([*names[1:], "new"], 11, "/data/*", NullProgress())
    assert "  file0: gone\n  new: new\n" in str(caught.value)
    assert f"delete {positions.record} (no range is listed yet) to number them again" in str(caught.value)
    (positions.record.parent / "manifests").mkdir()
    (positions.record.parent / "manifests" / "0000000-0000011.parquet").touch()
    with pytest.raises(ListingError, match="set `results` to a new directory to number them again"):
        positions.record_or_check([*names[1:], "new"], 11, "/data/*", NullProgress())
    with pytest.raises(ListingError, match=r"file4: gone\n  … and 7 more"):
        positions.record_or_check([], 11, "/data/*", NullProgress())
    assert positions.read() == names


def test_files_that_were_added_at_the_end_are_numbered_when_a_person_says_so(positions):
    positions.record_or_check(["file1", "file2"], 1, "/data/*", NullProgress())
    longer = ["file1", "file2", "file10"]
    with pytest.raises(ListingError, match=r"file10: new\n.*crpipe count --grown numbers them, too"):
        positions.record_or_check(longer, 2, "/data/*", NullProgress())
    positions.record_or_check(longer, 2, "/data/*", NullProgress(), grown=True)
    assert (positions.read(), read_json(positions.record)["last"]) == (longer, 2)
    positions.record_or_check(longer, 2, "/data/*", NullProgress())


@pytest.mark.parametrize("names", [["file0", "file1", "file2"], ["file1", "file10"], ["file1"], []])
def test_no_number_changes_where_a_source_grew(positions, names):
    positions.record_or_check(["file1", "file2"], 1, "/data/*", NullProgress())
    with pytest.raises(ListingError, match="restore the old files"):
        positions.record_or_check(names, 2, "/data/*", NullProgress(), grown=True)
    assert positions.read() == ["file1", "file2"]


def test_a_growth_that_was_killed_between_its_files_is_finished(positions):
    positions.record_or_check(["file1"], 0, "/data/*", NullProgress())
    record = positions.record.read_bytes()
    positions.record_or_check(["file1", "file2"], 1, "/data/*", NullProgress(), grown=True)
    positions.record.write_bytes(record)
    positions.record_or_check(["file1", "file2"], 1, "/data/*", NullProgress(), grown=True)
    assert read_json(positions.record) == {"files": 2, "last": 1, "source": "/data/*"}


def test_the_record_of_another_source_is_refused(positions):
    positions.record_or_check(["a"], 0, "/data/*", NullProgress())
    with pytest.raises(
        ConfigError, match=r"numbers the files of /data/\*, not of /new/\*; restore source.uri"
    ):
        positions.check_source("/new/*")


def test_a_damaged_record_is_an_error_with_the_way_out(positions):
    positions.record_or_check(["a"], 0, "/data/*", NullProgress())
    positions.names.write_text("damaged")
    with pytest.raises(DataError, match=r"positions\.parquet: damaged .*delete it and"):
        positions.record_or_check(["a"], 0, "/data/*", NullProgress())
