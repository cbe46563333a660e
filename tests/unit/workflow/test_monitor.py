"""The lines of `crpipe run`, from log records as Snakemake writes them."""

import json
import logging
import sys
import threading

import pytest

from campaign_files import CampaignFiles
from crpipe.campaign.campaign import Campaign
from crpipe.config.loading import load_config
from crpipe.core.errors import ConfigError
from crpipe.setup.init import start_campaign
from crpipe.workflow import monitor as module
from crpipe.workflow.monitor import FOR_A_PERSON, Monitor, WorkflowRun, jobs_table, last_line, logs_line
from named import READERS
from told import Lines

NAME = "0001000-0001999"


@pytest.fixture
def screen():
    return Lines()


@pytest.fixture
def campaign(tmp_path):
    places = (f"results={tmp_path}/results", f"runs={tmp_path}/runs")
    return Campaign.open(
        load_config((), ("ranges.last=2999", f"source.reader={READERS['bundles']}", *places))
    )


@pytest.fixture
def monitor(campaign, screen, monkeypatch):
    monkeypatch.setattr(module, "LIVE_S", 0.0)
    return opened(screen, campaign)


def opened(screen, campaign=None, **options):
    monitor = Monitor(screen, WorkflowRun(), **options)
    monitor.campaign = campaign
    return monitor


def record(text="", level=logging.INFO, **attributes):
    made = logging.LogRecord("snakemake", level, "", 0, text, (), None)
    vars(made).update(attributes)
    return made


def jobs(**counts):
    return record(event="run_info", stats={"all": 1, **counts, "total": 1 + sum(counts.values())})


def start(tmp_path, rule="train", job=1, **wildcards):
    log = str(tmp_path / f"{rule}.log")
    wildcards = wildcards or {"link": NAME}
    return record(event="job_info", jobid=job, rule_name=rule, wildcards=wildcards, log=[log])


def end(job=1):
    return record(event="job_finished", job_id=job)


def error(job=1):
    return record(event="job_error", level=logging.ERROR, jobid=job)


def test_a_job_takes_two_lines(monitor, screen, tmp_path):
    monitor.receive(jobs(train=3))
    monitor.receive(start(tmp_path))
    monitor.receive(end())
    monitor.close()
    assert screen == [
        "3 jobs to do",
        f"train {NAME} (2 of 4)  log: {tmp_path}/train.log",
        f"train {NAME} finished after 0 s  (1 of 3)",
        "1 job done in 0 s.",
    ]


def test_the_outliers_are_the_last_link(monitor, screen, tmp_path):
    monitor.receive(record(event="job_info", jobid=1, rule_name="train_outliers", wildcards={}, log=["a"]))
    assert screen == ["train outliers (4 of 4)  log: a"]


def test_a_short_job_takes_one_line_and_a_target_none(monitor, screen, tmp_path):
    monitor.receive(jobs(list_range=1))
    monitor.receive(start(tmp_path, "list_range"))
    monitor.receive(start(tmp_path, "all", 0))
    monitor.receive(end())
    monitor.receive(end(0))
    assert screen[1:] == [f"list {NAME} finished after 0 s  (1 of 1)"]


def test_the_last_failure_is_explained_by_the_end_of_the_workflow_alone(monitor, screen, tmp_path):
    monitor.receive(start(tmp_path, "stage"))
    monitor.receive(start(tmp_path, "stage", 2))
    (tmp_path / "stage.log").write_text("crpipe: refused")
    monitor.receive(error())
    monitor.receive(error(2))
    failed = f"stage {NAME} FAILED after 0 s  log: {tmp_path}/stage.log"
    assert screen[2:] == [failed, "  | crpipe: refused", failed]


def test_a_failure_names_the_log_and_its_last_line_and_the_next_try(monitor, screen, tmp_path):
    monitor.receive(start(tmp_path, "stage"))
    (tmp_path / "stage.log").write_text("one\ncrpipe: refused\n\n")
    monitor.receive(error())
    monitor.receive(start(tmp_path, "stage"))
    assert screen[1:] == [
        f"stage {NAME} FAILED after 0 s  log: {tmp_path}/stage.log",
        "  | crpipe: refused",
        f"stage {NAME} (2 of 3) again  log: {tmp_path}/stage.log",
    ]


def test_the_progress_of_a_training_comes_before_that_of_other_jobs(monitor, campaign, screen, tmp_path):
    monitor.tick()
    assert not screen
    monitor.receive(start(tmp_path, "stage", 2))
    monitor.tick()
    assert screen.pop() == f"stage {NAME}  for 0 s"
    (tmp_path / "stage.log").write_text("stage  40%  12 s left\nsomething else\n")
    monitor.tick()
    assert screen.pop() == "stage  40%  12 s left"
    monitor.receive(start(tmp_path))
    store = campaign.paths.store(NAME)
    store.mkdir(parents=True)
    place = {"range": NAME, "range_steps": 4000}
    rows = [
        {**place, "range_step": 600 * k, "step": 600 * k, "time": 60.0 * k, "a/loss": 0.25} for k in (1, 2)
    ]
    (store / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monitor.tick()
    assert screen.pop() == f"train {NAME}  step 1,200 of 4,000  4 min left  a/loss 0.25  (and 1 other job)"


def test_where_lines_cannot_be_rewritten_progress_is_rare(monitor, screen, tmp_path):
    screen.tty = False
    monitor.receive(start(tmp_path))
    monitor.tick()
    assert len(screen) == 1


def test_progress_is_shown_until_the_end(monitor, screen, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_LOOK_S", 0.0)
    shown = threading.Event()
    screen.live = lambda _: shown.set()
    monitor.receive(start(tmp_path, "stage"))
    monitor.start()
    assert shown.wait(30)
    monitor.close()
    (thread,) = [each for each in threading.enumerate() if each.name == "progress"] or [None]
    assert thread is None or thread.join(30) is None


def test_a_dry_run_lists_the_jobs_by_rule(campaign, screen, tmp_path):
    monitor = opened(screen, campaign, dry_run=True)
    monitor.receive(jobs(stage=1))
    monitor.receive(start(tmp_path, "stage"))
    monitor.tick()
    assert not screen
    monitor.close()
    assert screen == ["1 job to do:", f"  stage     1  {NAME}"]


def test_the_jobs_of_a_dry_run_take_one_line_for_each_rule():
    names = {"stage": ["stage 2", "stage 1", "stage 3"], "train_outliers": ["train outliers"]}
    assert jobs_table({"stage": 3, "train_outliers": 1}, names) == [
        "4 jobs to do:",
        "  stage              3  1 … 3",
        "  train outliers     1",
    ]
    assert jobs_table({"list_range": 1}) == ["1 job to do:", "  list     1"]
    assert jobs_table({}) == ["Nothing to be done."]


@pytest.mark.parametrize(("step", "few"), [(1, "it was trained in 1 step, 500 are the least"), (700, "")])
def test_the_last_lines_are_about_the_model_and_whether_it_was_trained_enough(tmp_path, screen, step, few):
    files = CampaignFiles(tmp_path, ranges=2)
    files.step = step
    files.evaluated(files.name(1), {"w1_time": 0.03}, again={"w1_time": 0.02})
    monitor = opened(screen, files.campaign)
    monitor.receive(jobs(evaluate=1))
    monitor.close()
    assert screen[2].startswith("the model: ")
    assert "".join(screen[3:]).startswith(few)
    assert len(screen) == (4 if few else 3)


def test_a_workflow_of_another_version_is_named_where_it_fails(tmp_path, screen, monkeypatch):
    monkeypatch.chdir(tmp_path)
    start_campaign(tmp_path, "run: x\n")
    for edited in ("", "# of another version"):
        with (tmp_path / "workflow/rules/head.smk").open("a") as rules:
            rules.write(edited)
        monitor = opened(screen)
        monitor.receive(record("ImportError in file head.smk", logging.ERROR))
        monitor.close()
        other = "workflow/rules/head.smk: not as in this version of crpipe"
        assert screen.count(f"{other}; take its workflow: crpipe init --force") == bool(edited)


def test_nothing_to_be_done_is_said_once(screen):
    monitor = opened(screen)
    monitor.close()
    monitor.close()
    assert screen == ["Nothing to be done: everything that was asked for is there."]


def test_warnings_and_what_is_meant_for_a_person_are_repeated_and_chatter_is_not(monitor, screen):
    monitor.receive(record("Building DAG of jobs..."))
    monitor.receive(record("cmd", event="shellcmd"))
    monitor.receive(record("away", logging.WARNING))
    monitor.receive(record("cancelling jobs", **FOR_A_PERSON))
    assert screen == ["away", "cancelling jobs"]


def test_a_terminal_that_is_gone_stops_nothing(monitor, screen):
    def gone(_):
        raise OSError(5, "Input/output error")

    screen.message = gone
    monitor.receive(record("away", logging.WARNING))
    monitor.close()


FULL = "OSError in file /c/common.smk, line 7:\n[Errno 28] No space left on device"
READ_ONLY = (
    "Traceback (most recent call last):\n\n  File x.py, line 1, in execute\n    f()\n\n"
    "OSError: [Errno 30] Read-only file system: '/c/.snakemake/shadow'\n"
)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("No rule\nat all", ["No rule", "at all"]),
        ("\n".join(map(str, range(100))), [str(n) for n in range(75, 100)]),
        (
            READ_ONLY.replace("OSError: [Errno 30]", "Fault:"),
            ["Fault: Read-only file system: '/c/.snakemake/shadow'"],
        ),
    ],
)
def test_the_last_lines_of_an_error_of_snakemake_are_repeated_at_the_end(monitor, screen, text, lines):
    monitor.receive(record(text, logging.ERROR, event="error"))
    assert not screen
    monitor.close()
    assert screen == lines


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (FULL, ".snakemake: cannot write: the disk is full"),
        (READ_ONLY, "/c/.snakemake/shadow: cannot write: the file system is read-only"),
    ],
)
def test_a_disk_that_keeps_snakemake_from_beginning_is_an_error_of_the_disk(screen, text, told):
    for began, typed in ((True, ()), (False, ()), (False, ("crpipe", "run"))):
        run = WorkflowRun(began=began, typed=typed)
        monitor = Monitor(screen, run)
        monitor.receive(record(text, logging.ERROR))
        monitor.close()
        assert (run.error is None) == began
        assert bool(screen) == (not typed)  # `crpipe run` raises it
        screen.clear()
    assert str(run.error).startswith(told)


def test_the_end_in_words_of_crpipe_is_all_that_is_printed(screen):
    run = WorkflowRun()
    run.monitor = monitor = Monitor(screen, run)
    monitor.receive(record("WorkflowError: at least one job", logging.ERROR))
    run.end("\ncrpipe: the workflow did not finish.\n  why")
    assert not screen
    monitor.close()
    assert screen == ["", "crpipe: the workflow did not finish.", "  why"]


def test_who_tries_again_prints_the_end_itself(screen):
    run = WorkflowRun(report=1)
    run.monitor = monitor = Monitor(screen, run)
    monitor.receive(record("No rule", logging.ERROR))
    monitor.close()
    assert (screen, run.text) == ([], "No rule")


def test_errors_of_jobs_that_were_repeated_are_no_failure(screen):
    run = WorkflowRun(succeeded=True)
    run.monitor = monitor = Monitor(screen, run)
    monitor.receive(jobs(list_range=1))
    monitor.receive(record("RuleException: CalledProcessError", logging.ERROR))
    monitor.close()
    assert (screen[-1], run.text) == ("0 jobs done in 0 s.", "")


def test_a_missing_file_of_the_workflow_is_no_error_of_the_disk(screen):
    run = WorkflowRun()
    monitor = Monitor(screen, run)
    monitor.receive(record("[Errno 2] No such file or directory: 'workflow/rules/x.smk'", logging.ERROR))
    monitor.close()
    assert run.error is None
    assert "x.smk" in run.text


def test_a_plain_snakemake_prints_the_end_at_once(capfd):
    run = WorkflowRun()
    run.refuse(ConfigError("a key is wrong"))
    assert capfd.readouterr().err == "crpipe: a key is wrong\n"
    assert run.failures == [{"verb": "", "name": "", "kind": "ConfigError", "cause": "a key is wrong"}]
    assert run.words() == ["snakemake", *sys.argv[1:]]


def test_a_refusal_says_nothing_of_jobs(screen):
    monitor = opened(screen)
    try:
        sys.exit(2)
    except SystemExit:
        monitor.close()
    assert screen == []


def test_logs_are_named_with_that_of_snakemake(campaign, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    handler = logging.FileHandler(tmp_path / "a.log")
    line = logs_line(campaign, [logging.StreamHandler(), handler])
    handler.close()
    assert line == f"logs: {tmp_path}/results/logs, {tmp_path}/runs/default/logs, a.log"


def test_the_last_line_of_a_missing_log_is_empty(tmp_path):
    assert last_line(tmp_path / "none.log") == ""


def test_a_file_server_that_is_down_for_a_moment_stops_nothing(monitor, screen, tmp_path, monkeypatch):
    def down(*_):
        raise OSError(116, "Stale file handle")

    monitor.receive(start(tmp_path))
    lines = list(screen)
    monkeypatch.setattr(module, "tail", down)
    monitor.tick()
    assert screen == lines
