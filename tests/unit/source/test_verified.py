import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from crpipe.campaign.raw_files import SIZE_ONLY, Entry, Verification
from crpipe.core import checksums
from crpipe.source.copies import VerificationLog

ENTRY = Entry("a.parquet", "pelican://h/a.parquet", 5, datetime(2025, 1, 1, tzinfo=UTC))


def remember(folder, verified="source-checksum", entry=ENTRY):
    (folder / entry.path).write_bytes(b"bytes")
    checksum = checksums.of_file(folder / entry.path, "adler32")
    proof = Verification(5, checksum, "adler32", verified)
    with VerificationLog(folder, require_checksum=False) as proofs:
        proofs.add(entry, proof)
    return proof


def test_a_sound_copy_is_kept(tmp_path):
    proof = remember(tmp_path)
    assert VerificationLog(tmp_path, require_checksum=True).keep([ENTRY]) == {"a.parquet": proof}


@pytest.mark.parametrize(
    "entry",
    [
        replace(ENTRY, uri="pelican://elsewhere/a.parquet"),
        replace(ENTRY, size=6),
        replace(ENTRY, mtime=datetime(2025, 1, 2, tzinfo=UTC)),
        replace(ENTRY, path="b.parquet", uri="pelican://h/b.parquet"),
    ],
)
def test_a_copy_of_something_else_is_not_kept(tmp_path, entry):
    remember(tmp_path)
    assert VerificationLog(tmp_path, require_checksum=False).keep([entry]) == {}


def test_a_copy_without_a_source_s_checksum_is_not_kept_where_one_is_required(tmp_path):
    proof = remember(tmp_path, SIZE_ONLY)
    assert VerificationLog(tmp_path, require_checksum=False).keep([ENTRY]) == {"a.parquet": proof}
    assert VerificationLog(tmp_path, require_checksum=True).keep([ENTRY]) == {}


@pytest.mark.parametrize(
    "line",
    [
        b'{"path": "b.parq',
        b"7",
        b"[1, 2]",
        b"null",
        b'{"path": "b.parquet", "listed": [], "size": 1}',
        b'{"path": ["b"], "listed": [], "size": 1, "checksum": "", "algorithm": "", "verified": ""}',
        b'{"path": "b.parquet", "listed": [], "another": 1}',
        b"\xff\xfe\x00",
    ],
)
def test_a_line_that_cannot_be_read_costs_one_copy(tmp_path, line):
    proof = remember(tmp_path)
    with (tmp_path / ".proofs.jsonl").open("ab") as memory:
        memory.write(line)
    assert VerificationLog(tmp_path, require_checksum=False).keep([ENTRY]) == {"a.parquet": proof}


def test_an_unfinished_copy_is_kept_under_its_listing_and_no_other(tmp_path):
    proofs = VerificationLog(tmp_path, require_checksum=False)
    (tmp_path / "below").mkdir()
    part = tmp_path / "below" / "a.parquet.part"
    for entries, kept in (([ENTRY], False), ([ENTRY], True), ([replace(ENTRY, mtime=None)], False)):
        part.write_bytes(b"beg")
        proofs.begin(entries)
        assert part.exists() == kept


ROW = {"path": "a.parquet", "listed": ["pelican://h/a.parquet", ""], "size": 5, "checksum": "0"}
ROW |= {"algorithm": "adler32", "verified": "size-only"}


@pytest.mark.parametrize(
    "row",
    [
        {name: ROW[name] for name in ROW if name != "checksum"},
        {**ROW, "size": "5"},
        {**ROW, "size": True},
        {**ROW, "listed": 7},
        {**ROW, "listed": [None, ""]},
        {**ROW, "path": ["a.parquet"]},
        {**ROW, "algorithm": {}},
        [],
        7,
        None,
        "text",
    ],
)
def test_a_line_that_is_no_proof_costs_one_copy_and_never_the_range(tmp_path, row):
    with (tmp_path / ".proofs.jsonl").open("w") as memory:
        memory.write(json.dumps(row) + "\n")
    entry = replace(ENTRY, path="b.parquet")
    proof = remember(tmp_path, entry=entry)
    found = VerificationLog(tmp_path, require_checksum=False).keep([ENTRY, entry])
    assert found == {"b.parquet": proof}


def test_a_proof_with_more_than_this_version_knows_is_taken(tmp_path):
    proof = remember(tmp_path)
    path = tmp_path / ".proofs.jsonl"
    path.write_text(json.dumps({**json.loads(path.read_text()), "etag": "x"}) + "\n")
    assert VerificationLog(tmp_path, require_checksum=False).keep([ENTRY]) == {"a.parquet": proof}


def test_bytes_that_are_no_text_cost_one_copy(tmp_path):
    proof = remember(tmp_path)
    with (tmp_path / ".proofs.jsonl").open("ab") as memory:
        memory.write(b"\xff\xfe\x00{\n")
    assert VerificationLog(tmp_path, require_checksum=False).keep([ENTRY]) == {"a.parquet": proof}
