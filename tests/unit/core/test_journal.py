import errno
import fcntl
import os
import subprocess
import sys
import threading
import time

import pytest

from crpipe.core import journal as module
from crpipe.core.errors import LedgerError
from crpipe.core.journal import Journal


@pytest.fixture
def journal(tmp_path):
    return Journal(tmp_path / "deep" / "journal.jsonl")


def test_rows_are_read_back_in_order_with_time_and_process(journal):
    journal.add("start", verb="split")
    journal.add("finished", verb="split", rows=3)
    first, second = journal.rows()
    assert (first["what"], second["what"], second["rows"]) == ("start", "finished", 3)
    assert first["time"] <= second["time"]
    assert first["pid"] == os.getpid()


def test_no_journal_yet_means_no_rows(journal):
    assert journal.rows() == []


def test_a_line_cut_by_a_crash_hides_no_other_and_no_row_joins_it(journal):
    journal.add("start", verb="split")
    with journal.path.open("a") as handle:
        handle.write('{"time": 1, "what": "fin')
    assert [row["what"] for row in journal.rows()] == ["start"]
    journal.add("start", verb="split")
    assert [row["what"] for row in journal.rows()] == ["start", "start"]


def test_rows_of_many_processes_never_mix(journal):
    code = (
        "import sys; from pathlib import Path; from crpipe.core.journal import Journal\n"
        "for i in range(200): Journal(Path(sys.argv[1])).add('row', text='x' * 500, number=i)"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, str(journal.path)]) for _ in range(3)]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    rows = journal.rows()
    for pid in {row["pid"] for row in rows}:
        assert [row["number"] for row in rows if row["pid"] == pid] == list(range(200))
    assert len(rows) == 600


@pytest.mark.parametrize(
    ("error", "text", "kind"),
    [
        (LedgerError("range 7 does not balance"), "range 7 does not balance", "LedgerError"),
        (KeyError("x"), "KeyError: 'x'", "KeyError"),
    ],
)
def test_an_attempt_records_what_ended_it(journal, error, text, kind):
    with pytest.raises(type(error)), journal.attempt("split", "0000000-0000999"):
        raise error
    start, failed = journal.rows()
    assert (start["what"], start["verb"], start["range"]) == ("start", "split", "0000000-0000999")
    assert (failed["what"], failed["error"], failed["kind"]) == ("failed", text, kind)


def test_an_attempt_that_ends_well_is_finished(journal):
    with journal.attempt("split", "0000000-0000999"):
        pass
    assert [row["what"] for row in journal.rows()] == ["start", "finished"]


def test_the_slurm_job_is_named(journal, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    journal.add("start")
    assert journal.rows()[0]["slurm_job"] == "4711"


def test_a_row_waits_for_one_that_another_process_writes(journal):
    """Two clients of NFS see the end of the file at the same place: the lock is what keeps them apart."""
    journal.add("first")
    with journal.path.open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        waiting = threading.Thread(target=journal.add, args=("second",))
        waiting.start()
        time.sleep(0.1)
        assert [row["what"] for row in journal.rows()] == ["first"]
    waiting.join()
    assert [row["what"] for row in journal.rows()] == ["first", "second"]


def test_a_suspended_writer_stops_no_job(journal, monkeypatch):
    monkeypatch.setattr(module, "_TRIES", 3)
    journal.add("first")
    with journal.path.open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        journal.add("second")
    assert len(journal.rows()) == 2


def test_a_file_system_without_locks_stops_no_job(journal, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", refuse)
    journal.add("first")
    assert len(journal.rows()) == 1
