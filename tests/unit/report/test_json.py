"""What `--json` gives to programs: fields that are frozen, documented, and the same numbers as the text."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from campaign_files import CampaignFiles
from crpipe.core.files import write_json
from crpipe.core.paths import OUTLIERS
from crpipe.core.text import json_text
from crpipe.report import status as status_text
from crpipe.report.state_types import QueuedJob, SourceToken, ValidationStatus
from crpipe.report.status import collect, status_json
from crpipe.report.summary import summary_json
from json_fields import fields

FROZEN = Path(__file__).parents[1] / "frozen"
PAGE = Path(__file__).parents[3] / "docs" / "watching.md"


@pytest.fixture
def files(tmp_path):
    """A campaign whose JSON has every field."""
    made = CampaignFiles(tmp_path, ranges=2)
    made.claim()
    for index in range(2):
        made.trained(made.split(index, quarantined=index, rejected=3 * index))
    made.consolidated(events=201)
    made.trained(OUTLIERS)
    made.evaluated(
        OUTLIERS,
        {"w1_time": 0.03, "w1_time_error": 0.002},
        again={"w1_time": 0.02},
        baseline={"w1_time": 9.0},
    )
    receipt = json.loads(made.paths.receipt(OUTLIERS).read_text())
    best = {name: receipt[name] for name in ("range", "key", "sha256")}
    best |= {"checkpoint": "best.pt", "step": 7, "metric": "validation/critic/loss", "value": 0.5}
    write_json(made.paths.best_receipt(OUTLIERS), best)
    return made


def test_the_fields_of_the_summary_are_frozen(files):
    assert sorted(fields(json.loads(summary_json(files.campaign)))) == frozen("summary")


def test_the_fields_of_the_status_are_frozen(files, monkeypatch):
    whole = replace(
        collect(files.campaign),
        queue=(QueuedJob("7", "RUNNING", "node1", "train"),),
        token=SourceToken("file", 1.0),
        validation=ValidationStatus("link"),
    )
    monkeypatch.setattr(status_text, "collect", lambda *_: whole)
    assert sorted(fields(json.loads(status_json(files.campaign)))) == frozen("status")


def frozen(verb):
    return (FROZEN / f"json-{verb}.txt").read_text().splitlines()


@pytest.mark.parametrize("verb", ["summary", "status"])
def test_every_field_is_documented(verb):
    text = PAGE.read_text().partition("## For programs")[2]
    named = set(re.findall(r"`(\w+)`", text))
    words = {word for name in frozen(verb) for word in re.split(r"\.|\[\]\.?", name) if word}
    assert words - named == set()


def test_the_summary_holds_the_numbers_of_the_text(files):
    found = json.loads(summary_json(files.campaign))
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


def test_the_summary_of_nothing_is_whole(tmp_path):
    found = json.loads(summary_json(CampaignFiles(tmp_path, ranges=1).campaign))
    assert found["checkpoint"] is found["evaluation"] is found["report"] is None
    assert found["quarantined"] == []


def test_what_is_not_finite_is_null():
    text = json_text({"a": [float("nan"), {"b": (float("inf"), 1.0)}]})
    assert json.loads(text, parse_constant=pytest.fail) == {"a": [None, {"b": [None, 1.0]}]}
