"""Threads spin on free cores, and sleep on busy ones; a person's choice stays."""

import os
import subprocess
import sys
import time

import pytest

from crpipe.core import waiting
from crpipe.core.waiting import SPINS, choose_waiting, cores_are_free, others_running

NAMES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "CRPIPE_WAITS", "RANK", "SLURM_CPUS_PER_TASK")


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Return what makes a machine of so many cores, on which so many threads run beside this one."""
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(waiting, "_LOADAVG", tmp_path / "loadavg")

    def make(others, cores=2, allowed=2):
        (tmp_path / "loadavg").write_text(f"0.10 0.20 0.30 {others + 1}/300 4242\n")
        monkeypatch.setattr(os, "cpu_count", lambda: cores)
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(allowed)))

    return make


def chosen():
    return {name: os.environ[name] for name in NAMES[:2] if name in os.environ}


def test_threads_spin_where_nothing_else_runs(machine):
    machine(others=0)
    choose_waiting()
    assert chosen() == {"GOMP_SPINCOUNT": SPINS}


@pytest.mark.parametrize("others", [1, 6])
def test_threads_sleep_beside_others(machine, others):
    machine(others)
    choose_waiting()
    assert chosen() == {"OMP_WAIT_POLICY": "PASSIVE"}


def test_cores_that_are_this_process_s_own_are_free(machine):
    machine(others=100, cores=64, allowed=4)
    assert cores_are_free()


@pytest.mark.parametrize(("others", "free"), [(56, True), (57, False)])
def test_a_job_on_a_shared_node_needs_the_cores_that_it_asked_for(machine, monkeypatch, others, free):
    machine(others, cores=64, allowed=64)
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "8")
    assert cores_are_free() == free


def test_ranks_keep_what_the_first_process_chose(machine, monkeypatch):
    machine(others=0)
    choose_waiting()
    machine(others=3)  # the other ranks
    monkeypatch.setenv("RANK", "1")
    choose_waiting()
    assert chosen() == {"GOMP_SPINCOUNT": SPINS}


def test_a_system_that_tells_nothing_is_taken_as_free(machine, monkeypatch):
    machine(others=6)
    monkeypatch.delattr(os, "sched_getaffinity")
    assert cores_are_free()


def test_each_process_chooses_anew(machine):
    machine(others=6)
    choose_waiting()  # of the head, whose jobs get its environment
    machine(others=0)
    choose_waiting()
    assert chosen() == {"GOMP_SPINCOUNT": SPINS}


@pytest.mark.parametrize(("name", "value"), [("OMP_WAIT_POLICY", "ACTIVE"), ("GOMP_SPINCOUNT", "7")])
def test_what_a_person_chose_stays(machine, monkeypatch, name, value):
    machine(others=6)
    monkeypatch.setenv(name, value)
    choose_waiting()
    choose_waiting()
    assert chosen() == {name: value}


def test_what_runs_meanwhile_is_counted():
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(3)]
    try:
        deadline = time.monotonic() + 30
        while others_running() < len(loops) and time.monotonic() < deadline:
            time.sleep(0.05)  # they may be starting
        assert others_running() >= len(loops) - 1
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def test_without_proc_nothing_is_known_to_run(monkeypatch, tmp_path):
    monkeypatch.setattr(waiting, "_LOADAVG", tmp_path / "none")
    assert others_running() == 0
