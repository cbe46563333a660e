"""The lines of `crpipe run`."""

import json

import pytest

from crpipe.campaign.campaign import Campaign
from crpipe.config.loading import load_config
from crpipe.workflow import monitor as module
from crpipe.workflow.monitor import Monitor, last_line
from named import READERS

NAME = "0001000-0001999"


class Lines(list):
    """A screen that keeps its lines."""

    tty = True

    say = live = list.append


@pytest.fixture
def screen():
    return Lines()


@pytest.fixture
def campaign(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LIVE_S", 0.0)
    places = (f"results={tmp_path}/results", f"runs={tmp_path}/runs")
    return Campaign.open(
        load_config((), ("ranges.last=2999", f"source.reader={READERS['bundles']}", *places))
    )


def start(tmp_path, verb="train", job=1):
    log = str(tmp_path / f"{verb}.log")
    return {"event": "start", "job": job, "rule": verb, "name": f"{verb} {NAME}", "log": log}


def test_a_job_takes_two_lines(campaign, screen, tmp_path):
    monitor = Monitor(campaign, screen)
    monitor.receive({"event": "jobs", "counts": {"train": 3}})
    monitor.receive({"event": "begin", "logs": ["/somewhere/a.log"]})
    monitor.receive(start(tmp_path))
    monitor.receive({"event": "end", "job": 1})
    assert screen == [
        "3 jobs to do",
        f"logs: {tmp_path}/results/logs, {tmp_path}/runs/default/logs, /somewhere/a.log",
        f"train {NAME} (2 of 4)  log: {tmp_path}/train.log",
        f"train {NAME} finished after 0 s  (1 of 3)",
    ]
    assert monitor.close() == ["1 job done in 0 s."]


def test_a_short_job_takes_one_line_and_a_target_none(campaign, screen, tmp_path):
    monitor = Monitor(campaign, screen)
    monitor.receive({"event": "jobs", "counts": {"list_range": 1}})
    monitor.receive(start(tmp_path) | {"rule": "list_range", "name": f"list {NAME}"})
    monitor.receive({"event": "end", "job": 1})
    monitor.receive({"event": "end", "job": 0})
    assert screen[1:] == [f"list {NAME} finished after 0 s  (1 of 1)"]


def test_the_last_failure_is_explained_by_the_end_of_the_workflow_alone(campaign, screen, tmp_path):
    monitor = Monitor(campaign, screen)
    monitor.receive(start(tmp_path, "stage"))
    monitor.receive(start(tmp_path, "stage", 2))
    (tmp_path / "stage.log").write_text("crpipe: refused")
    monitor.receive({"event": "error", "job": 1})
    monitor.receive({"event": "error", "job": 2})
    failed = f"stage {NAME} FAILED after 0 s  log: {tmp_path}/stage.log"
    assert screen[2:] == [failed, "  | crpipe: refused", failed]


def test_a_failure_names_the_log_and_its_last_line_and_the_next_try(campaign, screen, tmp_path):
    monitor = Monitor(campaign, screen)
    monitor.receive(start(tmp_path, "stage"))
    (tmp_path / "stage.log").write_text("one\ncrpipe: refused\n\n")
    monitor.receive({"event": "error", "job": 1})
    monitor.receive(start(tmp_path, "stage"))
    assert screen[1:] == [
        f"stage {NAME} FAILED after 0 s  log: {tmp_path}/stage.log",
        "  | crpipe: refused",
        f"stage {NAME} (2 of 3) again  log: {tmp_path}/stage.log",
    ]


def test_the_progress_of_a_training_comes_before_that_of_other_jobs(campaign, screen, tmp_path):
    monitor = Monitor(campaign, screen)
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


def test_where_lines_cannot_be_rewritten_progress_is_rare(campaign, screen, tmp_path):
    screen.tty = False
    monitor = Monitor(campaign, screen)
    monitor.receive(start(tmp_path))
    monitor.tick()
    assert len(screen) == 1


def test_a_dry_run_lists_the_jobs_by_rule(campaign, screen, tmp_path):
    monitor = Monitor(campaign, screen, dry_run=True)
    monitor.receive({"event": "jobs", "counts": {"stage": 1}})
    monitor.receive(start(tmp_path, "stage"))
    monitor.tick()
    assert monitor.close() == ["1 job to do:", f"  stage     1  {NAME}"]
    assert not screen


def test_nothing_to_be_done_is_said(campaign, screen):
    assert Monitor(campaign, screen).close() == [
        "Nothing to be done: everything that was asked for is there."
    ]


def test_what_the_workflow_says_is_repeated(campaign, screen):
    monitor = Monitor(campaign, screen)
    monitor.receive({"event": "say", "text": "cancelling jobs"})
    monitor.receive({"event": "failures", "failures": []})
    assert screen == ["cancelling jobs"]


def test_the_last_line_of_a_missing_log_is_empty(tmp_path):
    assert last_line(tmp_path / "none.log") == ""


def test_a_file_server_that_is_down_for_a_moment_stops_nothing(campaign, screen, tmp_path, monkeypatch):
    def down(*_):
        raise OSError(116, "Stale file handle")

    monitor = Monitor(campaign, screen)
    monitor.receive(start(tmp_path))
    lines = list(screen)
    monkeypatch.setattr(module, "tail", down)
    monitor.tick()
    assert screen == lines
