import os
from contextlib import suppress
from pathlib import Path

import pytest

from crpipe.core.errors import ConfigError
from crpipe.core.paths import Paths
from crpipe.report.jobs import chosen, job_logs, list_logs, read_on

NAME = "0000000-0000999"


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
