import errno
import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from crpipe.core import causes, errors
from crpipe.core.causes import (
    MEANINGS,
    OF_PROGRAMS,
    MachineWatch,
    expect,
    is_folder,
    is_plain,
    is_present,
    is_there,
    machine_error,
    plugin_errors,
)
from crpipe.core.errors import DiskError, HostMemoryError, MachineError, PlaceError, PluginError, UnseenError


def raised(number, path=None):
    return OSError(number, os.strerror(number), *([str(path)] if path else []))


@pytest.mark.parametrize("number", sorted(MEANINGS))
def test_each_errno_is_one_line_with_path_cause_and_what_to_do(number):
    found = machine_error(raised(number, "/data/a file"))
    assert found is not None
    assert str(found).startswith("/data/a file: ")
    assert "\n" not in str(found)
    assert "run the same command again" in str(found)
    needs_person = MEANINGS[number].when == "person"
    assert isinstance(found, PlaceError) == needs_person
    assert errors.is_retryable(type(found).__name__) != needs_person
    assert errors.exit_code_is_retryable(found.exit_code) != needs_person


def test_an_errno_that_nobody_knows_may_pass_and_is_named():
    found = machine_error(raised(errno.EXFULL, "/data/a"))
    assert type(found) is DiskError
    assert "EXFULL" in str(found)


@pytest.mark.parametrize(
    "error",
    [
        OSError("Can't read data (read failed: time = x, errno = 5, error message = 'Input/output error')"),
        RuntimeError("unable to write: No space left on device"),
        OSError("could not read: [Errno 116] Stale file handle"),
        OSError("error closing file"),
    ],
)
def test_an_errno_in_the_text_of_a_library_counts(error):
    assert type(machine_error(error, "/data/a")) is DiskError


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        pa.ArrowMemoryError("malloc of size 4000000 failed"),
        pa.ArrowException("Unknown error: std::bad_alloc"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
        MemoryError("Unable to allocate 7.45 GiB for an array with shape (1000000000,)"),
        raised(errno.ENOMEM),
    ],
)
def test_too_little_memory_is_the_machines(error):
    assert type(machine_error(error, "/data/a")) is HostMemoryError


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("can't start new thread"),
        pa.ArrowException("Unknown error: Failed to launch worker thread: Resource temporarily unavailable"),
    ],
)
def test_too_few_threads_are_the_machines(error):
    found = machine_error(error, "/data/a")
    assert re.match("/data/a: no process or thread can be started, .*run the same command again$", str(found))

    assert errors.exit_code_is_retryable(found.exit_code)
    with pytest.raises(MachineError), plugin_errors("the workload failed"):
        raise error


def test_a_library_without_memory_is_no_fault_of_a_plugin():
    with (
        pytest.raises(MachineError, match="a library cannot be loaded"),
        plugin_errors("the workload failed"),
    ):
        raise ImportError("libtorch_cpu.so: failed to map segment from shared object")


@pytest.mark.parametrize(
    "error",
    [
        ValueError("not a Parquet file"),
        pa.ArrowInvalid("Parquet magic bytes not found in footer"),
        OSError("Unexpected end of stream"),  # as pyarrow says it of wrong bytes
        pa.ArrowMemoryError("malloc of size 72057594037927936 failed"),
        MemoryError("Unable to allocate 64.0 PiB for an array with shape (9007199254740992,)"),
    ],
)
def test_wrong_bytes_are_not_the_machines(error):
    assert machine_error(error, "/data/a") is None


def test_a_length_beyond_all_proportion_to_its_file_was_read_from_wrong_bytes(tmp_path):
    path = tmp_path / "a.parquet"
    path.write_bytes(b"x" * 1000)
    assert machine_error(MemoryError("Unable to allocate 40.0 GiB for an array"), path) is None
    assert machine_error(MemoryError("Unable to allocate 512. MiB for an array"), path)


def test_what_an_error_was_raised_from_counts():
    def fails():
        try:
            raise raised(errno.EIO, "/data/a")
        except OSError as error:
            raise ValueError("truncated") from error

    with pytest.raises(DiskError, match="^/data/a"), MachineWatch():
        fails()


def test_an_error_of_a_program_is_not_hidden_by_a_missing_file_that_it_handled():
    def fails():
        try:
            raise raised(errno.ENOENT, "/data/a")
        except OSError:
            return {}["key"]

    with pytest.raises(KeyError), MachineWatch():
        fails()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EMFILE, errno.ENOMEM, errno.EACCES])
def test_a_plug_in_is_not_blamed_for_the_machine(number):
    with pytest.raises(MachineError, match="^/data/a"), plugin_errors("the workload failed"):
        raise raised(number, "/data/a")


@pytest.mark.parametrize("number", sorted(OF_PROGRAMS))
def test_a_plug_in_that_opens_what_is_not_there_is(number):
    with pytest.raises(PluginError, match="the workload failed"), plugin_errors("the workload failed"):
        raise raised(number, "/data/a")


def test_soon_is_tried_again_within_the_operation_and_later_is_not():
    waiting = [raised(errno.ESTALE), raised(errno.EAGAIN), raised(errno.EBUSY)]

    def operation():
        if waiting:
            raise waiting.pop()
        return "done"

    assert causes.retry_io(operation) == "done"
    calls = []

    def broken():
        calls.append(1)
        raise raised(errno.EIO)

    with pytest.raises(OSError, match="Input/output"):
        causes.retry_io(broken)
    assert len(calls) == 1


def test_a_file_that_was_not_found_but_is_there_is_looked_for_again(tmp_path):
    path = tmp_path / "late"
    path.touch()
    waiting = [raised(errno.ENOENT, path), OSError(errno.ENOENT, "Failed to open local file")]

    def operation():
        if waiting:
            raise waiting.pop()
        return "done"

    assert causes.retry_io(operation, path) == "done"
    path.unlink()
    waiting.append(raised(errno.ENOENT, path))
    with pytest.raises(FileNotFoundError):
        causes.retry_io(operation)
    assert waiting == []


def test_a_file_that_a_record_names_may_be_seen_late(tmp_path):
    path = tmp_path / "late"
    code = f"import pathlib, time; time.sleep(0.3); pathlib.Path({str(path)!r}).touch()"
    with subprocess.Popen([sys.executable, "-c", code]):
        assert is_there(path)


def test_a_file_that_stays_away_is_looked_for_again_and_nothing_is_deleted(tmp_path, monkeypatch):
    monkeypatch.setattr(causes, "_SOON_S", 0.1)
    with pytest.raises(UnseenError, match=r"not seen on this machine, though a\.json names it") as caught:
        expect(tmp_path / "none", Path("a.json"), "train it again")
    assert errors.exit_code_is_retryable(caught.value.exit_code)
    assert str(Path(tmp_path / "none")) in str(caught.value)


@pytest.mark.parametrize("verb", [["steps"], ["--help"]])
def test_a_full_output_is_one_line(verb):
    for unbuffered in ("", "1"):
        with Path("/dev/full").open("w") as full:
            command = [sys.executable, "-m", "crpipe", *verb]
            variables = os.environ | {"PYTHONUNBUFFERED": unbuffered}
            told = {"stdout": full, "stderr": subprocess.PIPE}
            done = subprocess.run(command, **told, env=variables, text=True, check=False)
        assert done.returncode == 74, done.stderr
        assert re.match("crpipe: standard output.*: cannot write: the disk is full", done.stderr)
        assert done.stderr.count("\n") == 1


def test_a_reader_of_the_output_that_has_ended_is_no_error():
    command = f"{sys.executable} -m crpipe --help | true"
    done = subprocess.run(["bash", "-c", command], stderr=subprocess.PIPE, text=True, check=False)
    assert done.stderr == ""


def test_what_may_be_missing_is_asked_for_once_more(tmp_path, monkeypatch):
    path, look = tmp_path / "a", Path.stat
    path.touch()
    missed = []

    def once(self, **options):
        if self == path and not missed:
            missed.append(self)
            raise FileNotFoundError(errno.ENOENT, "late", str(self))
        return look(self, **options)

    monkeypatch.setattr(Path, "stat", once)
    assert is_present(path)
    assert missed
    monkeypatch.undo()
    assert (is_plain(path), is_folder(path)) == (True, False)
    assert (is_plain(tmp_path), is_folder(tmp_path)) == (False, True)
    for none in (tmp_path / "b", path / "below a file", tmp_path / "no" / "folder", tmp_path / "nul\0"):
        assert not is_present(none)


def test_a_directory_that_may_not_be_listed_is_no_error(tmp_path, monkeypatch):
    def denied(path, flags):
        raise PermissionError(errno.EACCES, "denied", str(path))

    monkeypatch.setattr(os, "open", denied)
    assert not is_present(tmp_path / "a")


@pytest.mark.parametrize(
    ("file", "closed", "named"),
    [
        ("results/m/layout.json", {("results", os.X_OK)}, "results"),  # of another user with umask 077
        ("runs/m/.report.html.part", {("runs/m", os.W_OK)}, "runs/m"),  # not there: no chmod could find it
        ("runs/m/journal.jsonl", {("runs/m/journal.jsonl", os.R_OK)}, "runs/m/journal.jsonl"),
        ("runs/m/journal.jsonl", {("runs/m/journal.jsonl", os.W_OK)}, "runs/m/journal.jsonl"),
        ("runs/m/journal.jsonl", {("runs/m", os.W_OK)}, "runs/m"),  # where it cannot be replaced
    ],
)
def test_a_refused_path_is_named_by_what_its_owner_has_to_open(tmp_path, monkeypatch, file, closed, named):
    monkeypatch.chdir(tmp_path)
    Path("results").mkdir()
    Path("runs/m").mkdir(parents=True)
    Path("runs/m/journal.jsonl").touch()
    monkeypatch.setattr(os, "access", lambda path, mode: (str(path), mode) not in closed)
    assert str(machine_error(raised(errno.EACCES, file))).startswith(
        f"{named}: cannot read or write: permission"
    )
