import json
import re

import pytest

from campaign_files import CampaignFiles, realistic
from crpipe.core.files import read_json, write_json
from crpipe.events.layout import Metric
from crpipe.report.page.document import configured_keys, render_report, write_report

HOSTILE = """</td></svg>"'><script>alert("x")</script>"""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    made = CampaignFiles(tmp_path_factory.mktemp("campaign"), ranges=2, overrides=("run=mine",))
    made.claim()
    for index in range(2):
        made.trained(made.split(index, quarantined=index))
    made.evaluated(
        made.name(1),
        {"w1_time": 1.0, "w1_time_error": 0.1, "auc_event": 0.9, "auc_event_error": 0.01},
        again={"w1_time": 1.0, "auc_event": 0.51},
        groups=375,
    )
    (made.paths.evaluation(made.name(1)) / "time.svg").write_text("<svg/>")
    return made


@pytest.fixture(scope="module")
def page(files):
    return render_report(files.campaign)


def words(page):
    return " ".join(re.sub(r"<[^>]*>", " ", page).split())


def test_the_page_opens_on_the_numbers(page):
    sections = re.findall(r'<section id="([^"]+)"', page)
    assert sections == [
        "summary", "quality", "losses", "multiplicity", "throughput", "watched-0", "ranges", "timeline",
        "failures", "figures", "more", "configuration", "versions",
    ]  # fmt: skip
    text = words(page.partition("</style>")[2])
    assert "80,000 events" in text
    assert "✓ balanced ledger 2 of 2 ledgers balance" in text
    assert "20 files 1 quarantined" in text or "19 files 1 quarantined" in text


def test_what_was_seen_is_marked_in_words_and_colour(page):
    assert re.search(r'<td class="same"><b>≈ no difference seen</b><small>with 375 groups</small>', page)
    assert (
        '<td class="differs"><b>≠ differs</b><small>40 times as far from the ideal as the floor</small>'
        in page
    )
    assert "W1 (Wasserstein distance)" in page
    assert "No difference seen: by less" in page


def test_the_page_needs_no_other_file_and_no_script(page):
    assert not re.findall(r"<(?:link|script|iframe|object|embed|base|form)\b|@import|url\(", page)
    assert re.findall(r'(?:src|href)="(?!data:image/svg)', page) == []
    assert "prefers-color-scheme: dark" in page
    assert "@media print" in page


def test_an_unbalanced_ledger_is_the_first_thing_seen(files, tmp_path):
    made = CampaignFiles(tmp_path, ranges=1)
    made.claim()
    made.split(0)
    ledger = read_json(made.paths.ledger(made.name(0)))
    ledger["events"]["train"] -= 1
    write_json(made.paths.ledger(made.name(0)), ledger)
    page = render_report(made.campaign)
    assert '<li class="bad"><b>✗ not balanced</b>' in page
    assert "Not evaluated yet." in page


def test_failures_say_whether_they_were_solved(tmp_path):
    text = words(render_report(realistic(tmp_path, ranges=20).campaign))
    assert "CUDA error: an illegal memory access" in text
    assert "✗ not finished" in text


def test_keys_that_differ_come_first(page):
    configuration = words(page[page.index('id="configuration"') :])
    assert re.search(r"differ.* run mine default .* all [0-9]+ keys key value run mine seed 1", configuration)


def test_an_empty_campaign_has_a_page_and_hostile_names_cannot_break_it(tmp_path):
    made = CampaignFiles(tmp_path, ranges=2, overrides=(f"notify.success={json.dumps(HOSTILE)}",))
    assert "none yet" in render_report(made.campaign)
    made.claim()
    made.evaluated(made.name(0), {"a": 1.0}, (Metric("a", HOSTILE, HOSTILE),), again={"a": 1.0})
    made.journal("stage", made.name(0), "start")
    made.journal("stage", made.name(0), "failed", error=HOSTILE)
    page = render_report(made.campaign)
    assert "<script" not in page
    assert HOSTILE not in page


def test_the_page_is_written_where_it_is_asked_for(files, tmp_path):
    path = write_report(files.campaign, tmp_path / "deep" / "page.html")
    assert path.read_text().startswith("<!doctype html>")


def test_keys_of_the_report_differ_where_the_user_set_them(tmp_path):
    keys = {each.name: each for each in configured_keys(CampaignFiles(tmp_path, ranges=2).config)}
    changed = {name for name, each in keys.items() if each.changed}
    assert changed == {
        "source.uri", "source.reader", "source.simulator", "train.workload", "results", "runs", "ranges.last",
        "source.disk_budget_gib",
    }  # fmt: skip
    assert keys["model.hidden"].value == keys["model.hidden"].default != ""
