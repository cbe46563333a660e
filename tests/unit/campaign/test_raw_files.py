import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from crpipe.campaign.raw_files import (
    QUARANTINED,
    STAGED,
    Entry,
    StagedFile,
    Verification,
    check_paths,
    count_listed,
    far_fewer,
    read_manifest,
    read_staged,
    write_manifest,
    write_staged,
)
from crpipe.core.errors import DataError


@pytest.mark.parametrize(
    ("read", "names"),
    [
        (read_manifest, ["path", "uri"]),
        (read_manifest, ["other"]),
        (read_staged, ["path", "size"]),
        (read_staged, ["other"]),
    ],
)
def test_a_table_that_lacks_columns_is_damaged(tmp_path, read, names):
    path = tmp_path / "0000000-0000999.parquet"
    pq.write_table(pa.table({name: ["x"] for name in names}), path)
    with pytest.raises(DataError, match=r"0000000-0000999\.parquet: damaged .*delete it"):
        read(path)


def test_a_missing_staged_table_says_what_to_run(tmp_path):
    with pytest.raises(DataError, match="run `crpipe stage 0000000-0000999` first"):
        read_staged(tmp_path / "0000000-0000999.parquet")


def test_what_was_staged_is_read_back_with_the_numbers_that_name_files_in_shards(tmp_path):
    path = tmp_path / "0000000-0000999.parquet"
    entries = [Entry(name, f"file:///{name}", 3, None) for name in ("b", "a")]
    write_staged(
        path,
        [
            StagedFile(entries[0], Verification(3, "0a", "crc32c", "copy-compare")),
            StagedFile(entries[1], None, "short"),
        ],
    )
    first, second = read_staged(path)
    assert (first.number, first.path, first.uri, first.state, first.reason) == (
        0,
        "a",
        "file:///a",
        QUARANTINED,
        "short",
    )
    assert (second.number, second.path, second.size, second.state) == (1, "b", 3, STAGED)
    assert (second.checksum, second.algorithm, second.verified) == ("0a", "crc32c", "copy-compare")


@pytest.mark.parametrize("path", ["a.h5", "../a.h5", "a\nb.h5", "x" * 300])
def test_a_table_with_a_path_twice_or_a_bad_one_is_refused(tmp_path, path):
    """The guard of split: whatever listed a file twice, its events are not counted twice."""
    table = tmp_path / "0000000-0000999.parquet"
    entries = [Entry(path, f"file:///{path}", 3, None)] * 2
    write_staged(
        table, [StagedFile(entry, Verification(3, "0a", "crc32c", "copy-compare")) for entry in entries]
    )
    with pytest.raises(DataError, match=rf"{table.name}: .*; delete it and stage the range again"):
        read_staged(table)
    write_manifest(table, entries)
    with pytest.raises(DataError, match=r"; delete it and list the range again"):
        read_manifest(table)


@pytest.mark.parametrize(
    ("paths", "words"),
    [
        (["a.h5", "sub/b.h5", "x" * 250, "größe 1#?%.h5"], ""),
        (["a.h5", "a.h5"], "a.h5: listed twice"),
        (["/a.h5"], "outside"),
        (["a/../b.h5"], "outside"),
        (["a\x1b[2J.h5"], "cannot be printed"),
        (["a\udc80.h5"], "cannot be printed"),
        (["\u202ea.h5"], "cannot be printed"),
        (["ö" * 126], "250 bytes at most"),
    ],
)
def test_paths_name_one_file_each_inside_the_directory(paths, words):
    assert words in check_paths(paths)
    assert bool(words) == bool(check_paths(paths))


def test_ranges_with_far_fewer_files_are_found(tmp_path):
    assert far_fewer({"a": 100, "b": 98, "c": 49, "d": 100}) == {"c": 49}
    assert far_fewer({"a": 1}) == far_fewer({}) == {}
    write_manifest(tmp_path / "m.parquet", [Entry(name, "u", 3, None) for name in "abc"])
    assert (count_listed(tmp_path / "m.parquet"), count_listed(tmp_path / "none.parquet")) == (3, 0)
