"""`crpipe run`: its command line, the workflow in this process, and when it is started again."""

import json
import os
import shlex
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from snakemake import cli
from snakemake_interface_executor_plugins.utils import format_cli_arg

from crpipe.campaign.campaign import Campaign
from crpipe.core.errors import ConfigError, DiskError, MissingExtra
from crpipe.core.text import NullProgress
from crpipe.workflow import run as module
from crpipe.workflow.monitor import WorkflowRun
from crpipe.workflow.rules import overrides
from crpipe.workflow.run import (
    LONGEST_S,
    MOST,
    WATCHED,
    RetryPolicy,
    RunRequest,
    WorkflowEnd,
    check_profile,
    describe_end,
    ensure_cache,
    next_links,
    run_snakemake,
    run_workflow,
)
from named import READERS, SIMULATOR
from told import Lines


@pytest.fixture(autouse=True)
def run(monkeypatch):
    """Run a workflow in this process, and restore its signals."""
    monkeypatch.setattr(module, "RUN", WorkflowRun())
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    yield module.RUN
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.fixture
def request_(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    changes = (
        *("ranges.last=2999", "source.uri=synthetic://", f"source.simulator={SIMULATOR}"),
        f"source.reader={READERS['bundles']}",
    )
    return RunRequest((), changes, (), 0, "", "", dry_run=True, more=(), typed=("crpipe", "run"), pause_s=0.0)


def test_snakemake_gets_a_cache_where_the_users_own_cannot_be_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))
    ensure_cache()
    assert os.environ["XDG_CACHE_HOME"] == str(tmp_path / "own")
    monkeypatch.setattr(os, "access", lambda folder, _: folder != tmp_path)
    ensure_cache()
    assert os.environ["XDG_CACHE_HOME"] == str(tmp_path / ".snakemake/cache")


def test_the_command_line_names_configuration_profile_and_options(request_):
    asked = replace(request_, files=(Path("a.yaml"), Path("b.yaml")), overrides=("ranges.last=9",))
    cluster = replace(asked, profile="slurm", cores="4", dry_run=False)
    assert cluster.words(["train_all"]) == [
        *("train_all", "--logger", "crpipe", "--configfile", "a.yaml", "b.yaml"),
        *("--config", "crpipe_set=ranges.last%3D9", "--profile", "slurm", "--jobs", "4"),
    ]
    plain = replace(request_, overrides=(), cores="2", more=("--retries", "3"))
    assert plain.words([])[2:] == ["--cores", "2", "--dry-run", "--retries", "3"]


def test_what_set_says_reaches_the_workflow_as_it_was_typed(request_):
    """Snakemake made text of null and 1, and the number 7 of '007': run refused what status took."""
    texts = (
        "split.quantile=null",
        "run='007'",
        "split.test_files=[1]",
        "train.stop_loss=.inf",
        "results='[a]'",
    )
    _, args = cli.parse_args(replace(request_, overrides=texts).words([]))
    assert overrides([], cli.parse_config(args.config)) == [*texts]
    words = shlex.split(format_cli_arg("--config", args.config))  # of a job of a cluster
    assert overrides([], cli.parse_config(words[1:])) == [*texts]


def test_a_file_of_comments_alone_is_not_handed_to_snakemake(request_, monkeypatch):
    """It ended the workflow with 'Config file must be given as JSON or YAML', without its name."""
    Path("a.yaml").write_text("run: a\n")
    Path("b.yaml").write_text("# run: b\n")
    monkeypatch.setattr(module, "run_snakemake", lambda words, _: words)
    words = run_workflow(replace(request_, files=(Path("a.yaml"), Path("b.yaml"))), NullProgress())
    assert words[2:5] == ["--configfile", "a.yaml", "--config"]
    with pytest.raises(ConfigError, match=r"^b\.yaml: no key is written"):
        run_workflow(replace(request_, files=(Path("b.yaml"),)), NullProgress())


def test_a_second_way_to_name_the_configuration_is_refused(request_):
    with pytest.raises(ConfigError, match="crpipe run --config FILE --set KEY"):
        replace(request_, more=("--configfile=a.yaml",)).words([])


def test_the_next_links_are_those_without_a_receipt(request_):
    campaign = Campaign.open(request_.config())
    receipts = [str(campaign.paths.receipt(name)) for name in campaign.chain.names]
    assert next_links(campaign, 2) == tuple(receipts[:2])
    campaign.paths.receipt(campaign.chain.names[0]).parent.mkdir(parents=True)
    for name in campaign.chain.names[:3]:
        campaign.paths.receipt(name).touch()
    assert next_links(campaign, 2) == tuple(receipts[3:])
    campaign.paths.receipt("outliers").touch()
    with pytest.raises(ConfigError, match=r"trained already: 4 links; add ranges \(ranges.last\)"):
        next_links(campaign, 1)


def test_snakemake_gets_the_next_links_and_knows_what_was_typed(request_, run, monkeypatch):
    monkeypatch.setattr(module, "run_snakemake", lambda words, _: words)
    words = run_workflow(replace(request_, links=1), NullProgress())
    assert words[0] == "runs/default/ranges/0000000-0000999.json"
    assert (run.typed, run.watched) == (("crpipe", "run"), False)


def test_a_wrong_key_is_refused_before_snakemake_reads_the_files(request_, monkeypatch):
    monkeypatch.setattr(module, "run_snakemake", pytest.fail)
    with pytest.raises(ConfigError):
        run_workflow(replace(request_, overrides=("ranges.last=x",), pause_s=0.05), NullProgress())


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        (["--nonsense"], 2, "unrecognized arguments: --nonsense"),
        (
            ["--cores", "some"],
            1,
            "Error: Error parsing number of cores (--cores, -c): must be integer or 'all'.",
        ),
    ],
)
def test_of_a_wrong_option_the_error_alone_is_printed(words, code, line, capsys):
    screen = Lines()
    assert run_snakemake([*words, "--logger", "crpipe"], screen) == code
    assert screen == [line]
    assert capsys.readouterr().err == ""


def test_a_profile_that_is_not_here_is_named_with_the_command_that_writes_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "own"))
    with pytest.raises(ConfigError) as raised:
        check_profile("htcondor")
    assert str(raised.value) == (
        f"--profile htcondor: no folder htcondor in {tmp_path}; write it: crpipe init --profile htcondor"
    )
    check_profile("")
    check_profile("of-a-friend")
    (tmp_path / "own" / "snakemake" / "htcondor").mkdir(parents=True)
    check_profile("htcondor")


def test_a_snakemake_that_is_not_there_is_named_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "snakemake", None)
    with pytest.raises(MissingExtra, match="cannot import it; install it there: .* -m pip install snakemake"):
        run_snakemake([], NullProgress())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_snakemake_itself_does_not_take_ends_it_in_words(run, monkeypatch, number):
    from snakemake import cli

    def stopped(*_):
        run.stop.number = number
        raise KeyboardInterrupt

    run.typed = ("crpipe", "run")
    monkeypatch.setattr(cli, "args_to_api", stopped)
    screen = Lines()
    assert run_snakemake([], screen) == 128 + number
    assert screen == ["\nStopped as asked; continue with: crpipe run"]


def test_options_that_snakemake_refuses_late_are_its_error_in_one_line(capsys):
    screen = Lines()
    assert run_snakemake(["--report-after-run", "--cores", "1"], screen) == 1
    assert len(screen) == 1
    assert screen[0].startswith("Error: ")
    assert "Traceback" not in capsys.readouterr().err


def test_an_error_of_the_machine_ends_it_with_its_own_exit_code(run, monkeypatch):
    from snakemake import cli

    def ended(*_):
        run.error = DiskError(".snakemake: cannot write: the disk is full")

    monkeypatch.setattr(cli, "args_to_api", ended)
    with pytest.raises(DiskError, match="the disk is full"):
        run_snakemake([], NullProgress())


# --keep-trying


class Attempts:
    """Scripts how each attempt ends; a function of the attempt's request is called in its place."""

    def __init__(self, *ends):
        self.ends = list(ends)
        self.targets = []

    def __call__(self, request, targets, stop):
        self.targets.append(tuple(targets))
        end = self.ends.pop(0)
        return end(stop) if callable(end) else end


@pytest.fixture
def ends(monkeypatch):
    def script(*ends):
        attempts = Attempts(*ends)
        monkeypatch.setattr(module, "_attempt", attempts)
        return attempts

    return script


def failure(*kinds, finished=0, code=1, targets=()):
    rows = [{"verb": "list", "name": "a", "kind": kind, "cause": f"(exit 66): {kind}"} for kind in kinds]
    return WorkflowEnd(code, targets, True, finished, rows, "why it failed")


def test_it_keeps_trying_what_may_pass_and_says_so(request_, ends):
    screen, attempts = Lines(), ends(failure("ListingError", targets=["a"]), WorkflowEnd())
    assert run_workflow(replace(request_, pause_s=0.05), screen) == 0
    assert screen[0] == "failed: list a (exit 66): ListingError"
    assert screen[1].startswith("trying again in 0 s, at ")
    assert attempts.targets == [(), ("a",)]  # a link that is trained now is one of those that were asked for


@pytest.fixture
def skipping(request_):
    changes = (*request_.overrides, "ranges.on_failure=skip")
    return replace(request_, overrides=changes, dry_run=False)


def test_it_goes_on_at_once_without_a_range_that_is_skipped(skipping, ends):
    """Also without --keep-trying; a link of that range is asked for no more."""
    lost = replace(failure(targets=["x/a.json", "x/b.json"]), skipped={"a": "a (1 file): split failed"})
    screen, attempts = Lines(), ends(lost, WorkflowEnd())
    assert run_workflow(skipping, screen) == 0
    assert screen == ["skipped: a (1 file): split failed"]
    assert attempts.targets == [(), ("x/b.json",)]


def test_it_stops_where_more_than_skipped_ranges_failed(skipping, ends):
    lost = replace(failure("ListingError"), skipped={"b": "b (1 file)"})
    screen, attempts = Lines(), ends(lost)
    assert run_workflow(skipping, screen) == 1
    assert screen == ["skipped: b (1 file)", "why it failed"]
    assert len(attempts.targets) == 1


def test_it_stops_at_once_where_waiting_is_no_use_and_says_why(request_, ends):
    ends(failure("PluginError"))
    screen = Lines()
    assert run_workflow(replace(request_, pause_s=0.05), screen) == 1
    assert screen == ["why it failed"]


def test_a_killed_workflow_ends_with_the_code_of_its_signal(request_, ends, monkeypatch):
    monkeypatch.setattr(module, "MOST", 0)
    ends(WorkflowEnd(-9, text="the last words"))
    screen = Lines()
    assert run_workflow(replace(request_, pause_s=0.05), screen) == 137
    assert screen == ["the last words"]


def test_a_notification_that_fails_does_not_hide_why_the_workflow_failed(request_, ends, monkeypatch):
    def refused(*_):
        raise ConfigError("the files are not counted yet")

    ends(failure("PluginError"))
    monkeypatch.setattr(module, "notify", refused)
    screen = Lines()
    changes = (*request_.overrides, "notify.failure='true'")
    assert run_workflow(replace(request_, overrides=changes, pause_s=0.05), screen) == 1
    assert screen == ["warning: notify.failure: the files are not counted yet", "why it failed"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_a_pause_ends_it_at_once(request_, ends, monkeypatch, number):
    ends(failure("ListingError"))
    calls = []

    def interrupted(_):
        assert not calls, "it went on"
        calls.append(1)
        os.kill(os.getpid(), number)

    monkeypatch.setattr(module.time, "sleep", interrupted)
    screen = Lines()
    assert run_workflow(replace(request_, pause_s=60.0), screen) == 128 + number
    assert screen[-1] == "Stopped as asked; continue with: crpipe run"


@pytest.fixture
def in_its_place(tmp_path, monkeypatch):
    """Run a program of this test in the place of the workflow that is watched."""

    def put(text):
        (tmp_path / "workflow.py").write_text(f"import json, os, signal, sys, time\n{text}")
        monkeypatch.setattr(sys, "executable", tmp_path / "python")
        (tmp_path / "python").write_text(f"#!/bin/sh\nexec {PYTHON} {tmp_path}/workflow.py\n")
        (tmp_path / "python").chmod(0o755)

    return put


PYTHON = sys.executable
REPORT = f"""
about = json.loads(os.environ[{WATCHED!r}])
def report(**end):
    os.pwrite(about["report"], json.dumps(end).encode(), 0)
"""


def test_the_end_of_a_watched_workflow_is_read(request_, in_its_place):
    in_its_place(f"{REPORT}\nreport(targets=['a'], began=True, finished=2, text='why')\nsys.exit(3)")
    end = module._attempt(request_, [], module.StopRequest())
    assert end == WorkflowEnd(3, ["a"], True, 2, [], "why")


@pytest.mark.parametrize(
    "text", ["sys.exit(3)", "os.write(json.loads(os.environ['CRPIPE_WATCHED'])['report'], b'{')"]
)
def test_an_end_that_a_full_disk_cut_is_known_by_its_code(request_, in_its_place, text):
    in_its_place(f"{text}\nsys.exit(3)")
    assert module._attempt(request_, [], module.StopRequest()) == WorkflowEnd(3)


def test_a_workflow_that_is_killed_goes_on_with_the_targets_it_had(request_, monkeypatch):
    asked = []

    def killed(_, targets, __):
        asked.append(targets)
        return [WorkflowEnd(-9, ["a"], True, 1), WorkflowEnd(-9), WorkflowEnd(0, ["a"])][len(asked) - 1]

    monkeypatch.setattr(module, "_attempt", killed)
    monkeypatch.setattr(module, "_pause", lambda *_: None)
    assert module.keep_trying(replace(request_, pause_s=0.01), NullProgress(), module.StopRequest()) == 0
    assert asked == [(), ("a",), ("a",)]


def test_the_report_is_there_before_the_end(run, tmp_path):
    with (tmp_path / "report").open("w+b") as report:
        run.report, run.targets, run.text = report.fileno(), ("a",), "a long text"
        run.write_report()
        run.finished, run.text = 2, ""
        run.write_report()
        assert WorkflowEnd(-9, **json.loads(report.read())) == WorkflowEnd(-9, ["a"], finished=2)


def test_a_report_that_finds_no_space_ends_no_workflow(request_, run, monkeypatch):
    monkeypatch.setattr(module, "run_snakemake", lambda *_: 75)
    with Path("/dev/full").open("wb") as report:
        monkeypatch.setenv(WATCHED, json.dumps({"report": report.fileno(), "targets": ["a"]}))
        assert run_workflow(request_, Lines()) == 75


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_is_passed_on_once_as_sigterm(request_, in_its_place, number, tmp_path):
    in_its_place(
        "got = []\nsignal.signal(signal.SIGTERM, lambda *_: got.append(1))\n"
        f"open({str(tmp_path / 'ready')!r}, 'w').close()\nuntil = time.monotonic() + 30\n"
        "while not got and time.monotonic() < until: time.sleep(0.1)\ntime.sleep(0.5)\nsys.exit(len(got))"
    )
    code = (
        "import os, signal, sys, threading, time\nfrom pathlib import Path\n"
        "from crpipe.workflow import run as module\n"
        f"signal.signal({number:d}, signal.SIG_DFL)\n"
        "stop = module.StopRequest(); stop.listen(module.HEAD_SIGNALS)\n"
        "def twice():\n"
        f"    while not Path({str(tmp_path / 'ready')!r}).exists(): time.sleep(0.05)\n"
        f"    for _ in range(2): os.kill(os.getpid(), {number:d})\n"
        "threading.Thread(target=twice, daemon=True).start()\n"
        f"sys.executable = {str(tmp_path / 'python')!r}\n"
        "request = type('Request', (), {'typed': ('crpipe', 'run')})\n"
        "print(module._attempt(request, [], stop).code, stop.exit_code)"
    )
    done = subprocess.run([PYTHON, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", str(128 + number)]


def test_a_refusal_of_a_watched_workflow_is_reported_and_not_printed(request_, run, monkeypatch, tmp_path):
    def refused(*_):
        raise ConfigError("a key is wrong")

    monkeypatch.setattr(module, "run_snakemake", refused)
    with (tmp_path / "report").open("w+") as report:
        monkeypatch.setenv(WATCHED, json.dumps({"report": report.fileno(), "targets": ["a"]}))
        screen = Lines()
        assert run_workflow(request_, screen) == 2
        end = json.loads(report.read())
    assert (screen, WATCHED in os.environ) == ([], False)
    assert end["failures"] == [{"verb": "", "name": "", "kind": "ConfigError", "cause": "a key is wrong"}]
    assert (end["targets"], end["text"]) == (["a"], "crpipe: a key is wrong")


def test_pauses_grow_to_an_hour_and_end():
    policy = RetryPolicy(60.0)
    pauses = [policy.after(failure("TransferError")) for _ in range(MOST + 1)]
    assert pauses[:4] == [60.0, 120.0, 240.0, 480.0]
    assert pauses[-2:] == [LONGEST_S, 0.0]


def test_progress_makes_the_next_pause_short_again():
    policy = RetryPolicy(60.0)
    assert [policy.after(failure("DiskError")) for _ in range(3)][-1] == 240.0
    assert policy.after(failure("DiskError", finished=1)) == 60.0


@pytest.mark.parametrize("kind", ["PluginError", "ShardError", "DivergenceError", "AccessError", "TypeError"])
def test_what_no_waiting_repairs_is_not_tried_again(kind):
    assert RetryPolicy(60.0).after(failure("TransferError", kind)) == 0.0


@pytest.mark.parametrize("kind", ["TransferError", "DiskError", "QueueError", "Interrupted", "OSError", ""])
def test_what_may_pass_is_tried_again(kind):
    assert RetryPolicy(60.0).after(failure(kind)) == 60.0


@pytest.mark.parametrize(
    ("code", "began", "pause"), [(2, False, 0), (69, False, 0), (75, False, 60), (1, False, 0), (1, True, 60)]
)
def test_an_end_before_any_job_is_judged_by_its_code(code, began, pause):
    assert RetryPolicy(60.0).after(WorkflowEnd(code, began=began)) == pause


def test_what_failed_is_said_in_one_line():
    assert describe_end(failure("ListingError", "DiskError")) == "list a (exit 66): ListingError (and 1 more)"
    assert describe_end(WorkflowEnd(-9)) == "workflow: ended with exit code -9"
    killed = {"verb": "train", "name": "a", "kind": "", "cause": "ran out of memory"}
    assert describe_end(WorkflowEnd(failures=[killed])) == "train a: ran out of memory"
    assert describe_end(WorkflowEnd(failures=[killed | {"verb": "", "name": ""}])) == "ran out of memory"
