"""W&B and MLflow, the real ones: the same checkpoint, one run through every end, a server that is away."""

import contextlib
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from importlib.util import find_spec

import psutil
import pytest

from crpipe.core.errors import ConfigError, MissingExtra
from crpipe.setup.compatibility import check_fit
from crpipe.train import metrics_log, trackers
from crpipe.train.metrics_log import read_metrics
from crpipe.train.trackers import find_loggers
from models import interrupted, trained
from toy import RANGES, toy_config

FIRST = RANGES[0]
TOOLS = {
    tool: pytest.param(
        tool,
        marks=[
            pytest.mark.slow,
            pytest.mark.skipif(
                find_spec(tool) is None, reason=f"needs {tool} (pip install 'crpipe[{tool}]')"
            ),
        ],
    )
    for tool in ("wandb", "mlflow")
}
both = pytest.mark.parametrize("tool", TOOLS.values())
# Prints the steps of files of W&B: blocks of 32 KiB, with pieces of records (checksum, length, kind, bytes).
STEPS = """
import pathlib, struct, sys
from wandb.proto.wandb_internal_pb2 import Record
for path in sys.argv[1:]:
    data, start, whole = pathlib.Path(path).read_bytes(), 7, b""
    while start + 7 <= len(data):
        if 32768 - start % 32768 < 7:
            start += 32768 - start % 32768
            continue
        length, kind = struct.unpack("<HB", data[start + 4 : start + 7])
        whole += data[start + 7 : start + 7 + length]
        start += 7 + length
        if kind in (1, 4):  # the only piece, the last piece
            record, whole = Record.FromString(whole), b""
            if record.WhichOneof("record_type") == "history":
                print(record.history.step.num)
"""
# Logs ten rows, and is killed.
KILLED = """
import os, pathlib, sys
from crpipe.train.metrics_log import LoggedRun
from crpipe.train import trackers
trackers.END_S = 240.0
tracker = trackers.Tracker(sys.argv[1], LoggedRun("toy", "r", 0, {"seed": 1}, pathlib.Path(sys.argv[2])))
for step in range(1, 11):
    tracker.log(step, {"total/events": 2.0 * step, "odd(name)": float("nan")})
print(tracker._process.pid, flush=True)
os.kill(os.getpid(), 9)
"""


@pytest.fixture(autouse=True)
def _nothing_of_this_user(monkeypatch, tmp_path):
    for name in [name for name in os.environ if name.startswith(("WANDB_", "MLFLOW_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(trackers, "END_S", 240.0)  # for a busy machine
    monkeypatch.setattr(metrics_log, "CLOSE_S", 250.0)


def steps_of(folder, tool):
    """The steps that a tool has of a run, in the order of their arrival, and in how many runs."""
    if tool == "mlflow":
        with contextlib.closing(sqlite3.connect(folder / "mlflow.db")) as store:
            rows = store.execute(
                "SELECT run_uuid, step FROM metrics WHERE key = 'total/events' ORDER BY rowid"
            )
            runs, steps = zip(*rows.fetchall(), strict=True)
            return list(steps), len({*runs})
    files = sorted(folder.glob("wandb/offline-run-*/run-*.wandb"))
    done = subprocess.run(
        [sys.executable, "-c", STEPS, *files], capture_output=True, text=True, check=True
    ).stdout
    return [int(each) for each in done.split()], len({file.name for file in files})


@both
def test_a_training_has_the_same_checkpoint_and_one_run_in_the_tool(tmp_path, tool):
    options = {"log_steps": 1}
    expected, _, _ = trained(toy_config(tmp_path / "plain", train=options), FIRST)
    config = toy_config(tmp_path / "logged", train={**options, "loggers": [tool]})
    interrupted(config).unlink()  # what it logged comes again
    receipt, _, told = trained(config, FIRST)
    assert "warning" not in told
    assert receipt["sha256"] == expected["sha256"]
    steps, runs = steps_of(config.paths().run_dir(), tool)
    rows = read_metrics(config.paths().store(FIRST) / "metrics.jsonl")
    assert runs == 1
    assert sorted({*steps}) == sorted({row["step"] for row in rows})
    assert tool == "wandb" or len(steps) == len({*steps})


@both
def test_a_killed_training_loses_no_row_and_the_next_goes_on_in_its_run(tmp_path, tool):
    words, clients = [sys.executable, "-c", KILLED, tool, tmp_path], []
    for _ in range(2):
        killed = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False)
        assert killed.returncode == -signal.SIGKILL
        clients.append(int(killed.stdout))
    for client in clients:
        wait_for_the_end_of(client)
    steps, runs = steps_of(tmp_path, tool)
    assert ({*steps}, runs) == ({*range(1, 11)}, 1)
    assert tool == "wandb" or steps == [*range(1, 11)]


def wait_for_the_end_of(client):
    """Wait for the process that a killed training left behind; it ends by itself."""
    with contextlib.suppress(psutil.NoSuchProcess):
        deadline, process = time.monotonic() + 250, psutil.Process(client)
        while process.status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline
            time.sleep(0.2)


def ended_early(tmp_path, monkeypatch, tool, address):
    """Train with a tool whose server is away; return the one warning."""
    expected, _, _ = trained(toy_config(tmp_path / "plain"), FIRST)
    monkeypatch.setenv("WANDB_API_KEY", 40 * "a")
    monkeypatch.setenv({"wandb": "WANDB_BASE_URL", "mlflow": "MLFLOW_TRACKING_URI"}[tool], address)
    receipt, _, told = trained(toy_config(tmp_path / "logged", train={"loggers": [tool]}), FIRST)
    assert receipt["sha256"] == expected["sha256"]
    (warning,) = re.findall(rf"warning: train.loggers: {tool} ended early: (.*)", told)
    assert told.count("warning") == 1
    return warning


@both
def test_a_server_that_accepts_and_never_answers_costs_one_warning(tmp_path, monkeypatch, tool):
    monkeypatch.setattr(trackers, "END_S", 20.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        warning = ended_early(tmp_path, monkeypatch, tool, f"http://127.0.0.1:{port}")
        server.setblocking(False)
        server.accept()[0].close()  # it was asked
    if tool == "mlflow":
        assert "no answer within 20 s of the last row: not everything was sent" in warning


@both
def test_a_port_where_nobody_listens_costs_one_warning(tmp_path, monkeypatch, tool):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    warning = ended_early(tmp_path, monkeypatch, tool, "http://127.0.0.1:9")
    assert "127.0.0.1" in warning


@pytest.mark.parametrize("tool", [TOOLS["wandb"]])
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount a small file system")
def test_a_full_disk_of_the_tool_costs_one_warning(tmp_path, monkeypatch, tool):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", disk], check=False).returncode:
        pytest.skip("needs the right to mount")
    try:
        expected, _, _ = trained(toy_config(tmp_path / "plain"), FIRST)
        monkeypatch.setenv("WANDB_DIR", str(disk))
        receipt, _, told = trained(toy_config(tmp_path / "logged", train={"loggers": [tool]}), FIRST)
    finally:
        subprocess.run(["umount", "-l", disk], check=True)
    assert receipt["sha256"] == expected["sha256"]
    assert told.count("warning") == 1
    assert f"train.loggers: {tool} ended early" in told


def test_a_tool_that_is_not_installed_is_named_before_any_job_with_what_to_type(tmp_path, monkeypatch):
    (tmp_path / "no_such_tool").mkdir()  # W&B makes a folder of its name
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(trackers._NEEDED, "wandb", ("no_such_tool",))
    config = toy_config(tmp_path, train={"loggers": ["wandb"]})
    for call in (lambda config: trained(config, FIRST), check_fit):
        with pytest.raises(MissingExtra, match=r"not installed; .* pip install 'crpipe\[wandb\]'"):
            call(config)


def test_a_name_that_is_neither_a_tool_nor_a_class_is_refused():
    with pytest.raises(ConfigError, match=r"'wandbb': expected module:Name, .*; or wandb, or mlflow"):
        find_loggers(["wandbb"])
