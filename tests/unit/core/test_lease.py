import errno
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest

from crpipe.core import lease as module
from crpipe.core.errors import DiskError, LeaseError
from crpipe.core.lease import is_claimed, is_held, lease, owner_of

HOLD = (
    "import sys, time; from pathlib import Path; from crpipe.core.lease import lease\n"
    "with lease(Path(sys.argv[1]), wait_s=0, say=print): print('held', flush=True); time.sleep(60)"
)


@pytest.fixture
def holder(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def quiet(_):
    pass


def test_a_second_job_is_refused_with_the_name_of_the_first(tmp_path, holder):
    with pytest.raises(LeaseError, match=f"process {holder.pid} on .* run the same command again"):
        lease(tmp_path, wait_s=0, say=quiet).__enter__()


def test_the_kernel_takes_the_lease_of_a_killed_process_back(tmp_path, holder):
    assert is_held(tmp_path / "lease")
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert not is_held(tmp_path / "lease")
    with lease(tmp_path, wait_s=0, say=quiet):
        assert json.loads((tmp_path / "lease").read_text())["pid"] == os.getpid()


def test_a_waiting_job_says_once_whom_it_waits_for_and_then_goes_on(tmp_path, holder):
    said = []

    def tell(text):
        said.append(text)
        holder.kill()

    with lease(tmp_path, wait_s=30, say=tell):
        pass
    assert len(said) == 1
    assert f"waiting at most 30 s for process {holder.pid}" in said[0]


def test_a_job_that_is_told_to_stop_waits_no_longer(tmp_path, holder):
    with pytest.raises(LeaseError):
        lease(tmp_path, wait_s=1e9, say=quiet, stopped=lambda: True).__enter__()


def test_the_lease_is_free_after_the_block_and_asking_never_takes_it(tmp_path):
    with lease(tmp_path / "new", wait_s=0, say=quiet):
        assert is_held(tmp_path / "new" / "lease")
    assert not is_held(tmp_path / "new" / "lease")
    assert not is_held(tmp_path / "never" / "lease")


def test_who_only_asks_never_keeps_a_job_from_its_lease(tmp_path):
    code = (
        "import sys; from pathlib import Path; from crpipe.core.lease import is_held\n"
        "print('asking', flush=True)\n"
        "while True: is_held(Path(sys.argv[1]))"
    )
    ask = [sys.executable, "-c", code, str(tmp_path / "lease")]
    with subprocess.Popen(ask, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "asking\n"
        try:
            for _ in range(300):
                with lease(tmp_path, wait_s=0, say=pytest.fail):
                    pass
        finally:
            process.kill()


def test_an_unreadable_owner_is_no_reason_to_fail(tmp_path):
    (tmp_path / "lease").write_text("{")
    assert owner_of(tmp_path / "lease") == "an unknown process"


# Two hosts on a file system whose locks hold within each of them: flock succeeds for everyone.
LOCAL_LOCKS = "int flock(int handle, int what) { (void)handle; (void)what; return 0; }"
ELSEWHERE = (
    "import platform, sys, time; from pathlib import Path; platform.node = lambda: 'far'\n"
    "from crpipe.core import lease; lease.BEAT_S = 0.1; lease.WATCH_S = 1.0\n"
    "with lease.lease(Path(sys.argv[1]), wait_s=0, say=print) as held:\n"
    "    print('held', flush=True)\n"
    "    for line in sys.stdin:\n"
    "        try: held.check(); print('mine', flush=True)\n"
    "        except lease.LeaseError as error: print(error, flush=True)\n"
)


@pytest.fixture
def local_locks(tmp_path_factory):
    """An environment in which flock succeeds for everyone."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("apt-get install gcc libc6-dev")
    folder = tmp_path_factory.mktemp("flock")
    (folder / "flock.c").write_text(LOCAL_LOCKS)
    command = [compiler, "-shared", "-fPIC", "-o", folder / "flock.so", folder / "flock.c"]
    subprocess.run(command, check=True)
    return {**os.environ, "LD_PRELOAD": str(folder / "flock.so")}


@pytest.fixture
def far(tmp_path, local_locks, monkeypatch):
    """A holder on another host, whose lock this one does not see."""
    monkeypatch.setattr(module, "BEAT_S", 0.1)
    monkeypatch.setattr(module, "WATCH_S", 1.0)
    command = [sys.executable, "-c", ELSEWHERE, str(tmp_path)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=local_locks
    )
    with process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_live_holder_on_another_host_is_seen_although_the_lock_is_free(tmp_path, far):
    with pytest.raises(LeaseError, match=f"already being worked on by process {far.pid} on far"):
        lease(tmp_path, wait_s=0.5, say=quiet).__enter__()
    far.stdin.write("\n")
    far.stdin.flush()
    assert far.stdout.readline() == "mine\n"
    assert is_held(tmp_path / "lease")


def test_a_holder_on_another_host_that_ends_is_not_watched(tmp_path, far):
    far.communicate()
    assert not is_claimed(tmp_path / "lease")
    begun = time.monotonic()
    with lease(tmp_path, wait_s=0, say=pytest.fail):
        pass
    assert time.monotonic() - begun < module.WATCH_S


def test_the_lease_of_a_holder_that_was_killed_on_another_host_is_taken(tmp_path, far):
    far.kill()
    far.wait()
    assert is_claimed(tmp_path / "lease")
    with lease(tmp_path, wait_s=0, say=pytest.fail) as held:
        held.check()
    assert not is_claimed(tmp_path / "lease")


def test_a_holder_that_was_suspended_and_lost_its_lease_knows_it(tmp_path, far):
    far.send_signal(signal.SIGSTOP)
    with lease(tmp_path, wait_s=0, say=pytest.fail) as held:
        far.send_signal(signal.SIGCONT)
        far.stdin.write("\n")
        far.stdin.flush()
        assert f"taken over by process {os.getpid()} on " in far.stdout.readline()
        held.check()
    assert far.poll() is None


def test_a_requeued_job_knows_that_its_earlier_self_is_dead(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    (tmp_path / "lease").write_text(json.dumps({"host": "n7", "pid": 1, "id": "x", "slurm_job": "12"}))
    assert not is_claimed(tmp_path / "lease")
    with lease(tmp_path, wait_s=0, say=pytest.fail, on_takeover=pytest.fail):
        pass


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK])
def test_a_file_system_without_locks_is_named(tmp_path, monkeypatch, number):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(DiskError) as caught:
        lease(tmp_path, wait_s=0, say=quiet).__enter__()
    kind = module.mount_of(tmp_path).kind
    assert f"{tmp_path / 'lease'}: the file system ({kind} at " in str(caught.value)
    assert f"has no file locks ({os.strerror(number)})" in str(caught.value)
    assert not is_held(tmp_path / "lease")


def test_a_lease_whose_directory_was_removed_meanwhile_is_taken_in_the_new_one(tmp_path):
    """Who waits for a lock has the old file open: a lock on it would keep nobody else out."""
    folder = tmp_path / "raw"
    taken = threading.Event()

    def wait():
        with lease(folder, wait_s=60, say=quiet):
            taken.set()

    with lease(folder, wait_s=0, say=quiet):
        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(module._GRACE_S / 2)
        shutil.rmtree(folder)
    thread.join()
    assert taken.is_set()
    assert (folder / "lease").exists()


def test_a_lease_file_that_a_person_removed_is_no_lease_any_more(tmp_path):
    with lease(tmp_path, wait_s=0, say=quiet) as held:
        (tmp_path / "lease").unlink()
        with pytest.raises(LeaseError, match="taken over"):
            held.check()


def test_a_count_that_is_being_written_ends_before_the_file_is_closed(tmp_path, monkeypatch):
    """Else it would be written into the next file that gets the same number."""
    monkeypatch.setattr(module, "BEAT_S", 0.01)
    disk_errors, go_on, fsync = threading.Event(), threading.Event(), os.fsync

    def slow(handle):
        if threading.current_thread().name == "lease":
            disk_errors.set()
            go_on.wait(10)
        fsync(handle)

    monkeypatch.setattr(module.os, "fsync", slow)
    with lease(tmp_path, wait_s=0.0, say=print):
        assert disk_errors.wait(10)
        threading.Timer(0.2, go_on.set).start()
    assert not [thread for thread in threading.enumerate() if thread.name == "lease"]


@pytest.mark.parametrize(
    "error", [FileNotFoundError(2, "No such file"), OSError(116, "Stale file handle"), DiskError("full")]
)
def test_what_fails_after_the_lease_was_lost_is_not_the_jobs_error(tmp_path, error):
    def work():
        with lease(tmp_path, wait_s=0, say=quiet):
            (tmp_path / "lease").write_text('{"host": "other", "pid": 1, "id": "another"}')
            raise error

    with pytest.raises(LeaseError, match="taken over by process 1 on other"):
        work()


@pytest.mark.parametrize("error", [OSError(116, "Stale file handle"), DiskError("full")])
def test_what_fails_while_the_lease_is_held_stays_as_it_is(tmp_path, error):
    with pytest.raises(type(error)) as caught, lease(tmp_path, wait_s=0, say=quiet):
        raise error
    assert caught.value is error
