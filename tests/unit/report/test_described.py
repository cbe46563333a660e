"""The fields of `crpipe plan --json`: frozen, and each of them in the documentation."""

import json
from pathlib import Path

from campaign_files import CampaignFiles
from crpipe.report.estimates import SourceLook
from crpipe.report.plan import describe_plan
from crpipe.split.preview import FileSample

DOCS = Path(__file__).parents[3] / "docs" / "watching.md"
FILE = FileSample("a.parquet", "m:R", {"run": "uint64"}, 2, 1000, 50, 500, 40, 8, 90, 0.8)
FIELDS = {
    "run": None,
    "fingerprint": None,
    "source": None,
    "max_files": None,
    "ranges": {"count", "first", "last", "skipped", "known"},
    "listed_now": None,
    "file": {
        *("name", "reader", "columns", "files", "bytes", "events", "items"),
        *("rows", "groups", "largest", "below", "doubt", "notes"),
    },
    "files": None,
    "bytes": None,
    "events": None,
    "items": None,
    "exact": None,
    "batch_events": None,
    "steps_per_link": None,
    "disk": {"raw", "splitting", "shards", "more_at_peak", "budget", "free"},
    "hours": {"training", "data", "events_per_s", "measured_in"},
    "jobs": None,
    "notes": None,
    "warnings": None,
    "problems": None,
}


def test_the_fields_are_frozen_and_documented(tmp_path):
    files = CampaignFiles(tmp_path, ranges=2)
    name = files.name(0)
    seen = SourceLook({name: (4, 20_000)}, FILE, ("a note",), ("a warning",), ("a problem",))
    found = json.loads(json.dumps(describe_plan(files.plan(seen))))
    assert found.keys() == FIELDS.keys()
    assert {key: {*found[key]} for key, names in FIELDS.items() if names} == {
        key: names for key, names in FIELDS.items() if names
    }
    assert found["listed_now"] == {name: {"files": 4, "bytes": 20_000}}
    assert found["jobs"]["list"] == {"jobs": 2, "done": 0}
    assert "a warning" in found["warnings"]
    assert (found["notes"], found["problems"]) == (["a note"], ["a problem"])
    text = DOCS.read_text()
    assert [key for key in FIELDS if f"`{key}`" not in text] == []


def test_what_is_not_known_is_null(tmp_path):
    found = describe_plan(CampaignFiles(tmp_path, ranges=1).plan())
    assert (found["events"], found["steps_per_link"], found["file"]) == (None, None, None)
    assert found["hours"]["training"] is None
