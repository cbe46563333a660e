import json
import os
from contextlib import suppress
from pathlib import Path

import pytest

from campaign_files import CampaignFiles
from crpipe.core.errors import ConfigError
from crpipe.core.paths import OUTLIERS, Paths
from crpipe.report.jobs import (
    attempts_of,
    chosen,
    job_logs,
    list_logs,
    log_addresses,
    machines,
    read_on,
    time_spent,
    usage_of,
)

NAME = "0000000-0000999"


@pytest.fixture
def files(tmp_path):
    return CampaignFiles(tmp_path, ranges=2)


def test_attempts_are_read_with_their_times_and_errors(files):
    first, second = files.name(0), files.name(1)
    files.attempt("stage", first, 60.0)
    files.journal("split", first, "start")
    files.journal("split", first, "failed", error="DiskError: full")
    files.journal("train", second, "start")
    files.journal("train", second, "start")
    work = attempts_of(files.paths)
    assert [(each.verb, each.name, each.error) for each in work] == [
        ("stage", first, ""),
        ("split", first, "DiskError: full"),
        ("train", second, "no end recorded"),
        ("train", second, ""),
    ]
    assert work[0].end - work[0].start == 60.0
    assert work[2].end is work[3].end is None


def test_machines_are_counted(tmp_path):
    row = {
        "what": "machine",
        "host": "node7",
        "device": "NVIDIA A100",
        "ranks": 4,
        "torch": "2",
        "python": "3",
    }
    (tmp_path / "journal.jsonl").write_text(2 * (json.dumps(row | {"crpipe": "1"}) + "\n"))
    expected = [("node7", "NVIDIA A100, 4 ranks; torch 2, Python 3, crpipe 1; 2 jobs")]
    assert machines(tmp_path / "journal.jsonl") == expected
    assert machines(tmp_path / "none") == []


def test_a_range_has_its_times_and_addresses_of_its_logs(files):
    files.claim()
    name = files.split(0)
    files.attempt("split", name)
    files.attempt("consolidate", "", 5.0)
    spent = time_spent(attempts_of(files.paths))
    assert spent == {(name, "list"): 2.0, (name, "split"): 120.0, (OUTLIERS, "consolidate"): 5.0}
    log = files.paths.results / "logs" / "split" / f"{name}.log"
    log.parent.mkdir(parents=True)
    log.touch()
    addresses = log_addresses(files.paths, name, files.root / "pages")
    assert addresses == [("split", f"../results/logs/split/{name}.log")]
    assert log_addresses(files.paths, name, None) == []


def test_benchmarks_are_summed_by_rule(files):
    for number, (seconds, memory) in enumerate([("2.0", "100"), ("4.0", "-"), ("9.0", "300")]):
        path = files.paths.results / "benchmarks" / "split" / f"{number}.tsv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"s\th:m:s\tmax_rss\n{seconds}\t0:00\t{memory}\n")
    (files.paths.run_dir() / "benchmarks").mkdir(parents=True)
    (files.paths.run_dir() / "benchmarks" / "figures.tsv").write_text("s\tmax_rss\ncut")
    assert usage_of(files.paths) == [["split", "3", "15 s", "4 s", "9 s", "300 MiB"]]


@pytest.fixture
def paths(tmp_path):
    """A campaign with four logs, written one after the other."""
    found = Paths(tmp_path / "results", tmp_path / "runs", "mine")
    logs = (
        found.results / "logs" / "split" / f"{NAME}.log",
        found.run_dir() / "logs" / "train" / f"{NAME}.log",
        found.run_dir() / "logs" / "train" / "outliers.log",
        found.results / "logs" / "consolidate.log",
    )
    for time, path in enumerate(logs):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("text\n")
        os.utime(path, (time, time))
    return found


def test_logs_are_listed_the_newest_last(paths):
    logs = job_logs(paths)
    jobs = [(log.verb, log.name) for log in logs]
    assert jobs == [("split", NAME), ("train", NAME), ("train", "outliers"), ("consolidate", "")]
    lines = list_logs(logs, 400).splitlines()
    assert f"split {NAME}" in lines[1]
    assert lines[-1].endswith(str(paths.results / "logs" / "consolidate.log"))


def test_logs_are_chosen_by_name_and_verb(paths):
    logs = job_logs(paths)
    assert [log.verb for log in chosen(logs, NAME, "")] == ["split", "train"]
    assert [log.name for log in chosen(logs, "", "train")] == [NAME, "outliers"]
    assert chosen(logs, NAME, "train")[0].path == paths.run_dir() / "logs" / "train" / f"{NAME}.log"


def test_a_log_that_is_missing_is_refused_with_those_that_exist(paths):
    with pytest.raises(ConfigError, match=rf"^evaluate {NAME}: no job .* there are logs of: split, train$"):
        chosen(job_logs(paths), NAME, "evaluate")
    with pytest.raises(ConfigError, match="`crpipe logs` lists what there is"):
        chosen(job_logs(paths), "0001000-0001999", "")
    with pytest.raises(ConfigError, match="^logs: no job of the workflow has written a log yet"):
        chosen([], "", "")


def test_a_log_is_read_on_through_retries(tmp_path):
    path = tmp_path / "x.log"
    path.write_text("one\n")
    first, second = "é".encode()[:1], "é".encode()[1:]
    steps = iter(
        [
            lambda: add(path, b"two" + first),
            lambda: add(path, second + b"\n"),
            lambda: path.write_text("new\n"),  # shorter: the same file from its start
            path.unlink,
            lambda: path.write_text("again, and longer than before\n"),
        ]
    )
    said = []

    def wait():
        step = next(steps, None)
        if step is None:
            raise InterruptedError
        step()

    text = ""
    with suppress(InterruptedError):
        for more in read_on(path, wait, said.append):
            text += more
    assert text == "one\ntwoé\nnew\nagain, and longer than before\n"
    assert said == [f"{path}: the job began again"] * 2


def add(path, data):
    with path.open("ab") as file:
        file.write(data)


def test_a_log_that_a_retry_has_just_removed_is_left_out(paths, monkeypatch):
    gone = paths.run_dir() / "logs" / "train" / "outliers.log"
    glob = Path.glob

    def racing(folder, pattern):
        found = list(glob(folder, pattern))
        gone.unlink(missing_ok=True)
        return found

    monkeypatch.setattr(Path, "glob", racing)
    assert [log.name for log in job_logs(paths)] == [NAME, NAME, ""]
