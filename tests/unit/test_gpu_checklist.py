"""The GPU checklist: rows become a table, what does not run is named, a failing point hides nothing."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
SCRIPTS = REPOSITORY / "benchmarks"
sys.path.insert(0, str(SCRIPTS))
import gpu  # noqa: E402
import gpu_rows  # noqa: E402

sys.path.remove(str(SCRIPTS))  # other modules there have the names of those that other tests import

POINTS = """
import sys, time

def good(given, factor=1):
    given.note("speed", 1234567.8 * factor, "events/s")

def bad(given):
    given.note("first", 1)
    print("Traceback", file=sys.stderr)
    raise ValueError("no such kernel")

def endless(given):
    given.note("begun", "yes")
    time.sleep(60)
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run points of a module of the test: run(points, seconds) gives the rows without the machine's."""
    (tmp_path / "fake_points.py").write_text(POINTS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def go(*points, seconds=100.0, **given):
        gpu.run_part(points, gpu_rows.Given("", tmp_path, "cpu", seconds=seconds, **given))
        return [row for row in gpu_rows.read_rows(tmp_path) if row["point"] != gpu_rows.MACHINE]

    return go


def point(name, function, seconds=30.0, least=1.0, **more):
    return gpu.Point(name, f"fake_points:{function}", seconds, least, **more)


def test_rows_become_a_table_with_the_machine_above_and_the_commands_below(run, tmp_path):
    run(point("10 last", "good"), point("3 first", "good", options={"factor": 2}))
    rows = gpu_rows.read_rows(tmp_path)
    lines = gpu_rows.table(rows + [row for row in rows if row["point"] == gpu_rows.MACHINE])
    assert lines[0].startswith("device no GPU (cpu), commit ")
    assert lines[0].count("torch 2.") == 1  # also where the files of several parts were put together
    shown = [line for line in lines if line.startswith(("| 3 ", "| 10 "))]
    assert [line.split(" | ")[:4] for line in shown] == [
        ["| 3 first", "speed", "2,469,136", "events/s"],
        ["| 10 last", "speed", "1,234,568", "events/s"],
    ]
    assert "- 3 first: `python benchmarks/gpu.py '' --folder DIR --device cpu --only '3 first'`" in lines


def test_a_failing_point_keeps_its_rows_is_named_and_the_next_one_runs(run):
    rows = run(point("1 bad", "bad"), point("2 good", "good"))
    assert [(row["point"], row["what"], row["value"]) for row in rows] == [
        ("1 bad", "first", 1),
        ("1 bad", "rest", "failed: ValueError: no such kernel"),
        ("2 good", "speed", 1234567.8),
    ]
    assert set(rows[0]) == {"point", "what", "value", "unit", "command", "seconds"}


def test_a_point_is_stopped_when_its_time_is_over(run):
    rows = run(point("1 endless", "endless", seconds=2.0), point("2 good", "good"))
    assert [row["value"] for row in rows] == ["yes", "stopped after 2 s", 1234567.8]


def test_a_point_that_does_not_fit_into_the_time_is_not_started(run):
    rows = run(point("1 long", "endless", seconds=90.0, least=40.0), point("2 good", "good"), seconds=30.0)
    assert [row["value"] for row in rows] == ["not run: time", 1234567.8]


def test_what_needs_a_gpu_or_a_library_says_so(run):
    rows = run(
        point("1 device", "good", on_gpu=True), point("2 flow", "good", needs=("json", "no_such_module"))
    )
    assert [row["value"] for row in rows] == [
        "not run: no NVIDIA GPU",
        "not run: no_such_module is not installed",
    ]


def test_a_point_that_runs_again_replaces_its_rows_alone(run):
    run(point("1 a", "good"), point("2 b", "good"))
    rows = run(point("1 a", "good", options={"factor": 2}))
    assert [(row["point"], row["value"]) for row in rows] == [("2 b", 1234567.8), ("1 a", 2 * 1234567.8)]


def test_a_row_that_a_kill_cut_short_is_left_out(tmp_path):
    row = {"point": "1 a", "what": "x", "value": 1, "unit": "", "command": "c", "seconds": 0.0}
    (tmp_path / gpu_rows.ROWS).write_text(json.dumps(row) + '\n{"point": "1 a", "wh')
    assert gpu_rows.read_rows(tmp_path) == [row]


def test_what_a_point_is_given_survives_the_way_to_its_process(tmp_path):
    given = gpu_rows.Given("1 a", tmp_path, "cpu", small=True, seconds=5.0, cr_muons=tmp_path / "clone")
    again = gpu_rows.Given.of_json(given.as_json())
    assert dataclasses.replace(again, started=given.started) == given


@pytest.mark.parametrize("part", gpu.PARTS)
def test_every_part_fits_into_ten_minutes_and_names_functions_that_exist(part):
    assert gpu.PART_SECONDS + 2 * gpu.END_SECONDS < 600
    for each in gpu.PARTS[part]:
        module, _, function = each.place.partition(":")
        assert f"def {function}(given: Given" in (SCRIPTS / f"{module}.py").read_text()
        assert each.name.split()[0].isdigit()


def test_the_checklist_is_complete():
    numbers = {int(each.name.split()[0]) for points in gpu.PARTS.values() for each in points}
    assert numbers == set(range(1, 11))


def test_the_table_of_an_empty_folder_says_that_nothing_ran(tmp_path):
    words = [sys.executable, str(SCRIPTS / "gpu.py"), "table", "--folder", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("machine unknown: no part has run")
