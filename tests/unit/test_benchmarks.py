"""The table of all benchmarks: who is missing is named, a failure does not hide, each comparison is a row."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
SCRIPTS = REPOSITORY / "benchmarks"
sys.path.insert(0, str(SCRIPTS))
import bench  # noqa: E402

sys.path.remove(str(SCRIPTS))  # other modules there have the names of those that other tests import

COMPARES = f"""
import sys
sys.path.insert(0, {str(SCRIPTS)!r})
from side_by_side import compared
print("printed", *sys.argv[1:], compared("reading", "cat", [2.0, 4.0, 3.0], 2.5))
"""


@pytest.fixture
def scripts(tmp_path):
    """Write scripts into a folder: name to text."""

    def write(**texts):
        for name, text in texts.items():
            (tmp_path / f"{name}.py").write_text(text)
        return tmp_path

    return write


def test_ratios_of_a_benchmark_become_a_row(scripts, tmp_path):
    where = scripts(reads=COMPARES)
    found = bench.run(bench.Benchmark("reads.py", ("--few", "3")), {}, tmp_path, where)
    assert "| reading | cat | 3.00 | 2.00 to 4.00 | 3 | 2.5: yes |" in bench.table([found])
    assert (tmp_path / "reads.txt").read_text() == "printed --few 3 3.00 (2.00..4.00)\n"


def test_a_benchmark_may_work_in_another_folder(scripts, tmp_path, monkeypatch):
    where = scripts(reads="import os\nos.chdir('/')\n" + COMPARES)
    monkeypatch.chdir(tmp_path)
    Path("printed").mkdir()
    found = bench.run(bench.Benchmark("reads.py"), {}, Path("printed"), where)
    assert not found.trouble
    assert len(found.rows) == 1


def test_a_goal_that_is_not_met_says_no(scripts, tmp_path):
    where = scripts(reads=COMPARES.replace("2.5", "3.5"))
    found = bench.run(bench.Benchmark("reads.py"), {}, tmp_path, where)
    assert any(line.endswith("| 3.5: no |") for line in bench.table([found]))


def test_ratios_of_an_earlier_run_are_not_shown_again(scripts, tmp_path):
    where = scripts(reads=COMPARES)
    bench.run(bench.Benchmark("reads.py"), {}, tmp_path, where)
    found = bench.run(bench.Benchmark("reads.py"), {}, tmp_path, where)
    assert len(found.rows) == 1


def test_a_missing_peer_is_not_run_and_named(scripts, tmp_path):
    where = scripts(reads=COMPARES)
    missing = bench.Benchmark("reads.py", peers={"iceaggr": "--peer"}, alone=False)
    found = bench.run(missing, {}, tmp_path, where)
    assert not found.rows
    shown = "\n".join(bench.table([found]))
    assert "reads.py: not run: all of its peers are missing" in shown
    assert "iceaggr: not run; give timinar/iceaggr with --peer iceaggr=PATH" in shown


def test_a_given_peer_reaches_its_benchmark(scripts, tmp_path):
    where = scripts(reads=COMPARES)
    asked = bench.Benchmark("reads.py", peers={"iceaggr": "--peer", "graphnet": "--graphnet"}, alone=False)
    found = bench.run(asked, {"iceaggr": "/clone"}, tmp_path, where)
    assert "--peer /clone" in (tmp_path / "reads.txt").read_text()
    assert [text.split(":")[0] for text in found.missing] == ["graphnet"]


def test_a_missing_program_is_named(scripts, tmp_path):
    needs = bench.Benchmark("reads.py", programs=("crpipe-no-such-program",))
    found = bench.run(needs, {}, tmp_path, scripts(reads=COMPARES))
    assert "needs crpipe-no-such-program" in "\n".join(bench.table([found]))


def test_a_failing_benchmark_keeps_its_rows_and_is_named(scripts, tmp_path):
    where = scripts(reads=COMPARES + "\nsys.exit(3)\n")
    found = bench.run(bench.Benchmark("reads.py"), {}, tmp_path, where)
    shown = "\n".join(bench.table([found]))
    assert "| reading | cat |" in shown
    assert f"reads.py: failed with 3, see {tmp_path / 'reads.txt'}" in shown


def test_a_benchmark_that_does_not_end_is_stopped(scripts, tmp_path):
    where = scripts(waits="import time\ntime.sleep(60)\n")
    found = bench.run(bench.Benchmark("waits.py", minutes=0.005), {}, tmp_path, where)
    assert "stopped after" in found.trouble


@pytest.mark.parametrize("benchmark", bench.BENCHMARKS, ids=lambda each: each.name)
def test_every_benchmark_takes_the_options_it_is_given(benchmark):
    text = (SCRIPTS / benchmark.script).read_text()
    taken = set(re.findall(r'"(--[a-z-]+)"', text))
    given = {word for word in (*benchmark.options, *benchmark.peers.values()) if word.startswith("--")}
    assert given <= taken
    assert set(benchmark.peers) <= set(bench.PEERS)


def test_an_unknown_peer_is_refused_with_the_names_of_the_known(tmp_path):
    words = [sys.executable, str(SCRIPTS / "bench.py"), "--folder", str(tmp_path), "--peer", "other=/tmp"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "expected NAME=PATH with one of cr_muons, iceaggr, graphnet, xec-ml-wl" in done.stderr
