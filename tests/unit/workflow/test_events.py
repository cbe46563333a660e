"""Events of the workflow's process, read from log records as Snakemake writes them."""

import json
import logging
import os
from pathlib import Path

import pytest

from crpipe.workflow.monitor import (
    DESCRIPTOR,
    TYPED,
    EventHandler,
    event_of,
    jobs_table,
    logs_of,
    sender,
    typed,
)


def record(text="", level=logging.INFO, **attributes):
    made = logging.LogRecord("snakemake", level, "", 0, text, (), None)
    vars(made).update(attributes)
    return made


def test_a_job_that_begins_is_named_as_its_command_is():
    about = {"event": "job_info", "jobid": 3, "rule_name": "train", "log": ["a.log"]}
    row = event_of(record(**about, wildcards={"link": "0000000-0000999"}))
    assert row == {
        "event": "start",
        "job": 3,
        "rule": "train",
        "name": "train 0000000-0000999",
        "log": "a.log",
    }
    about["rule_name"] = "train_outliers"
    assert event_of(record(**about, wildcards={}))["name"] == "train outliers"
    about["rule_name"] = "all"
    assert event_of(record(**about, wildcards={})) is None


def test_ends_errors_sums_and_warnings_are_events_and_chatter_is_not():
    assert event_of(record(event="job_finished", job_id=3)) == {"event": "end", "job": 3}
    assert event_of(record(event="job_error", jobid=3)) == {"event": "error", "job": 3}
    sums = event_of(record(event="run_info", stats={"all": 1, "stage": 2, "total": 3}))
    assert sums == {"event": "jobs", "counts": {"stage": 2}}
    assert event_of(record("away", logging.WARNING)) == {"event": "say", "text": "away"}
    assert event_of(record("Building DAG of jobs...")) is None
    assert event_of(record("cmd", event="shellcmd")) is None


def test_a_handler_passes_on_what_is_an_event():
    sent = []
    handler = EventHandler(sent.append)
    for each in (record("chatter"), record(event="job_finished", job_id=3)):
        handler.emit(each)
    assert sent == [{"event": "end", "job": 3}]


def test_the_jobs_of_a_dry_run_take_one_line_for_each_rule():
    names = {"stage": ["stage 2", "stage 1", "stage 3"], "train_outliers": ["train outliers"]}
    assert jobs_table({"stage": 3, "train_outliers": 1}, names) == [
        "4 jobs to do:",
        "  stage              3  1 … 3",
        "  train outliers     1",
    ]
    assert jobs_table({"list_range": 1}) == ["1 job to do:", "  list     1"]
    assert jobs_table({}) == ["Nothing to be done."]


def test_events_go_to_the_file_that_the_caller_opened_and_to_no_job(tmp_path, monkeypatch):
    monkeypatch.delenv(DESCRIPTOR, raising=False)
    assert sender() is None
    with (tmp_path / "events").open("wb") as file:
        monkeypatch.setenv(DESCRIPTOR, str(file.fileno()))
        sender()({"event": "end", "job": 3})
        assert DESCRIPTOR not in os.environ
    assert json.loads((tmp_path / "events").read_text()) == {"event": "end", "job": 3}


def test_the_command_to_repeat_is_the_one_that_was_typed(monkeypatch):
    monkeypatch.delenv(TYPED, raising=False)
    assert typed(["snakemake", "all"]) == ["snakemake", "all"]
    monkeypatch.setenv(TYPED, '["crpipe", "run"]')
    assert typed(["snakemake", "all"]) == ["crpipe", "run"]


def test_the_file_of_a_log_is_named(tmp_path):
    handler = logging.FileHandler(tmp_path / "a.log")
    assert logs_of([logging.StreamHandler(), handler]) == [str(tmp_path / "a.log")]
    handler.close()


@pytest.fixture(autouse=True)
def environment_kept(monkeypatch):
    monkeypatch.setattr(os, "environ", dict(os.environ))


def test_a_full_disk_below_the_events_stops_no_workflow(monkeypatch):
    with Path("/dev/full").open("wb", buffering=0) as file:
        monkeypatch.setenv(DESCRIPTOR, str(file.fileno()))
        sender()({"event": "end", "job": 3})
