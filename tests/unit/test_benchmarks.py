"""Benchmarks: sides take turns, a comparison is a row, who is missing is named, a failure hides nothing."""

import importlib
import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from benchmarks import __main__ as command_line
from benchmarks import peers, runner, suite, table
from benchmarks.catalogue import BENCHMARKS, PARTS, Benchmark

from crpipe.workloads.direction.simulator.physics import write_geometry

REPOSITORY = Path(__file__).parents[2]
FAKES = """
import os, sys, time

def compares(run, *, few=1, goal=2.5):
    print("printed", few, dict(run.given), run.compared("reading", "cat", [2.0, 4.0, 3.0], goal))

def fails(run):
    run.note("first", 1)
    compares(run)
    raise ValueError("no such kernel")

def endless(run):
    run.note("begun", "yes")
    time.sleep(60)

def notes(run, *, device="cuda", small=False):
    run.note("speed", 1234567.8, "events/s")

def counting(step):
    turns = []
    def work():
        turns.append(step)
        return turns
    return work

def tidied():
    answer = []
    return (lambda: answer), (lambda: answer.append("tidy"))

def meets(rank, ranks, meeting):
    return lambda: [rank, ranks, os.path.basename(meeting)]

def breaks():
    return lambda: sys.exit(3)
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run a function of the fakes as a benchmark: run(function, given, options, seconds, **more)."""
    (tmp_path / "fake_benchmarks.py").write_text(FAKES)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def go(function, given=(), options=(), seconds=60.0, **more):
        benchmark = Benchmark(f"fake_benchmarks:{function}", "", least=1.0, **more)
        given, options = dict(given), dict(options)
        return suite.run_apart(function, benchmark, given, tmp_path, options=options, seconds=seconds)

    return go


def test_ratios_of_a_benchmark_become_a_row(run, tmp_path):
    outcome = run("compares", options={"few": 3})
    assert "| reading | cat | 3.00 | 2.00 to 4.00 | 3 | 2.5: yes |" in suite.summary([outcome])
    assert "printed 3 {} 3.00 (2.00..4.00)\n" in (tmp_path / "compares.txt").read_text()


def test_a_goal_that_is_not_met_says_no(run):
    outcome = run("compares", options={"goal": 3.5})
    assert any(line.endswith("| 3.5: no |") for line in suite.summary([outcome]))


def test_a_benchmark_that_runs_again_replaces_its_rows(run):
    run("compares")
    assert len(run("compares").rows) == 1


def test_a_missing_peer_is_not_run_and_named(run):
    outcome = run("compares", peers=("iceaggr",), needs_peer=True)
    assert not outcome.rows
    shown = "\n".join(suite.summary([outcome]))
    assert "compares: not run: all of its peers are missing" in shown
    assert "iceaggr: not run; give timinar/iceaggr with --peer iceaggr=PLACE" in shown


def test_a_given_peer_reaches_its_benchmark(run, tmp_path):
    outcome = run("compares", {"iceaggr": str(tmp_path)}, peers=("iceaggr", "cr_muons"), needs_peer=True)
    assert f"{{'iceaggr': '{tmp_path}'}}" in (tmp_path / "compares.txt").read_text()
    assert [text.split(":")[0] for text in outcome.missing] == ["cr_muons"]


def test_what_is_not_installed_is_named(run):
    outcome = run("compares", programs=("crpipe-no-such-program",), needs=("json", "no_such_module"))
    assert "needs crpipe-no-such-program and no_such_module" in "\n".join(suite.summary([outcome]))


def test_a_benchmark_that_does_not_fit_into_the_time_is_not_started(run):
    assert run("endless", seconds=0.5).trouble == "not run: time"


def test_a_failing_benchmark_keeps_its_rows_and_is_named(run, tmp_path):
    shown = "\n".join(suite.summary([run("fails")]))
    assert "| reading | cat |" in shown
    assert "| fails | first | 1 |  |" in shown
    assert f"fails: failed with 1: ValueError: no such kernel, see {tmp_path / 'fails.txt'}" in shown


def test_a_benchmark_that_does_not_end_is_stopped(run):
    outcome = run("endless", seconds=6.0)
    assert outcome.trouble.startswith("stopped after 6 s")
    assert [row["value"] for row in outcome.rows] == ["yes"]


def test_a_row_that_a_kill_cut_short_is_left_out(tmp_path):
    row = {"what": "x", "value": 1, "unit": ""}
    (tmp_path / "rows").write_text(json.dumps(row) + '\n{"what": "x", "val')
    assert suite.read_rows(tmp_path / "rows") == [row]


def test_the_table_of_a_folder_shows_the_machine_and_all_that_ran(tmp_path):
    (tmp_path / suite.MACHINE).write_text("two cores\n")
    row = {"what": "speed", "value": 1234567.8, "unit": "events/s"}
    outcome = suite.Outcome("gpu-device", rows=[row])
    (tmp_path / "gpu-device.json").write_text(json.dumps(vars(outcome)))
    shown = suite.table_of(tmp_path)
    assert shown[0] == "two cores\n"
    assert "| gpu-device | speed | 1,234,568 | events/s |" in shown


def test_the_table_of_an_empty_folder_says_that_nothing_ran(tmp_path):
    assert suite.table_of(tmp_path)[0].startswith("machine unknown")


def test_sides_take_turns_from_either_end(run, tmp_path, monkeypatch):
    order = []
    sides = [runner.Side(name, "fake_benchmarks:counting", {"step": name}) for name in "ab"]
    turn = runner.Side.turn
    monkeypatch.setattr(runner.Side, "turn", lambda side: (order.append(side.name), turn(side))[1])
    runner.take_turns(sides, 2)
    assert "".join(order) == "baabba"
    assert [each.answer for each in sides[0].turns] == [["a"] * 2, ["a"] * 3]
    assert not sides[0].processes


def test_a_fresh_side_starts_anew_each_turn(run):
    side = runner.Side("a", "fake_benchmarks:counting", {"step": "a"}, fresh=True)
    runner.take_turns([side], 2, warm=False)
    assert [each.answer for each in side.turns] == [["a"], ["a"]]


def test_what_tidies_up_runs_after_the_time_is_taken(run):
    assert runner.once("fake_benchmarks:tidied", {}).answer == ["tidy"]


def test_ranks_of_a_side_meet(run):
    side = runner.Side("both", "fake_benchmarks:meets", ranks=2)
    assert side.turn().answer == [0, 2, "meeting"]
    assert len(side.processes) == 2
    side.end()


def test_a_side_that_ends_is_an_error(run):
    with pytest.raises(SystemExit, match="wrong: the process ended with 3"):
        runner.Side("wrong", "fake_benchmarks:breaks").turn()


def test_a_narrow_interval_ends_the_rounds():
    class Steady(runner.Side):
        def turn(self):
            return runner.Turn(1.0, user=2.0)

    sides = [Steady("a", ""), Steady("b", "")]
    runner.take_turns(sides, 50, warm=False, width=0.1)
    assert len(sides[0].turns) == runner.LEAST_ROUNDS
    assert table.interval(runner.ratios(*sides, "cpu")) == (1.0, 1.0)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_takes_the_options_it_is_given(name):
    benchmark = BENCHMARKS[name]
    assert set(benchmark.peers) <= {*peers.PEERS, peers.BEFORE}
    for library in ("uproot", "sklearn", "psutil"):
        pytest.importorskip(library)
    module, _, function = benchmark.function.partition(":")
    taken = inspect.signature(getattr(importlib.import_module(module), function)).parameters
    given = {*benchmark.small, *(benchmark.comparison or {})}
    assert given <= set(list(taken)[1:])
    words = suite.words_of({**benchmark.small, **(benchmark.comparison or {})})
    command_line.parser_of(name).parse_args(words)


def test_every_configuration_of_a_network_is_legal(tmp_path):
    pytest.importorskip("uproot")
    from benchmarks.direction import loaders
    from benchmarks.direction import steps as direction
    from benchmarks.gpu.memory import WHOLE
    from benchmarks.muons.training import SETTINGS, tree_of
    from benchmarks.steppers import stepper_of
    from benchmarks.xec import steps as xec

    geometry = tmp_path / "sensor_geometry.csv"
    write_geometry(geometry)
    assert loaders.crpipe(tmp_path, geometry, "flat", workers=0)
    built = [direction.prepare(geometry, size, 8) for size in direction.SIZES]
    built += [xec.prepare(tmp_path, size, 8) for size in xec.SIZES]
    cpu = torch.device("cpu")
    built += [stepper_of(tree, cpu)[1] for tree in (WHOLE, *(tree_of(each, cpu) for each in SETTINGS))]
    assert all(stepper.state.counters.step == 0 for stepper in built)


def test_the_loader_reads_the_shard_that_is_written_for_it(tmp_path):
    from benchmarks.muons.events import compare, describe, generate, whole
    from benchmarks.muons.readers import read_crpipe, write_shard

    events = generate(1000)
    write_shard(tmp_path, events)
    same, _ = compare(describe(read_crpipe(tmp_path)), describe(iter([whole(events)])))
    assert same


def test_parts_of_the_checklist_for_a_gpu_fit_into_ten_minutes():
    assert suite.PART_SECONDS + 2 * suite.END_SECONDS < 600
    assert {name for names in PARTS.values() for name in names} <= set(BENCHMARKS)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["all", "--peer", "other=/tmp"],
            "expected NAME=PLACE with one of cr_muons, iceaggr, xec-ml-wl",
        ),
        (["all", "--peer", "cr_muons=/no/such"], "/no/such does not exist"),
        (["loder"], "expected one of all, gpu, table, training"),
    ],
)
def test_what_is_unknown_is_refused_with_the_names_of_the_known(words, message):
    command = [sys.executable, "-m", "benchmarks", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=REPOSITORY)
    assert done.returncode == 2
    assert message in done.stderr


def test_a_peer_says_how_it_is_prepared():
    lines = peers.PEERS["iceaggr"].commands("iceaggr")
    assert lines[:2] == [
        "git clone https://github.com/timinar/iceaggr iceaggr",
        "git -C iceaggr checkout 314ef3b",
    ]
    assert lines[-1] == "--peer iceaggr=iceaggr"
