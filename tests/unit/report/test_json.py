"""What `--json` gives to programs: fields that are frozen, documented, and the same numbers as the text."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from campaign_files import CampaignFiles
from crpipe.check.data import check_campaign_files
from crpipe.check.findings import CheckReport, read_agreed
from crpipe.core.files import write_json
from crpipe.core.paths import OUTLIERS
from crpipe.core.text import json_text
from crpipe.report.compare import compared_tables, read_runs, render_tables
from crpipe.report.estimates import SourceLook
from crpipe.report.notify import subject_of
from crpipe.report.plan import describe_plan
from crpipe.report.queues import QueuedJob
from crpipe.report.state import LastValidation, SourceToken
from crpipe.report.status import render_status, status_json
from crpipe.report.summary import render_summary, summary_json
from crpipe.report.work_state import State
from crpipe.split.preview import FileSample
from json_fields import fields

FROZEN = Path(__file__).parents[1] / "frozen"
PAGE = Path(__file__).parents[3] / "docs" / "watching.md"
SAMPLE = FileSample("a.parquet", "m:R", {"run": "uint64"}, 2, 1000, 50, 500, 40, 8, 90, 0.8)
PLAN = {
    "run": None,
    "fingerprint": None,
    "source": None,
    "max_files": None,
    "ranges": {"count", "first", "last", "skipped", "given_up", "known"},
    "listed_now": None,
    "file": {
        *("name", "reader", "columns", "files", "bytes", "events", "items"),
        *("rows", "groups", "largest", "below", "recommended", "doubt", "notes", "values", "doubts"),
    },
    "files": None,
    "bytes": None,
    "events": None,
    "items": None,
    "exact": None,
    "batch_events": None,
    "steps_per_link": None,
    "disk": {"raw", "saved", "splitting", "shards", "more_at_peak", "budget", "free"},
    "hours": {"training", "data", "events_per_s", "measured_in"},
    "jobs": None,
    "notes": None,
    "warnings": None,
    "problems": None,
}


@pytest.fixture
def files(tmp_path):
    """A campaign whose JSON has every field."""
    made = CampaignFiles(tmp_path, ranges=3)
    made.given_up(2)
    made.claim()
    for index in range(2):
        made.trained(made.split(index, quarantined=index, rejected=3 * index))
    made.consolidated(events=201)
    made.trained(OUTLIERS)
    made.evaluated(
        OUTLIERS,
        {"w1_time": 0.03, "w1_time_error": 0.002},
        again={"w1_time": 0.02},
        halves={"w1_time": 0.02},  # no evaluation has both
        baseline={"w1_time": 9.0},
    )
    receipt = json.loads(made.paths.receipt(OUTLIERS).read_text())
    best = {name: receipt[name] for name in ("range", "key", "sha256")}
    best |= {"checkpoint": "best.pt", "step": 7, "metric": "validation/critic/loss", "value": 0.5}
    write_json(made.paths.best_receipt(OUTLIERS), best)
    return made


def test_the_fields_of_the_summary_are_frozen(files):
    assert sorted(fields(json.loads(summary_json(files.state)))) == frozen("summary")


def test_the_fields_of_the_status_are_frozen(files):
    whole = replace(
        files.state,
        queue=(QueuedJob("7", "RUNNING", "node1", "train"),),
        token=SourceToken("file", 1.0),
        validation=LastValidation("link"),
    )
    status = json.loads(status_json(whole))
    assert sorted(fields(status)) == frozen("status")
    assert (status["ranges"][0]["state"], status["links"][0]["state"]) == ("trained", "trained")
    assert (status["ledgers"]["events"]["listed"], status["item"]) == (80_000, "hits")
    assert status["fingerprint"] == files.campaign.fingerprint


def frozen(verb):
    return (FROZEN / f"json-{verb}.txt").read_text().splitlines()


@pytest.mark.parametrize("verb", ["summary", "status"])
def test_every_field_is_documented(verb):
    text = PAGE.read_text().partition("## For programs")[2]
    named = set(re.findall(r"`(\w+)`", text))
    words = {word for name in frozen(verb) for word in re.split(r"\.|\[\]\.?", name) if word}
    assert words - named == set()


def test_the_summary_holds_the_numbers_of_the_text(files):
    found = json.loads(summary_json(files.state))
    assert (found["balanced"], found["events"]["listed"]) == (True, 80_000)
    assert (found["links"], found["ranges"]) == ({"finished": 2, "count": 2}, 2)
    assert found["consolidated_outliers"] == 201
    assert found["quarantined"] == [
        {"range": files.name(1), "file": "0000009.parquet", "reason": "12 bytes short of 41943040"}
    ]
    assert found["checkpoint"]["best"]["value"] == 0.5
    metric = found["evaluation"]["metrics"][0]
    assert (metric["name"], metric["better"], metric["ideal"]) == ("w1_time", "low", 0.0)
    assert metric["model"] == {"value": 0.03, "error": 0.002}
    assert metric["simulated_again"] == {"value": 0.02, "error": None}


def test_what_was_skipped_is_told_wherever_a_person_or_a_program_looks(files):
    """A loss is never silent: status, summary, plan, comparison, subject and check name it."""
    (record,) = files.campaign.given_up
    told = f"{record.range} (10 files, 400 MiB): split failed in 3 attempts: a.parquet: damaged"
    assert record.describe() == told
    for text in (
        render_status(files.state, 200),
        "\n".join(line for _, lines in files.plan().entries() for line in lines),
        render_tables(compared_tables(read_runs(files.paths, [files.paths.run]))),
    ):
        assert told in text
    assert "│ skipped       0002000-0002999 (10 files, 400 MiB)" in render_summary(files.state)
    assert subject_of(files.state, "success").endswith("2 of 2 ranges trained, 1 range skipped")
    report = CheckReport()
    check_campaign_files(report, files.campaign, read_agreed(files.campaign))
    assert told in next(each.what for each in report.notes if each.path == record.range)
    assert json.loads(summary_json(files.state))["given_up"] == [record.as_json()]
    assert json.loads(status_json(files.state))["given_up"] == [record.as_json()]
    assert describe_plan(files.plan())["ranges"]["given_up"] == [record.as_json()]
    states = {row.name: (row.state, row.attempt, row.error) for row in files.state.ranges}
    assert states[record.range] == (State.SKIPPED, 3, "a.parquet: damaged")


def test_the_summary_of_nothing_is_whole(tmp_path):
    found = json.loads(summary_json(CampaignFiles(tmp_path, ranges=1).state))
    assert found["checkpoint"] is found["evaluation"] is found["report"] is None
    assert found["quarantined"] == []


def test_what_is_not_finite_is_null():
    text = json_text({"a": [float("nan"), {"b": (float("inf"), 1.0)}]})
    assert json.loads(text, parse_constant=pytest.fail) == {"a": [None, {"b": [None, 1.0]}]}


def test_the_fields_of_the_plan_are_frozen_and_documented(tmp_path):
    files = CampaignFiles(tmp_path, ranges=2)
    name = files.name(0)
    seen = SourceLook({name: (4, 20_000)}, SAMPLE, ("a note",), ("a warning",), ("a problem",))
    found = json.loads(json.dumps(describe_plan(files.plan(seen))))
    assert found.keys() == PLAN.keys()
    assert {key: {*found[key]} for key, names in PLAN.items() if names} == {
        key: names for key, names in PLAN.items() if names
    }
    assert found["listed_now"] == {name: {"files": 4, "bytes": 20_000}}
    assert found["jobs"]["list"] == {"jobs": 2, "done": 0}
    assert "a warning" in found["warnings"]
    assert (found["notes"], found["problems"]) == (["a note"], ["a problem"])
    text = PAGE.read_text()
    assert [key for key in PLAN if f"`{key}`" not in text] == []


def test_what_a_plan_does_not_know_is_null(tmp_path):
    found = describe_plan(CampaignFiles(tmp_path, ranges=1).plan())
    assert (found["events"], found["steps_per_link"], found["file"]) == (None, None, None)
    assert found["hours"]["training"] is None
