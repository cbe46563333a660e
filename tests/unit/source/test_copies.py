import contextlib
import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from crpipe.campaign.raw_files import SIZE_ONLY, Entry, Verification
from crpipe.core import checksums
from crpipe.core.errors import AccessError, DiskError, SourceError, TransferError
from crpipe.core.text import NullProgress
from crpipe.source import copies
from crpipe.source.copies import Copies, CopyRules, VerificationLog, check_free_space
from crpipe.source.retries import Failure, TemporaryFailure
from crpipe.source.uris import SourceOptions

STRICT, LENIENT = (SourceOptions(require_checksum=required) for required in (True, False))

RULES = CopyRules("range R", "restore it")


class Scripted:
    """Copies by writing the name; what is scripted for a path happens first."""

    def __init__(self, script, verified="source-checksum"):
        self.script = script
        self.verified = verified

    async def fetch(self, entry, part):
        if self.script.get(entry.path):
            raise self.script[entry.path].pop(0)
        part.write_text(entry.path)
        return Verification(len(entry.path), "", "crc32c", self.verified)


@pytest.fixture
def copied(tmp_path, monkeypatch):
    """Copy a.h5 and b.h5; keywords of the test replace parts of that."""

    def run(script=None, rules=RULES, uris=("/s/a.h5", "/s/b.h5"), verified="source-checksum", **options):
        hosts = []

        def opener(_options, scheme, host, _deadline):
            hosts.append((scheme, host))
            return contextlib.nullcontext(Scripted(script or {}, verified))

        monkeypatch.setattr(copies, "open_copier", opener)
        entries = [Entry(uri.rpartition("/")[2], uri, 4, None) for uri in uris]
        job = Copies(tmp_path, entries, SourceOptions(attempts=2, **options), rules, NullProgress())
        job.run()
        job.hosts = hosts
        return job

    return run


def test_every_file_gets_its_name_once_it_is_verified(copied, tmp_path):
    job = copied()
    assert set(job.done) == {"a.h5", "b.h5"}
    assert (tmp_path / "b.h5").read_text() == "b.h5"
    assert not list(tmp_path.glob("*.part"))


def test_files_of_several_sources_are_copied_from_each(copied):
    job = copied(uris=("/s/a.h5", "pelican://h:1/b.h5", "pelican://h:1/c.h5", "osdf:///d.h5"))
    assert job.hosts == [("file", ""), ("pelican", "h:1"), ("osdf", "osg-htc.org")]
    assert len(job.done) == 4


def test_what_passes_is_tried_again(copied):
    assert len(copied({"a.h5": [TemporaryFailure("busy")]}).done) == 2


@pytest.mark.parametrize(
    ("error", "rules", "kind", "message"),
    [
        ([TransferError("a.h5: gone")], RULES, TransferError, "^a.h5: gone; restore it$"),
        (
            [TransferError("a.h5: gone")],
            CopyRules("range R", "restore it", "fail"),
            TransferError,
            "gone; restore it, or set such files aside with source.on_bad_file: quarantine",
        ),
        (
            [TemporaryFailure("cut"), TemporaryFailure("cut")],
            RULES,
            TransferError,
            r"^/s/a.h5: cut \(2 attempts\); run the same command again later$",
        ),
        (
            [TemporaryFailure("off", Failure.SERVER_BUSY)] * 2,
            RULES,
            SourceError,
            "off .* what is verified stays",
        ),
        (
            [TemporaryFailure("refused", Failure.DENIED)] * 2,
            RULES,
            AccessError,
            r"/s/a.h5: refused \(2 attempts\); renew it, see `crpipe token`",
        ),
    ],
)
def test_a_bad_file_stops_the_job_with_the_way_out(copied, error, rules, kind, message):
    with pytest.raises(kind, match=message):
        copied({"a.h5": list(error)}, rules)


def test_bad_files_are_set_aside_up_to_a_number(copied):
    rules = CopyRules("range R", "restore it", "quarantine", 1)
    assert copied({"a.h5": [TransferError("a.h5: gone")] * 2}, rules).bad == {
        "a.h5": "a.h5: gone; restore it"
    }
    script = {name: [TransferError(f"{name}: gone")] for name in ("c.h5", "d.h5")}
    with pytest.raises(SourceError, match="range R: 2 bad files, at most 1 may be set aside"):
        copied(script, rules, uris=("/s/c.h5", "/s/d.h5"))


def test_a_file_that_failed_is_tried_again_after_the_others(copied, tmp_path):
    rules = CopyRules("range R", "restore it", "quarantine", 1)
    for error in (
        TransferError("a.h5: gone"),
        TemporaryFailure("bad", Failure.WRONG_BYTES),
        TemporaryFailure("cut"),
    ):
        job = copied({"a.h5": [error] * (1 if isinstance(error, TransferError) else 2)}, rules)
        assert (job.bad, len(job.done)) == ({}, 2)
        for file in tmp_path.iterdir():
            file.unlink()


def test_a_file_whose_bytes_are_wrong_is_set_aside_whatever_another_one_does(copied, tmp_path):
    rules = CopyRules("range R", "restore it", "quarantine", 1)
    wrong, cut = TemporaryFailure("bad", Failure.WRONG_BYTES), TemporaryFailure("cut")
    job = copied({"a.h5": [wrong] * 4, "b.h5": Later(1, [cut] * 2)}, rules)
    assert list(job.bad) == ["a.h5"]
    assert not (tmp_path / "a.h5.part").exists()


def test_a_file_that_fails_is_set_aside_only_while_another_one_arrives(copied, tmp_path):
    rules = CopyRules("range R", "restore it", "quarantine", 1)
    job = copied({"a.h5": [TemporaryFailure("cut")] * 4}, rules)
    assert list(job.bad) == ["a.h5"]
    assert {file.name for file in tmp_path.iterdir()} == {".listing", ".proofs.jsonl", "b.h5"}
    (tmp_path / "b.h5").unlink()
    # b.h5 arrives first, and the copy that is to show that the source works fails like a.h5.
    script = {"a.h5": [TemporaryFailure("cut")] * 4, "b.h5": Later(1, [TemporaryFailure("cut")] * 2)}
    with pytest.raises(SourceError, match="which arrived before, fails now, too: nothing is set aside"):
        copied(script, rules)


class Later(list):
    """Outcomes of which the first ``good`` calls see nothing."""

    def __init__(self, good, errors):
        super().__init__(errors)
        self.good = good

    def __bool__(self):
        self.good -= 1
        return self.good < 0 and len(self) > 0


def test_a_range_that_loses_more_than_half_of_its_files_fails(copied):
    rules = CopyRules("range R", "restore it", "quarantine", 10)
    script = {"a.h5": [TransferError("a.h5: gone")] * 2}
    with pytest.raises(SourceError, match=r"1 bad file, at most 0 may be set aside .* of the range, 1"):
        copied(script, rules, uris=("/s/a.h5",))


def test_an_outage_never_sets_a_file_aside(copied):
    rules = CopyRules("range R", "restore it", "quarantine", 1)
    with pytest.raises(SourceError, match="run the same command again later"):
        copied({"a.h5": [TemporaryFailure("off", Failure.SERVER_BUSY)] * 2}, rules)


def test_a_size_alone_is_refused_where_a_checksum_is_required(copied):
    with pytest.raises(TransferError, match="write source.require_checksum: false"):
        copied(verified=SIZE_ONLY, require_checksum=True)
    assert len(copied(verified=SIZE_ONLY).done) == 2


def test_a_disk_that_is_too_small_is_told(tmp_path):
    check_free_space(tmp_path, 1, "tables")
    with pytest.raises(
        DiskError, match=rf"tables: [\d,.]+ [KMGT]iB needed below {tmp_path}, .*free some space"
    ):
        check_free_space(tmp_path, 1 << 60, "tables")


def test_a_link_in_the_place_of_a_directory_below_is_refused(tmp_path, monkeypatch):
    home, raw = tmp_path / "home", tmp_path / "staged" / "R"
    home.mkdir()
    (raw / "a").mkdir(parents=True)
    (raw / "a" / "b").symlink_to(home)
    monkeypatch.setattr(copies, "open_copier", lambda *_: contextlib.nullcontext(Scripted({})))
    entries = [Entry("a/b/c.h5", "/s/a/b/c.h5", 8, None)]
    with pytest.raises(DiskError, match=r"a/b: a link.* remove it"):
        Copies(raw, entries, SourceOptions(attempts=2), RULES, NullProgress()).run()
    assert list(home.iterdir()) == []
    (raw / "a" / "b").unlink()
    Copies(raw, entries, SourceOptions(attempts=2), RULES, NullProgress()).run()
    assert (raw / "a" / "b" / "c.h5").exists()


ENTRY = Entry("a.parquet", "pelican://h/a.parquet", 5, datetime(2025, 1, 1, tzinfo=UTC))


def remember(folder, verified="source-checksum", entry=ENTRY):
    (folder / entry.path).write_bytes(b"bytes")
    checksum = checksums.of_file(folder / entry.path, "adler32")
    proof = Verification(5, checksum, "adler32", verified)
    with VerificationLog(folder, LENIENT) as proofs:
        proofs.add(entry, proof)
    return proof


def test_a_sound_copy_is_kept(tmp_path):
    proof = remember(tmp_path)
    assert VerificationLog(tmp_path, STRICT).keep([ENTRY]) == {"a.parquet": proof}


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
    assert VerificationLog(tmp_path, LENIENT).keep([entry]) == {}


def test_a_copy_without_a_source_s_checksum_is_not_kept_where_one_is_required(tmp_path):
    proof = remember(tmp_path, SIZE_ONLY)
    assert VerificationLog(tmp_path, LENIENT).keep([ENTRY]) == {"a.parquet": proof}
    assert VerificationLog(tmp_path, STRICT).keep([ENTRY]) == {}


def test_an_unfinished_copy_is_kept_under_its_listing_and_no_other(tmp_path):
    proofs = VerificationLog(tmp_path, LENIENT)
    (tmp_path / "below").mkdir()
    part = tmp_path / "below" / "a.parquet.part"
    for entries, kept in (([ENTRY], False), ([ENTRY], True), ([replace(ENTRY, mtime=None)], False)):
        part.write_bytes(b"beg")
        proofs.begin(entries)
        assert part.exists() == kept


ROW = {"path": "a.parquet", "listed": ["pelican://h/a.parquet", ""], "size": 5, "checksum": "0"}
ROW |= {"algorithm": "adler32", "verified": "size-only"}


@pytest.mark.parametrize(
    "line",
    [
        *(
            json.dumps(row).encode() + b"\n"
            for row in (
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
            )
        ),
        b"\xff\xfe\x00{\n",
    ],
)
def test_a_line_that_is_no_proof_costs_one_copy_and_never_the_range(tmp_path, line):
    (tmp_path / ".proofs.jsonl").write_bytes(line)
    entry = replace(ENTRY, path="b.parquet")
    proof = remember(tmp_path, entry=entry)
    found = VerificationLog(tmp_path, LENIENT).keep([ENTRY, entry])
    assert found == {"b.parquet": proof}


def test_a_last_line_that_was_cut_costs_one_copy(tmp_path):
    proof = remember(tmp_path)
    with (tmp_path / ".proofs.jsonl").open("ab") as memory:
        memory.write(b'{"path": "b.parq')
    assert VerificationLog(tmp_path, LENIENT).keep([ENTRY]) == {"a.parquet": proof}


def test_a_proof_with_more_than_this_version_knows_is_taken(tmp_path):
    proof = remember(tmp_path)
    path = tmp_path / ".proofs.jsonl"
    path.write_text(json.dumps({**json.loads(path.read_text()), "etag": "x"}) + "\n")
    assert VerificationLog(tmp_path, LENIENT).keep([ENTRY]) == {"a.parquet": proof}
