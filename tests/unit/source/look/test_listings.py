import os
import shutil
import tempfile
from pathlib import Path

import pytest

from crpipe.campaign.raw_files import count_source_files, read_manifest
from crpipe.core.errors import ListingError, SourceError
from crpipe.core.ranges import Range
from crpipe.core.text import NullProgress
from crpipe.source.listing import list_range
from crpipe.source.look import listings
from crpipe.source.look.listings import look
from crpipe.source.retries import Failure, TemporaryFailure
from opened import opened


def looked(config, names, **options):
    return look(config, tuple(map(Range.parse, names)), **options)


def problem_of(config, *names):
    found = looked(config, names or ["0000000-0000999"])
    assert len(found.problems) == 1
    return found.problems[0]


def test_a_local_source_is_listed_and_nothing_is_written(configure, name, tmp_path):
    found = looked(configure(), [str(name)])
    assert [entry.size for entry in found.found[str(name)]] == [1000 * index + 1 for index in range(12)]
    assert not found.problems
    assert not (tmp_path / "results").exists()


def test_only_the_first_files_of_a_range_are_seen_and_listed(configure, name, tree):
    for file, number in (("part-0000.bin", 10), ("part-0001.bin", 9)):
        (tree / str(name) / file).rename(tree / str(name) / f"f{number}.parquet")
    config = configure(max_files=2, uri=f"{tree}/{{range}}/f*.parquet")
    (entries,) = looked(config, [str(name)]).found.values()
    assert [entry.path for entry in entries] == ["f9.parquet", "f10.parquet"]
    fewer = configure(max_files=1, uri=f"{tree}/{{range}}/f*.parquet")
    list_range(opened(fewer), str(name), NullProgress())
    manifest = fewer.paths().manifest(str(name))
    assert [entry.path for entry in read_manifest(manifest)] == ["f9.parquet"]
    assert count_source_files(manifest) == 2


def test_a_manifest_of_all_files_counts_no_others(configure, name, tmp_path):
    list_range(opened(configure()), str(name), NullProgress())
    assert count_source_files(configure().paths().manifest(str(name))) is None
    assert count_source_files(tmp_path / "none") is None


def test_a_folder_in_place_of_a_pattern_is_named_with_the_pattern(configure, tree):
    said = problem_of(configure(uri=f"{tree}/{{range}}"))
    assert f"is a directory: write source.uri: {tree}/{{range}}/*.bin" in said
    said = problem_of(configure(uri=str(tree)))
    assert f"{tree} is a directory: write source.uri: {tree}/{{range}}/*.bin" in said
    said = problem_of(configure(uri=f"{tree}/0000000-0000999"))
    assert f"write source.uri: {tree}/0000000-0000999/*.bin" in said


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may act as another user")
@pytest.mark.parametrize("mode", [0o700, 0o711, 0o744])
def test_a_directory_that_may_not_be_read_is_no_empty_one(configure, mode):
    top = Path(tempfile.mkdtemp(prefix="crpipe-closed-"))
    (top / "0000000-0000999").mkdir()
    (top / "0000000-0000999" / "a.bin").write_text("x")
    top.chmod(0o711)
    (top / "0000000-0000999").chmod(mode)
    config = configure(uri=f"{top}/{{range}}/*.bin")
    os.seteuid(65534)
    try:
        said = problem_of(config)
    finally:
        os.seteuid(0)
        shutil.rmtree(top)
    assert f"chmod u+rx {top}/0000000-0000999" in said
    assert "holds" not in said


def test_a_missing_directory_says_what_is_there(configure, tree):
    said = problem_of(configure(uri=f"{tree}x/{{range}}/*.bin"))
    assert "No such file or directory" in said
    assert f"{tree.parent} holds data; correct source.uri" in said
    assert "check source.uri" not in said  # one advice
    said = problem_of(configure(), "0001000-0001999")
    assert f"{tree} holds 0000000-0000999; set ranges.first, ranges.last and ranges.step" in said
    said = problem_of(configure(uri=f"{tree}/0000000-0000999/{{range}}/*.bin"))
    assert f"for the files of this one directory write source.uri: {tree}/0000000-0000999/*.bin" in said
    said = problem_of(configure(uri=f"{tree}/{{range}}/*.h5"))
    assert "0 files match" in said
    assert "0000000-0000999 holds README.txt, part-0000.bin" in said


def test_later_ranges_that_are_missing_are_named_with_the_last_that_is_there(configure, tree):
    names = ["0000000-0000999", *(f"{place:03d}1000-{place:03d}1999" for place in range(6))]
    found = looked(configure(), names)
    assert list(found.found) == names[:1]
    assert len(found.problems) == 5
    assert "set ranges.last to 999 if that is all" in found.problems[-1]


@pytest.mark.parametrize("pattern", ["f_{number}.bin", "*.bin"])
def test_files_of_one_directory_are_seen_range_by_range(configure, tmp_path, pattern):
    folder = tmp_path / "flat"
    folder.mkdir()
    for number in range(20):
        (folder / f"f_{number}.bin").write_bytes(b"x" * (number + 1))
    config = configure(uri=f"{folder}/{pattern}")
    found = looked(config, ["0000000-0000009", "0000010-0000019"])
    assert [sum(entry.size for entry in entries) for entries in found.found.values()] == [55, 155]
    many = looked(config, ["0000000-0000099"])
    if "{" in pattern:
        assert "80 of 100 files are missing" in many.problems[0]
        assert "f_20.bin, f_21.bin" in many.problems[0]
    else:
        assert "holds 20 files, numbers 0 to 19; set ranges.last to 19" in many.problems[0]
    nothing = looked(configure(uri=f"{folder}/*.h5"), ["0000000-0000009"])
    assert "0 files match" in nothing.problems[0]


def test_lists_of_files_are_looked_up(configure, tree, tmp_path):
    names = [f"data/0000000-0000999/part-{number:04d}.bin" for number in range(4)]
    (tmp_path / "all.txt").write_text("\n".join(names))
    found = looked(configure(files=str(tmp_path / "all.txt"), uri=""), ["0000000-0000001"])
    assert [entry.size for entry in found.found["0000000-0000001"]] == [1, 1001]
    (tmp_path / "0000000-0000009.txt").write_text("\n".join(names))
    found = looked(configure(files=f"{tmp_path}/{{range}}.txt", uri=""), ["0000000-0000009"])
    assert len(found.found["0000000-0000009"]) == 4


def test_a_local_source_has_a_time_limit(configure, tree, monkeypatch):
    (tree / "0001000-0001999").mkdir()
    monkeypatch.setattr(listings, "LOCAL_S", 0.0)
    found = looked(configure(), ["0000000-0000999", "0001000-0001999"])
    assert found.notes == ["2 other ranges were not listed within 0 s"]
    assert not found.problems


def test_what_has_nothing_to_list_says_so(configure, name):
    simulated = looked(configure(uri="synthetic://"), [str(name)])
    assert simulated.notes == ["nothing: a simulator makes the files when they are staged"]
    assert looked(configure(), []).notes == ["nothing new: every range is listed"]
    remote = configure(uri="pelican://localhost:1/x/{range}/*.bin")
    offline = looked(remote, [str(name)], offline=True)
    assert offline.notes == ["nothing: --offline skips a remote source"]


def raising(error, cause=None):
    def entries_of(*_):
        raise error from cause

    return entries_of


@pytest.mark.parametrize(
    ("error", "cause", "warns"),
    [
        (ListingError("out of reach; run again"), TemporaryFailure("no route", Failure.SERVER_BUSY), True),
        (SourceError("no answer"), None, True),
        (ListingError("no such directory (status 404)"), None, False),
    ],
)
def test_a_remote_source_that_is_out_of_reach_is_a_warning(configure, name, monkeypatch, error, cause, warns):
    monkeypatch.setattr(listings, "entries_of", raising(error, cause))
    found = looked(configure(uri="pelican://host/x/{range}/*.bin"), [str(name)])
    assert bool(found.warnings) is warns
    assert bool(found.problems) is not warns
    if warns:
        assert "`crpipe plan --offline` skips this" in found.warnings[0]


def test_of_a_remote_source_the_first_range_is_listed(configure, name, tree, monkeypatch):
    entries = looked(configure(), [str(name)]).found[str(name)]
    monkeypatch.setattr(listings, "entries_of", lambda *_: entries)
    found = looked(configure(uri="pelican://host/x/{range}/*.bin"), [str(name), "0001000-0001999"])
    assert list(found.found) == [str(name)]
    assert found.notes == ["1 more ranges of this remote source are not listed yet"]
