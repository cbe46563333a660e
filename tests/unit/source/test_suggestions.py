"""What lies in a folder: the ranges that fit, and for a typo what to write."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from crpipe.core.errors import ConfigError
from crpipe.core.ranges import Range
from crpipe.source import suggestions
from crpipe.source.suggestions import hint_of, pattern_of, suggest_ranges
from crpipe.source.uris import SourcePattern

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
    found = suggest_ranges(f"{data}/{{range}}/*.parquet")
    assert found.ranges == {"first": 0, "last": 15, "size": 4, "skip": ["0000008-0000011"]}
    assert "3 ranges" in found.text


def test_ranges_that_overlap_are_left_to_the_user(data):
    fill(data / "0000006-0000009", ["a.parquet"])
    found = suggest_ranges(f"{data}/{{range}}/*.parquet")
    assert found.ranges == {}
    assert "0000006-0000009 does not fit" in found.text


def test_numbered_files_give_their_numbers_and_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(suggestions, "MOST", 3)  # names that are read for a message: the ranges need all
    fill(tmp_path, [f"batch_{number}.parquet" for number in range(5, 41) if number != 9])
    found = suggest_ranges(f"{tmp_path}/batch_{{number}}.parquet")
    assert found.ranges == {"first": 5, "last": 40, "size": 4}
    assert "; missing between them, which stops their ranges: 1 number; name" in found.text


def test_a_flat_folder_and_a_list_are_counted(tmp_path):
    fill(tmp_path, [f"f{number}.h5" for number in range(25)])
    (tmp_path / "files.txt").write_text("f1.h5\n# a comment\nf2.h5\n")
    assert suggest_ranges(f"{tmp_path}/*.h5").ranges == {"first": 0, "last": "auto", "size": 3}
    listed = suggest_ranges("", str(tmp_path / "files.txt"))
    assert listed.ranges == {"first": 0, "last": "auto", "size": 1}
    (tmp_path / "files.txt").write_text("\n")
    with pytest.raises(ConfigError, match="names no file"):
        suggest_ranges("", str(tmp_path / "files.txt"))


def test_a_remote_source_is_checked_for_its_form_alone():
    assert suggest_ranges("pelican://host/data/{range}/*.parquet").ranges == {}
    with pytest.raises(ConfigError, match="ends in a directory"):
        suggest_ranges("pelican://host/data/{range}/")


@pytest.mark.parametrize(
    ("uri", "text"),
    [
        ("{data}", "3 range directories (0000000-0000003 … 0000012-0000015); write --uri"),
        ("{data}/{range}", "no file there matches; {data} holds 3 range directories"),
        ("{data}/{range}", "'{data}/{range}/*.parquet'"),
        ("{data}/{range}/*.h5", "no file in {data}/0000000-0000003 matches *.h5"),
        ("{data}/{range}/*.h5", "'{data}/{range}/*.parquet'"),
        ("{top}/dato/{range}/*.parquet", "did you mean {data}?"),
        ("{top}/dato", "did you mean {data}?"),
        ("{data}/0000000-0000003", "2 of them *.parquet"),
        ("{data}/0000000-0000003/*.root", "write --uri '{data}/0000000-0000003/*.parquet'"),
        ("{data}/{rnge}/*.parquet", "did you mean {range}?"),
        ("/nowhere/at/all/*.parquet", "/nowhere does not exist; / does"),
        ("{top}/*.parquet", "{top} holds the folders data, empty, short and no files"),
        ("{top}/empty/*.h5", "empty is empty"),
        ("{top}/short/{range}/*", "range directories have seven digits: name it 0000000-0000999"),
    ],
)
def test_a_typo_is_reported_with_what_lies_there(data, uri, text):
    (data.parent / "empty").mkdir()
    fill(data.parent / "short" / "0-999", ["a.parquet"])
    uri, text = (each.replace("{data}", str(data)).replace("{top}", str(data.parent)) for each in (uri, text))
    with pytest.raises(ConfigError) as error:
        suggest_ranges(uri)
    assert text in str(error.value)


@pytest.mark.parametrize(
    ("names", "uri"),
    [
        (["batch_7.parquet", "batch_12.parquet"], "--uri '{flat}/batch_{number}.parquet'"),
        (["batch_007.parquet", "batch_012.parquet"], "--uri '{flat}/batch_{number:03}.parquet'"),
        (["batch_07.parquet", "batch_012.parquet"], "--uri '{flat}/*.parquet'"),
        (["a.h5", "b.h5", "README.md"], "--uri '{flat}/*.h5'"),
        (["0000000-0000003.root", "0000004-0000007.root"], "--uri '{flat}/*.root'"),
        (["all.txt"], "if one of them is a list of files, write --files {flat}/all.txt"),
    ],
)
def test_a_folder_of_files_is_named_by_the_pattern_that_matches_them(tmp_path, names, uri):
    flat = tmp_path / "flat"
    fill(flat, names)
    with pytest.raises(ConfigError) as error:
        suggest_ranges(str(flat))
    assert uri.replace("{flat}", str(flat)) in str(error.value)
    if "--uri" in uri:
        assert suggest_ranges(uri.split("'")[1].replace("{flat}", str(flat))).text


def test_folders_below_are_named_whatever_notes_lie_beside_them(tmp_path):
    for name in ("E4-5", "E5-6"):
        fill(tmp_path / name, ["a.parquet", "b.parquet", "SHA256SUMS"])
    whole = f"{tmp_path}/**/*.parquet"
    for notes in ([], ["README.md"], ["README.md", "all.txt"]):
        fill(tmp_path, notes)
        for uri in (str(tmp_path), f"{tmp_path}/*.parquet"):
            with pytest.raises(ConfigError, match="holds the folders E4-5, E5-6.*; name the folder") as error:
                suggest_ranges(pattern_of(uri) or uri)
            assert f"for all of them write --uri '{whole}'" in str(error.value)
    assert suggest_ranges(whole).count == 4
    fill(tmp_path, ["c.parquet", "d.parquet", "e.parquet"])
    assert pattern_of(str(tmp_path)) == f"{tmp_path}/*.parquet"


def test_files_that_exist_are_taken_where_numbers_are_missing(tmp_path):
    fill(tmp_path, [f"f_{number}.root" for number in (3, 4, 5)])
    assert pattern_of(str(tmp_path)) == f"{tmp_path}/f_{{number}}.root"
    fill(tmp_path, ["f_9.root"])
    assert pattern_of(str(tmp_path)) == f"{tmp_path}/*.root"


def test_numbers_with_other_zeros_are_answered_with_what_lies_there(tmp_path):
    fill(tmp_path, ["f_7.root", "f_12.root"])
    with pytest.raises(ConfigError, match=r"no file there matches; .*--uri '.*/f_\{number\}\.root'"):
        suggest_ranges(f"{tmp_path}/f_{{number:06}}.root")


def test_what_a_pattern_leaves_out_is_named(tmp_path):
    fill(tmp_path, ["a.h5", "b.h5", "C.H5", "d.h5.gz"])
    assert "(*.h5; 2 left out: C.H5, d.h5.gz)" in suggest_ranges(f"{tmp_path}/*.h5").text


@pytest.mark.parametrize(
    ("uri", "name", "hint"),
    [
        ("{data}/{range}", RANGES[0], "{data} holds 3 range directories .*: {data}/{range}/*.parquet"),
        ("{data}", RANGES[0], "{data} holds 3 range directories .*: {data}/{range}/*.parquet"),
        ("{data}/0000000-0000003", RANGES[0], "write source.uri: {data}/0000000-0000003/*.parquet"),
        ("{data}/0000000-0000003/{range}/*", RANGES[0], "write source.uri: {data}/0000000-0000003/*.parquet"),
        ("{data}/{range}/*.parquet", "0001000-0001999", "set ranges.first, ranges.last and ranges.size"),
        ("{data}/{range}/*.parquet", RANGES[0], ""),
        ("pelican://host{data}/{range}/*.h5", RANGES[0], ""),
    ],
)
def test_the_hint_for_a_range_names_what_to_write(data, uri, name, hint):
    told = hint_of(SourcePattern(uri.replace("{data}", str(data))), Range.parse(name))
    for part in hint.replace("{data}", str(data)).split(".*: "):
        assert part in told
    assert bool(told) == bool(hint)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may act as another user")
@pytest.mark.parametrize("mode", [0o700, 0o711, 0o744])
def test_a_directory_that_may_not_be_read_is_no_empty_one(mode):
    top = Path(tempfile.mkdtemp(prefix="crpipe-closed-"))
    fill(top / RANGES[0], ["a.bin"])
    top.chmod(0o711)
    (top / RANGES[0]).chmod(mode)
    os.seteuid(65534)
    try:
        hint = hint_of(SourcePattern(f"{top}/{{range}}/*.bin"), Range.parse(RANGES[0]))
    finally:
        os.seteuid(0)
        shutil.rmtree(top)
    assert hint == f"make it readable: chmod u+rx {top}/{RANGES[0]}, or ask its owner"


def test_of_a_folder_that_cannot_be_read_is_said_so(data, monkeypatch):
    def refused(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(ConfigError, match=f"make it readable: chmod u.rx {data}, or ask its owner"):
        suggest_ranges(f"{data}/{{range}}/*.parquet")


def test_a_folder_that_may_not_be_listed_is_not_called_missing(data, monkeypatch):
    monkeypatch.setattr(suggestions, "_scan", lambda _: None)
    with pytest.raises(ConfigError, match=f"{data} cannot be read: permission denied"):
        suggest_ranges(str(data))
