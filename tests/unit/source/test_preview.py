"""What a source holds now: the files that `list` takes, a copy of one of them, and two that are the same."""

from dataclasses import replace

import pytest

from crpipe.campaign.raw_files import Entry, count_source_files, read_manifest
from crpipe.core.errors import AccessError, FormatError, ListingError, SourceError
from crpipe.core.ranges import Range
from crpipe.source import preview, range_files
from crpipe.source.preview import fetch_sample, find_same, list_now, smallest, typical
from crpipe.source.retries import Failure, TemporaryFailure
from opened import listed

NAME = "0000000-0000009"


def listed_now(config, *names, **options):
    return list_now(config, tuple(map(Range.parse, names)), **options)


def problem_of(config, *names):
    (problem,) = listed_now(config, *(names or ["0000000-0000999"])).problems
    return problem


def fill(folder, names):
    folder.mkdir(parents=True, exist_ok=True)
    for size, name in enumerate(names, 1):
        (folder / name).write_bytes(b"x" * size)


@pytest.mark.parametrize("most", [0, 3])
@pytest.mark.parametrize(
    ("uri", "files"),
    [
        ("{top}/in ranges/{range}/f_*.bin", ""),
        ("{top}/flat/f_{number}.bin", ""),
        ("{top}/flat/*.bin", ""),
        ("", "{top}/all.txt"),
        ("", "{top}/{range}.txt"),
    ],
)
def test_of_every_kind_of_source_a_preview_names_the_files_that_are_listed(
    configure, tmp_path, uri, files, most
):
    names = [f"f_{number}.bin" for number in range(12)]
    fill(tmp_path / "flat", [*names, "notes.txt"])
    fill(tmp_path / "in ranges" / NAME, [*names[:10], "notes.txt"])
    (tmp_path / "all.txt").write_text("\n".join(f"flat/{name}" for name in reversed(names)))
    (tmp_path / f"{NAME}.txt").write_text("\n".join(f"flat/{name}" for name in reversed(names[:10])))
    keys = {"uri": uri.replace("{top}", str(tmp_path)), "files": files.replace("{top}", str(tmp_path))}
    config = configure(max_files=most, **keys)
    found = listed_now(config, NAME)
    assert not found.problems
    assert not (tmp_path / "results").exists()
    assert [entry.size for entry in found.files[NAME]] == list(range(1, 11))[: most or None]
    listed(config, NAME)
    manifest = config.paths().manifest(NAME)
    assert read_manifest(manifest) == found.files[NAME]
    assert count_source_files(manifest) == (10 if most else None)


def test_what_is_wrong_with_the_files_of_a_range_is_a_problem(configure, tmp_path):
    fill(tmp_path / "flat", [f"f_{number}.bin" for number in range(20)])
    numbered = problem_of(configure(uri=f"{tmp_path}/flat/f_{{number}}.bin"), "0000000-0000099")
    assert "80 of 100 files are missing" in numbered
    assert "f_20.bin, f_21.bin" in numbered
    flat = problem_of(configure(uri=f"{tmp_path}/flat/*.bin"), "0000000-0000099")
    assert flat.endswith("holds 20 files, numbers 0 to 19; set ranges.last to 19, or to auto")
    assert "12 files match" in problem_of(configure(min_files=13))
    (tmp_path / "twice.txt").write_text("flat/f_1.bin\n../data/x\n")
    assert "cannot be looked up" in problem_of(
        configure(files=str(tmp_path / "twice.txt")), "0000000-0000001"
    )


def test_of_what_is_missing_one_advice_says_what_is_there(configure, tree):
    problem = problem_of(configure(uri=f"{tree}x/{{range}}/*.bin"))
    assert "No such file or directory" in problem
    assert problem.endswith(f"{tree}x does not exist; did you mean {tree}?")
    assert "check source.uri" not in problem
    problem = problem_of(configure(uri=f"{tree}/{{range}}/*.h5"))
    assert "0 files match" in problem
    assert problem.endswith(f"1 range directory (0000000-0000999); write source.uri: {tree}/{{range}}/*.bin")


def test_later_ranges_that_are_missing_are_named_with_the_last_that_is_there(configure):
    names = ["0000000-0000999", *(f"{index:03d}1000-{index:03d}1999" for index in range(6))]
    found = listed_now(configure(), *names)
    assert list(found.files) == names[:1]
    assert len(found.problems) == 5
    assert found.problems[3].startswith("3 more ranges like these: 0031000-0031999, ")
    assert "set ranges.last to 999 if that is all" in found.problems[-1]


def test_a_gap_before_the_last_range_is_not_said_to_end_the_source(configure, tree):
    (tree / "0002000-0002999").mkdir()
    (tree / "0002000-0002999/a.bin").write_bytes(b"x" * 10)
    found = listed_now(configure(), "0000000-0000999", "0001000-0001999", "0002000-0002999")
    assert found.problems[-1] == "2 ranges found, up to 0002000-0002999: name the missing ones in ranges.skip"


def test_a_local_source_has_a_time_limit(configure, tree, monkeypatch):
    (tree / "0001000-0001999").mkdir()
    monkeypatch.setattr(preview, "LIMIT_S", 0.0)
    found = listed_now(configure(), "0000000-0000999", "0001000-0001999")
    assert found.notes == ["2 other ranges not listed within 0 s"]
    assert not found.problems


def test_what_has_nothing_to_list_says_so(configure, name):
    simulated = listed_now(configure(uri="synthetic://"), str(name))
    assert simulated.notes == ["nothing: a simulator makes the files when they are staged"]
    assert listed_now(configure()).notes == ["nothing new: every range is listed"]
    offline = listed_now(configure(uri="pelican://localhost:1/x/{range}/*.bin"), str(name), offline=True)
    assert offline.notes == ["nothing: --offline skips a remote source"]


@pytest.mark.parametrize(
    ("error", "cause", "warns"),
    [
        (ListingError("out of reach; run again"), TemporaryFailure("no route", Failure.SERVER_BUSY), True),
        (SourceError("no answer"), None, True),
        (AccessError("refused; put a token into bt_u1"), None, True),
        (ListingError("no such directory (status 404)"), None, False),
    ],
)
def test_a_remote_source_that_is_out_of_reach_is_a_warning(configure, name, monkeypatch, error, cause, warns):
    def entries_of(*_):
        raise error from cause

    monkeypatch.setattr(range_files, "entries_of", entries_of)
    found = listed_now(configure(uri="pelican://host/x/{range}/*.bin"), str(name))
    assert bool(found.warnings) is warns
    assert bool(found.problems) is not warns
    if warns:
        why = error if isinstance(error, AccessError) else str(error).partition(";")[0]  # with its remedy
        assert found.warnings == [f"the source was not read: {why}; `crpipe plan --offline` skips this"]


def test_of_a_remote_source_the_first_range_is_listed(configure, name, monkeypatch):
    entries = listed_now(configure(), str(name)).files[str(name)]
    monkeypatch.setattr(range_files, "entries_of", lambda *_: entries)
    found = listed_now(configure(uri="pelican://host/x/{range}/*.bin"), str(name), "0001000-0001999")
    assert list(found.files) == [str(name)]
    assert found.notes == ["1 more range of this remote source not listed yet"]


def test_the_smallest_or_the_middle_file_that_is_not_empty_is_chosen():
    sizes = {"a": 9, "b": 0, "c": 3, "d": 7}
    entries = [Entry(name, name, size, None) for name, size in sizes.items()]
    assert (smallest(entries).path, typical(entries).path) == ("c", "d")
    assert smallest(entries[1:2]) is typical(entries[1:2]) is None


def test_one_file_is_copied_within_its_size(configure, tmp_path, monkeypatch):
    (tmp_path / "raw").write_bytes(b"12345")
    entry, copy = Entry("raw", str(tmp_path / "raw"), 5, None), tmp_path / "copy"
    fetch_sample(configure(), entry, copy)
    assert copy.read_bytes() == b"12345"
    with pytest.raises(SourceError, match="it changed"):
        fetch_sample(configure(), replace(entry, size=4), copy)
    with pytest.raises(FormatError, match="is no HDF5 file"):
        fetch_sample(configure(), replace(entry, path="raw.h5"), copy)
    monkeypatch.setattr(preview, "MOST_BYTES", 4)
    with pytest.raises(SourceError, match="at most are read"):
        fetch_sample(configure(), entry, copy)


def test_files_of_the_same_content_are_found_in_two_ranges_alone(tmp_path):
    texts = {
        "a": b"x" * 10_000,
        "b": b"x" * 10_000,
        "c": b"x" * 4999 + b"y" + b"x" * 5000,
        "d": b"z" * 10_000,
    }
    for name, text in texts.items():
        (tmp_path / name).write_bytes(text)

    def listed(names):
        return [Entry(name, str(tmp_path / name), 10_000, None) for name in names]

    twins = find_same({"one": listed("da"), "other": listed("cb")})
    assert (twins.ranges, twins.paths) == (("one", "other"), ("a", "b"))
    assert find_same({"one": listed("ab"), "other": listed("cd")[:1]}) is None
    assert find_same({"one": listed("a"), "other": listed("b")}, limit_s=-1) is None
    remote = [Entry("b", "pelican://host/b", 10_000, None), Entry("e", str(tmp_path / "e"), 10_000, None)]
    assert find_same({"one": listed("a"), "other": remote}) is None
