"""Ctrl-C and SIGTERM of the workflow's process, in processes of their own."""

import signal
import subprocess
import sys

import pytest

PROGRAM = """
import os, sys, time
from crpipe.workflow.head import HeadStop
jobs, ended = {{1}}, []
def end(job):
    ended.append(job)
    jobs.discard(job)
stop = HeadStop(lambda: set(jobs), end, early=lambda: os.write(1, b"early\\n"))
stop.listen(started={started})
try:
    print("ready", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    jobs.add(2)  # was about to begin
    until = time.monotonic() + 20
    while len(ended) < 2 and time.monotonic() < until:
        time.sleep(0.1)
    print("stopping", flush=True)
    sys.stdin.readline()
    print(sorted(ended), stop.exit_code, flush=True)
"""


def started(*, jobs):
    program = PROGRAM.format(started=jobs)
    child = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout.readline() == "ready\n"
    return child


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_local_jobs_get_the_signal_once_also_those_that_were_about_to_begin(number):
    child = started(jobs=True)
    child.send_signal(number)
    assert child.stdout.readline() == "stopping\n"
    out, err = child.communicate("\n", timeout=30)
    assert out == f"[1, 2] {128 + number}\n"
    assert "crpipe: stopping: " in err


def test_a_second_signal_interrupts_nothing():
    child = started(jobs=True)
    child.send_signal(signal.SIGINT)
    assert child.stdout.readline() == "stopping\n"
    child.send_signal(signal.SIGINT)
    while "already stopping" not in (line := child.stderr.readline()):
        assert line
    out, _ = child.communicate("\n", timeout=30)
    assert out.startswith("[1, 2]")


def test_before_there_are_jobs_the_process_ends_at_once():
    child = started(jobs=False)
    child.send_signal(signal.SIGTERM)
    out, _ = child.communicate(timeout=30)
    assert (out, child.returncode) == ("early\n", 143)
