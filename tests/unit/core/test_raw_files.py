from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from crpipe.core.errors import DataError, SourceError
from crpipe.core.raw_files import (
    QUARANTINED,
    STAGED,
    Entry,
    Proof,
    RawFile,
    StagedFile,
    check_present,
    check_unchanged,
    read_manifest,
    read_staged,
    write_staged,
)


@pytest.mark.parametrize("names", [["path", "uri"], ["other"]])
def test_a_manifest_that_lacks_columns_is_damaged(tmp_path, names):
    path = tmp_path / "0000000-0000999.parquet"
    pq.write_table(pa.table({name: ["x"] for name in names}), path)
    with pytest.raises(DataError, match=r"0000000-0000999\.parquet: damaged .*delete it"):
        read_manifest(path)


@pytest.mark.parametrize("names", [["path", "size"], ["other"]])
def test_a_staged_table_that_lacks_columns_is_damaged(tmp_path, names):
    path = tmp_path / "0000000-0000999.parquet"
    pq.write_table(pa.table({name: ["x"] for name in names}), path)
    with pytest.raises(DataError, match=r"0000000-0000999\.parquet: damaged .*delete it"):
        read_staged(path)


def test_a_missing_staged_table_says_what_to_run(tmp_path):
    with pytest.raises(DataError, match="run `crpipe stage 0000000-0000999` first"):
        read_staged(tmp_path / "0000000-0000999.parquet")


def test_what_was_staged_is_read_back_with_the_numbers_that_name_files_in_shards(tmp_path):
    path = tmp_path / "0000000-0000999.parquet"
    entries = [Entry(name, f"file:///{name}", 3, None) for name in ("b", "a")]
    write_staged(
        path,
        [
            StagedFile(entries[0], Proof(3, "0a", "crc32c", "copy-compare")),
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


def test_a_copy_that_is_not_what_was_staged_is_named(tmp_path):
    (tmp_path / "a").write_bytes(b"123456789")
    good = RawFile(0, "a", "", 9, STAGED, "", "e3069283", "crc32c", "copy-compare")
    check_present(tmp_path, good)
    check_unchanged(tmp_path, good)
    with pytest.raises(SourceError, match="9 bytes, 8 were staged"):
        check_present(tmp_path, replace(good, size=8))
    with pytest.raises(SourceError, match="changed since it was staged"):
        check_unchanged(tmp_path, replace(good, checksum="0"))
    with pytest.raises(SourceError, match="missing, though it was staged"):
        check_present(tmp_path, replace(good, path="b"))
