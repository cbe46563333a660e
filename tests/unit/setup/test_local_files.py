from pathlib import Path

import pytest

from crpipe.core.errors import ConfigError
from crpipe.setup.local_files import from_here, look
from crpipe.source.look import folders

RANGES = ("0000000-0000003", "0000004-0000007", "0000012-0000015")


def fill(folder, names):
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).touch()


@pytest.fixture
def data(tmp_path):
    for name in RANGES:
        fill(tmp_path / "data" / name, ["a.parquet", "b.parquet", "log.txt"])
    return tmp_path / "data"


def test_range_directories_give_first_last_step_and_the_missing_ones(data):
    found = look(f"{data}/{{range}}/*.parquet")
    assert found.ranges == {"first": 0, "last": 15, "step": 4, "skip": ["0000008-0000011"]}
    assert "3 ranges" in found.text


def test_ranges_that_overlap_are_left_to_the_user(data):
    fill(data / "0000006-0000009", ["a.parquet"])
    found = look(f"{data}/{{range}}/*.parquet")
    assert found.ranges == {}
    assert "0000006-0000009 does not fit" in found.text


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("{data}", "3 range directories (0000000-0000003 … 0000012-0000015); write --uri"),
        ("{data}/{range}", "no file in {data} matches"),
        ("{data}/{range}", "'{data}/{range}/*.parquet'"),
        ("{data}/{range}/*.h5", "'{data}/{range}/*.parquet'"),
        ("{data}/../dato/{range}/*.parquet", "did you mean {data}"),
        ("{data}/0000000-0000003", "2 of them *.parquet"),
        ("{data}/0000000-0000003/*.root", "write --uri '{data}/0000000-0000003/*.parquet'"),
        ("{data}/{rnge}/*.parquet", "did you mean {range}?"),
        ("/nowhere/at/all/*.parquet", "/nowhere does not exist; / does"),
    ],
)
def test_a_typo_is_reported_with_what_lies_there(data, uri, said):
    with pytest.raises(ConfigError) as error:
        look(uri.replace("{data}", str(data)).replace("data/../dato", "dato"))
    assert said.replace("{data}", str(data)) in str(error.value)


@pytest.mark.parametrize(
    ("names", "uri"),
    [
        (["batch_7.parquet", "batch_12.parquet"], "batch_{number}.parquet"),
        (["batch_007.parquet", "batch_012.parquet"], "batch_{number:03}.parquet"),
        (["a.h5", "b.h5", "README.md"], "*.h5"),
        (["0000000-0000003.root", "0000004-0000007.root"], "*.root"),
    ],
)
def test_a_folder_of_files_is_named_by_the_pattern_that_matches_them(tmp_path, names, uri):
    fill(tmp_path / "flat", names)
    with pytest.raises(ConfigError) as error:
        look(f"{tmp_path}/flat")
    assert f"--uri '{tmp_path}/flat/{uri}'" in str(error.value)
    assert look(f"{tmp_path}/flat/{uri}").text


def test_numbered_files_give_their_numbers_and_what_is_missing(tmp_path):
    fill(tmp_path, [f"batch_{number}.parquet" for number in range(5, 41) if number != 9])
    found = look(f"{tmp_path}/batch_{{number}}.parquet")
    assert found.ranges == {"first": 5, "last": 40, "step": 4}
    assert "1 numbers between them are missing" in found.text


def test_a_flat_folder_and_a_list_are_counted(tmp_path):
    fill(tmp_path, [f"f{number}.h5" for number in range(25)])
    (tmp_path / "files.txt").write_text("f1.h5\n# a comment\nf2.h5\n")
    assert look(f"{tmp_path}/*.h5").ranges == {"first": 0, "last": "auto", "step": 3}
    assert look("", str(tmp_path / "files.txt")).ranges == {"first": 0, "last": "auto", "step": 1}


def test_an_empty_folder_and_an_empty_list_are_named(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="empty is empty"):
        look(f"{tmp_path}/empty/*.h5")
    (tmp_path / "files.txt").write_text("\n")
    with pytest.raises(ConfigError, match="names no file"):
        look("", str(tmp_path / "files.txt"))


def test_a_remote_source_is_checked_for_its_form_alone():
    assert look("pelican://host/data/{range}/*.parquet").ranges == {}
    with pytest.raises(ConfigError, match="ends in a directory"):
        look("pelican://host/data/{range}/")


def test_a_relative_path_is_absolute_where_the_campaign_is_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert from_here("data/*.h5", tmp_path / "trial") == f"{tmp_path}/data/*.h5"
    assert from_here("data/*.h5", tmp_path) == "data/*.h5"
    assert from_here("pelican://host/x", tmp_path / "trial") == "pelican://host/x"


def test_of_a_huge_folder_every_number_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "MOST", 3)
    monkeypatch.setattr(folders.names_in, "__defaults__", (3,))
    fill(tmp_path, [f"run_{number}.h5" for number in range(40)])
    assert look(f"{tmp_path}/run_{{number}}.h5").ranges == {"first": 0, "last": 39, "step": 4}


def test_of_a_folder_that_cannot_be_read_is_said_so(data, monkeypatch):
    def refused(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(folders.os, "scandir", refused)
    with pytest.raises(ConfigError, match="cannot be read: permission denied"):
        look(f"{data}/{{range}}/*.parquet")
    monkeypatch.setattr(Path, "is_file", refused)
    with pytest.raises(ConfigError, match="cannot be read: permission denied"):
        look(str(data))
