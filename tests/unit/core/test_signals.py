"""A job of a workflow ends with the workflow; a signal is a request, kept until the loop looks up."""

import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from crpipe.core.signals import StopRequest

FOLLOW = (
    "import time; from crpipe.core.signals import follow_parent; follow_parent(); print('on', flush=True); "
)


def test_the_first_reason_stays(monkeypatch):
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)}
    stop = StopRequest()
    try:
        stop.listen()
        assert stop.reason() == ""
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.reason() == "SIGUSR1"
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_the_first_signal_and_each_later_one_have_calls_of_their_own():
    before = signal.getsignal(signal.SIGUSR1)
    calls = []
    stop = StopRequest(again=lambda: calls.append("again"))
    try:
        for _ in range(3):
            stop.listen([signal.SIGUSR1], lambda: calls.append("first"))
            os.kill(os.getpid(), signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert calls == ["first", "again", "again"]
    assert (stop.number, stop.exit_code) == (signal.SIGUSR1, 128 + signal.SIGUSR1)


def test_nohup_keeps_it_running():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        StopRequest().listen([signal.SIGHUP])
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_time_limit_is_a_reason():
    assert StopRequest(1e-9).reason() == "its time limit"
    assert StopRequest(60).reason() == ""


@pytest.mark.skipif(
    sys.platform != "linux", reason="the kernel tells a child of its parent's death on Linux only"
)
def test_a_job_ends_with_its_parent():
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {FOLLOW + 'time.sleep(60)'!r}])"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout.readline() == "on\n"
        parent.kill()
        begun = time.monotonic()
        parent.stdout.read()  # ends when the job, which holds the other end, is gone
        assert time.monotonic() - begun < 30


@pytest.mark.parametrize(("head", "session"), [("", ""), ("1", "start_new_session=True")])
def test_a_job_whose_parent_is_process_1_of_a_container_goes_on(head, session):
    """It shares the group of process 1, or that is the head of its workflow."""
    unshare = [shutil.which("unshare") or "unshare", "--pid", "--fork", "--mount-proc"]
    try:
        can = subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        can = False
    if not can:
        pytest.skip("needs root and unshare, to make a process 1")
    code = (
        "import os, subprocess, sys; os.setsid() if os.getpgrp() != os.getpid() else None\n"
        f"job = [sys.executable, '-c', {FOLLOW.replace('parent(); ', f'parent({head!r}); ')!r}]\n"
        f"sys.exit(subprocess.run(job, {session}).returncode)"
    )
    done = subprocess.run([*unshare, sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "on\n")


@pytest.mark.skipif(
    sys.platform != "linux", reason="the kernel tells a child of its parent's death on Linux only"
)
def test_a_child_that_asked_for_it_ends_with_its_parent():
    code = (
        "import os, subprocess, sys; from crpipe.core.signals import follow\n"
        "child = [sys.executable, '-c', 'import time; print(1, flush=True); time.sleep(60)']\n"
        "subprocess.run(child, preexec_fn=follow(os.getpid()))"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout.readline() == "1\n"
        parent.kill()
        begun = time.monotonic()
        parent.stdout.read()  # ends when the child, which holds the other end, is gone
        assert time.monotonic() - begun < 30
