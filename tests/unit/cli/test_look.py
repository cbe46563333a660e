"""Verbs that show what happens while it happens, as a person starts and ends them."""

import os
import pty
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[3] / "src"
CRPIPE = Path(sys.executable).with_name("crpipe")
NAME = "0000000-0000009"
PATIENCE_S = 60


@pytest.fixture
def folder(tmp_path):
    """A directory with a configuration, and a log of a split and of a training."""
    (tmp_path / "crpipe.yaml").write_text("ranges: {last: 19, size: 10}\n")
    texts = {("split", "results"): "split it\n", ("train", "runs/default"): "a\x1b[2Jb\nend\n"}
    for (verb, top), text in texts.items():
        path = tmp_path / top / "logs" / verb / f"{NAME}.log"
        path.parent.mkdir(parents=True)
        path.write_text(text)
    os.utime(tmp_path / "results" / "logs" / "split" / f"{NAME}.log", (1, 1))
    return tmp_path


def environment():
    paths = os.pathsep.join([str(SOURCE), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": paths}


def crpipe(folder, *words):
    return subprocess.run(
        [CRPIPE, *words], cwd=folder, env=environment(), capture_output=True, text=True, check=False
    )


@contextmanager
def begun(folder, *words, out=subprocess.PIPE):
    """Start a command that goes on until Ctrl-C, with the signals of a shell."""
    command = ["env", "--default-signal=INT", CRPIPE, *words]
    process = subprocess.Popen(
        command, cwd=folder, env=environment(), stdout=out, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_without_a_name_all_logs_are_listed(folder):
    done = crpipe(folder, "logs")
    lines = done.stdout.splitlines()
    assert [line.split()[2] for line in lines[1:]] == ["split", "train"]
    assert f"runs/default/logs/train/{NAME}.log" in lines[2]
    assert len(crpipe(folder, "logs", "--verb", "split").stdout.splitlines()) == 2


def test_the_newest_log_of_a_name_is_printed_and_its_place_said(folder):
    done = crpipe(folder, "logs", "0")
    assert done.stdout == "a\\x1b[2Jb\nend\n"
    assert done.stderr.startswith(f"runs/default/logs/train/{NAME}.log  (train {NAME}, written ")
    assert crpipe(folder, "logs", "0", "--verb", "split").stdout == "split it\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["1"], "0000010-0000019: no job of the workflow has written a log yet"),
        (["7"], "7: not a range or link of this campaign (0000000-0000009, "),
        (["0", "--verb", "evaluate"], f"evaluate {NAME}: no job"),
    ],
)
def test_a_log_that_is_missing_ends_in_one_message(folder, words, said):
    done = crpipe(folder, "logs", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"crpipe: {said}")


def test_a_followed_log_goes_on_with_the_next_attempt_until_ctrl_c(folder):
    path = folder / "runs" / "default" / "logs" / "train" / f"{NAME}.log"
    with begun(folder, "logs", "0", "-f") as process:
        assert [process.stdout.readline() for _ in range(2)] == ["a\\x1b[2Jb\n", "end\n"]
        with path.open("a") as file:
            file.write("more\n")
        assert process.stdout.readline() == "more\n"
        path.write_text("new\n")
        assert process.stdout.readline() == "new\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (130, "")
    assert "the job began again" in err
    assert "Traceback" not in err


def test_a_watched_status_is_drawn_in_its_place_until_ctrl_c(folder):
    ours, theirs = pty.openpty()
    with begun(folder, "status", "--watch", "1", out=theirs) as process:
        os.close(theirs)
        text, end = "", time.monotonic() + PATIENCE_S
        while text.count("\x1b[H") < 3 and time.monotonic() < end:
            text += os.read(ours, 1 << 16).decode(errors="replace")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE_S)
    os.close(ours)
    assert process.returncode == 130
    assert "Traceback" not in err
    drawn = text.split("\x1b[H")[1]
    assert "progress" in drawn
    assert "every 1 s; Ctrl-C ends" in drawn
    assert drawn.endswith("\x1b[J")


@pytest.mark.parametrize("words", ["5", "--watch --json", "--watch 0", "--watch --html page.html"])
def test_watching_something_else_is_refused(folder, words):
    assert crpipe(folder, "status", *words.split()).returncode == 2


def test_a_watched_status_in_a_file_is_a_list(folder):
    with begun(folder, "status", "--watch", "1") as process:
        lines = []
        while sum("progress" in line for line in lines) < 2:
            lines.append(process.stdout.readline())
    assert "\x1b" not in "".join(lines)
