"""Snakemake as a child of `crpipe run`; here a script in its place."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from crpipe.core.errors import ConfigError, DiskError
from crpipe.workflow.monitor import DESCRIPTOR, TYPED, UNNOTIFIED
from crpipe.workflow.run import SnakemakeCommand, StopSignal, run_head


class Script:
    """A call that runs a program of this test."""

    dry_run = False

    def __init__(self, text):
        self.text = f"import json, os, sys, time\n{text}"

    def words(self):
        return [sys.executable, "-c", self.text]


def ran(text, stop=None, receive=None, tick=lambda: None, **options):
    received = []
    stop = stop or StopSignal(pytest.fail)
    end = run_head(Script(text), ["crpipe", "run"], stop, receive or received.append, tick, **options)
    return end, received


def test_the_command_line_names_configuration_profile_and_options():
    call = SnakemakeCommand(
        ["train_all"], [Path("a.yaml"), Path("b.yaml")], {"ranges": {"last": 9}}, "slurm", "4"
    )
    assert call.words()[call.words().index("snakemake") + 1 :] == [
        *("train_all", "--configfile", "a.yaml", "b.yaml", "--config", "ranges={last: 9}"),
        *("--profile", "slurm", "--jobs", "4"),
    ]
    plain = SnakemakeCommand([], [], {}, cores="2", dry_run=True, more=["--retries", "3"])
    assert plain.words()[-5:] == ["--cores", "2", "--dry-run", "--retries", "3"]


def test_a_second_way_to_name_the_configuration_is_refused():
    with pytest.raises(ConfigError, match="crpipe run --config FILE --set KEY"):
        SnakemakeCommand([], [], {}, more=["--configfile=a.yaml"]).words()


def test_events_are_passed_on_and_counted():
    rows = [
        {"event": "begin", "logs": []},
        {"event": "end", "job": 1},
        {"event": "failures", "failures": [{"verb": "stage"}]},
        {"event": "text", "text": "why"},
    ]
    text = f"number = int(os.environ[{DESCRIPTOR!r}])\n"
    text += "".join(f"os.write(number, {(json.dumps(row) + chr(10)).encode()!r})\n" for row in rows)
    end, received = ran(f"{text}sys.exit(1)")
    assert received == rows
    assert (end.code, end.began, end.finished, end.text) == (1, True, 1, "why")
    assert end.failures == [{"verb": "stage"}]


def test_a_refusal_of_crpipe_is_all_that_is_repeated_of_its_output():
    end, _ = ran("print('chatter\\ncrpipe: a key is wrong\\n  fix it', file=sys.stderr); sys.exit(2)")
    assert (end.code, end.output) == (2, "crpipe: a key is wrong\n  fix it")


def test_the_last_lines_of_another_error_are_repeated():
    end, _ = ran("print('\\n'.join(map(str, range(100))), file=sys.stderr); sys.exit(1)")
    assert end.output.splitlines() == [str(n) for n in range(75, 100)]


@pytest.mark.parametrize(
    ("printed", "told"),
    [
        ("usage: snakemake [-h]\n  [--more]\nsnakemake: error: unknown: --x", "unknown: --x"),
        ("SNAKEMAKE\n  Date: now\nBuilding DAG of jobs...\nNo rule\nat all", "No rule\nat all"),
    ],
)
def test_what_snakemake_says_of_itself_is_left_out(printed, told):
    end, _ = ran(f"print({printed!r}, file=sys.stderr); sys.exit(1)")
    assert end.output == told


FULL = "OSError in file /c/common.smk, line 7:\n[Errno 28] No space left on device"
READ_ONLY = (
    "Traceback (most recent call last):\n\n  File x.py, line 1, in execute\n    f()\n\n"
    "OSError: [Errno 30] Read-only file system: '/c/.snakemake/shadow'\n"
)


@pytest.mark.parametrize(
    ("printed", "told"),
    [
        (FULL, r"^\.snakemake: cannot write: the disk is full"),
        (READ_ONLY, "^/c/.snakemake/shadow: cannot write: the file system is read-only"),
    ],
)
def test_a_disk_that_keeps_snakemake_from_beginning_is_an_error_of_the_disk(printed, told):
    end, _ = ran(f"print({printed!r}, file=sys.stderr); sys.exit(1)")
    assert "Traceback" not in end.output
    with pytest.raises(DiskError, match=told):
        end.refuse_system_error()


def test_of_a_traceback_only_the_error_is_repeated():
    end, _ = ran(
        f"print({READ_ONLY!r}.replace('OSError: [Errno 30]', 'Fault:'), file=sys.stderr); sys.exit(1)"
    )
    assert end.output == "Fault: Read-only file system: '/c/.snakemake/shadow'"
    end.refuse_system_error()


def test_the_child_knows_what_was_typed_and_whether_to_inform_anyone():
    end, _ = ran(f"print('crpipe:', os.environ[{TYPED!r}], {UNNOTIFIED!r} in os.environ, file=sys.stderr)")
    assert end.output == 'crpipe: ["crpipe", "run"] False'
    end, _ = ran(f"print('crpipe:', {UNNOTIFIED!r} in os.environ, file=sys.stderr)", notify=False)
    assert end.output == "crpipe: True"


@pytest.fixture
def handlers():
    """Return the handlers of signals back."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # also where the tests run below nohup
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
def test_a_signal_is_passed_on_once_as_sigterm():
    said = []
    stop = StopSignal(said.append)
    stop.listen()
    text = (
        "import signal\ngot = []\nsignal.signal(signal.SIGTERM, lambda *_: got.append(1))\n"
        f'os.write(int(os.environ[{DESCRIPTOR!r}]), b\'{{"event": "begin"}}\\n\')\n'
        "until = time.monotonic() + 30\n"
        "while not got and time.monotonic() < until: time.sleep(0.1)\n"
        "time.sleep(0.5)\nsys.exit(len(got))"
    )

    def twice(_):
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)

    end = run_head(Script(text), ["crpipe", "run"], stop, twice, lambda: None)
    assert (end.code, stop.exit_code) == (1, 130)
    assert said[0].startswith("stopping: ")
    assert said[1:] == ["already stopping"]


@pytest.mark.usefixtures("handlers")
def test_nohup_keeps_it_running():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    StopSignal(pytest.fail).listen()
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    assert signal.getsignal(signal.SIGTERM) != signal.SIG_DFL


@pytest.mark.usefixtures("handlers")
def test_a_terminal_that_is_gone_keeps_no_signal_from_the_child():
    def gone(_):
        raise OSError(5, "Input/output error")

    stop = StopSignal(gone)
    stop.listen()
    end, _ = ran(
        f'os.write(int(os.environ[{DESCRIPTOR!r}]), b\'{{"event": "begin"}}\\n\')\ntime.sleep(30)',
        stop,
        receive=lambda _: os.kill(os.getpid(), signal.SIGHUP),
    )
    assert (end.code, stop.exit_code) == (-signal.SIGTERM, 129)


def test_an_error_here_ends_the_child_before_another_one_can_start(tmp_path):
    number = tmp_path / "number"

    def fail():
        if number.exists():
            raise OSError(5, "Input/output error")

    with pytest.raises(OSError, match="Input/output"):
        ran(
            f"part = {str(number)!r} + '.part'\nopen(part, 'w').write(str(os.getpid()))\n"
            f"os.rename(part, {str(number)!r})\ntime.sleep(30)",
            tick=fail,
        )
    with pytest.raises(ProcessLookupError):
        os.kill(int(number.read_text()), 0)


def test_an_event_that_a_full_disk_cut_is_left_out():
    end, received = ran(f'os.write(int(os.environ[{DESCRIPTOR!r}]), b\'{{"eve\\n{{"event": "begin"}}\\n\')')
    assert end.began
    assert received == [{"event": "begin"}]
