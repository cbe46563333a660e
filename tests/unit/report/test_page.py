"""The page of a campaign, whole (`crpipe report`) and short (`crpipe status --html`)."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from campaign_files import CampaignFiles, realistic, with_validation
from crpipe import __version__
from crpipe.events.layout import Metric
from crpipe.report import page as page_module
from crpipe.report.jobs import attempts_of
from crpipe.report.page import LETTERS, configured_keys, lanes_of, render_page, versions, write_page
from crpipe.report.state import CampaignState
from crpipe.report.work_state import State

VOID = {"meta", "br", "hr", "img"}
HOSTILE = """</pre></svg>"'><script>alert("$x$")</script>"""
WHOLE = ["timeline", "failures", "configuration", "versions"]


class Structure(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.sections = [], []

    def handle_starttag(self, tag, attrs):
        if tag not in VOID:
            self.open.append(tag)
        if tag == "section":
            self.sections.append(dict(attrs)["id"])

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def structure(page):
    parser = Structure()
    parser.feed(page)
    assert parser.open == []
    return parser.sections


def words(page):
    return " ".join(re.sub(r"<[^>]*>", " ", page.partition("</style>")[2]).split())


def short_page(files):
    return render_page(files.state, short=True)


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """A campaign at work: its short page and its whole one."""
    state = realistic(tmp_path_factory.mktemp("campaign"), ranges=20).state
    return {"short": render_page(state, short=True), "whole": render_page(state)}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A finished campaign, whose second link is evaluated and has a figure."""
    made = CampaignFiles(tmp_path_factory.mktemp("campaign"), ranges=2, overrides=("run=mine",))
    made.claim()
    for index in range(2):
        made.trained(made.split(index, quarantined=index))
    made.evaluated(made.name(0), {"w1_time": 9.0})
    made.evaluated(
        made.name(1),
        {"w1_time": 1.0, "w1_time_error": 0.1, "auc_event": 0.9, "auc_event_error": 0.01, "bins": 7.0},
        again={"w1_time": 1.0, "w1_time_error": 0.1, "auc_event": 0.51, "auc_event_error": 0.01},
        groups=375,
    )
    (made.paths.evaluation(made.name(1)) / "time.svg").write_text("<svg/>")
    return made


@pytest.fixture(scope="module")
def page(files):
    return render_page(files.state)


def test_both_pages_begin_with_the_same_sections(running):
    both = ["progress", "errors", "losses", "losses-1", "throughput", "multiplicity", "ranges"]
    assert structure(running["short"]) == both
    assert structure(running["whole"]) == ["about", *both[:2], "quality", *both[2:], *WHOLE]
    assert ('http-equiv="refresh"' in running["short"]) > ('http-equiv="refresh"' in running["whole"])


def test_the_whole_page_shows_numbers_quality_and_figures(page):
    assert structure(page) == [
        "about", "progress", "quality", "figures", "losses", "losses-1", "throughput", "multiplicity",
        "ranges", "timeline", "failures", "configuration", "versions",
    ]  # fmt: skip
    text = words(page)
    assert "80,000 events" in text
    assert "✓ balanced ledger 2 of 2 ledgers balance" in text
    assert "19 files 1 quarantined" in text
    assert "training (bulk) 75,799 (94.7%) 760,000 (4.0%)" in text
    assert "No attempt has failed" in text
    assert "Next:" not in text


@pytest.mark.parametrize("kind", ["short", "whole"])
def test_a_page_needs_no_other_file_and_no_script(running, page, kind):
    for each in (running[kind], page):
        without_errors = re.sub(r"pelican://[^<\";]*|file:///[^<]*|synthetic:[^<]*", "", each)
        assert not re.findall(r"<(?:link|script|iframe|object|embed|base|form)\b|@import|://", without_errors)
        assert re.findall(r'(?:src|href)="(?!data:image/svg|#)|url\((?!#)', each) == []
        assert "prefers-color-scheme: dark" in each
        assert "@media print" in each


def test_the_same_campaign_gives_the_same_page(files, page):
    state = files.state
    assert render_page(state) == render_page(state)
    assert "2000-01-01" not in page


def test_names_from_files_cannot_break_the_page(tmp_path):
    """Errors, item words, metrics, their titles, and names of numbers come from files and from workloads."""
    files = CampaignFiles(tmp_path, ranges=3, overrides=(f"notify.success={json.dumps(HOSTILE)}",))
    files.claim()
    files.trained(files.split(0))
    row = {"range": files.name(0), "range_step": 1, "range_steps": 1, "epoch": 0, "time": 0.0, "step": 1}
    values = {f"{HOSTILE}/loss": 1.0, f"{HOSTILE}/x": 1.0, f"{HOSTILE}/x_average": 1.0}
    with (files.paths.store(files.name(0)) / "metrics.jsonl").open("a") as handle:
        handle.write(json.dumps({**row, **values, "speed/items_per_s": 1.0}) + "\n")
    files.evaluated(
        files.name(0), {"a": 1.0, HOSTILE: 2.0}, (Metric("a", HOSTILE, HOSTILE),), again={"a": 1.0}
    )
    name = files.listed(1)
    files.journal("stage", name, "start")
    files.journal("stage", name, "failed", error=HOSTILE)
    layout = replace(files.campaign.known_layout, item=HOSTILE)
    state = CampaignState.read(replace(files.campaign, known_layout=layout))
    both = [
        "progress",
        "errors",
        "quality",
        *("losses", "losses-1", "losses-2", "throughput", "multiplicity"),
    ]
    for short in (True, False):
        page = render_page(state, short=short)
        assert structure(page) == [*([] if short else ["about"]), *both, "ranges", *([] if short else WHOLE)]
        assert "<script" not in page
        assert page.count("&lt;script&gt;") > 8
        assert HOSTILE not in page


def test_an_empty_campaign_has_a_page_too(tmp_path):
    state = CampaignFiles(tmp_path, ranges=3).state
    page = render_page(state, short=True)
    assert structure(page) == ["progress", "ranges"]
    assert "0 of 3 ranges trained" in page
    text = words(render_page(state))
    assert "none yet" in text
    assert "Not evaluated yet." in text


def test_the_page_speaks_of_the_campaigns_items(tmp_path):
    files = CampaignFiles(tmp_path, ranges=2)
    files.trained(files.split(0))
    unknown = CampaignState.read(replace(files.campaign, known_layout=None))
    assert "multiplicity (items in one event)" in render_page(unknown, short=True)
    files.laid_out()
    page = short_page(files)
    assert "multiplicity (hits in one event)" in page
    assert "<dt>hits</dt>" in page
    assert "<h2>Hits / s</h2>" in page


def test_the_newest_evaluation_is_shown_with_what_is_better_and_what_was_seen(files, page):
    for each in (page, short_page(files)):
        assert f"Evaluation of {files.name(1)} on 1,000 validation events in 375 groups" in each
        assert "<td>W1 of the time (ns)<small>lower is better, ideal 0</small></td>" in each
        assert '<td data-name="model">1.00 ± 0.10</td>' in each
        assert "<th>simulated again</th>" in each
        assert "<th>baseline</th>" not in each
        assert "more numbers: 1<" in each
        assert '<td class="cannot-tell"><b>? cannot tell</b><small>375 groups resolve' in each
        assert '<td class="differs"><b>≠ differs</b><small>0.390 ± 0.014 from the floor, tolerance' in each
        assert "<p><b>differs: AUC of events, 0.390 ± 0.014 from the floor, tolerance 0.02" in each
    assert "W1 (Wasserstein distance)" in page
    assert "Cannot tell: anything else" in page


def test_an_evaluation_without_numbers_has_a_place_on_the_page(tmp_path):
    files = CampaignFiles(tmp_path, ranges=2)
    files.evaluated(files.name(0), {}, ())
    assert "too few held-out events for any metric" in short_page(files)


def test_events_of_one_size_have_neither_threshold_nor_outliers(tmp_path):
    files = CampaignFiles(tmp_path, ranges=2)
    files.laid_out(fixed=4)
    files.split(0)
    page = short_page(files)
    assert "threshold" not in page
    assert page.count('<li class="split"') + page.count('<li class="waiting"') == 2


def test_a_single_value_is_a_dot_and_validation_has_charts(tmp_path):
    files = CampaignFiles(tmp_path / "one", ranges=2)
    files.metrics(files.split(0), 20)
    assert "losses" in structure(short_page(files))
    assert "<h2>Validation: score</h2>" in short_page(with_validation(tmp_path / "many"))


def test_every_state_has_a_letter_and_a_colour():
    assert set(LETTERS) == set(State)
    sheet = (Path(page_module.__file__).parent / "templates" / "page.css").read_text()
    assert all(f".{state}" in sheet for state in State)


def test_writing_replaces_the_old_page(tmp_path):
    path = tmp_path / "out" / "page.html"
    state = CampaignFiles(tmp_path, ranges=1).state
    for short in (False, True):
        assert write_page(state, path, short=short) == path
    assert path.read_text().endswith("</html>\n")
    assert [item.name for item in path.parent.iterdir()] == ["page.html"]


def test_the_page_says_what_trains_what_comes_next_and_where_the_logs_are(tmp_path, running):
    assert "Next: read the errors below" in running["short"]
    files = CampaignFiles(tmp_path, ranges=1)
    files.claim()
    assert "Next: snakemake: begin the campaign" in short_page(files)
    name = files.split(0)
    files.trained(name)
    log = files.paths.run_dir() / "logs" / "train" / f"{name}.log"
    log.parent.mkdir(parents=True)
    log.touch()
    row = {"what": "machine", "host": "node7", "device": "NVIDIA H100", "ranks": 1, "time": 0.0, "pid": 1}
    with files.paths.train_journal().open("a") as handle:
        handle.write(json.dumps({**row, "torch": "2", "python": "3", "crpipe": "1", "range": name}) + "\n")
    page = write_page(files.state, tmp_path / "page.html", short=True).read_text()
    assert f'<a href="runs/default/logs/train/{name}.log">train</a>' in page
    assert "<dt>learning rate</dt><dd>1 times that of each phase, at step 400</dd>" in page
    assert "<dt>trained on node7</dt><dd>NVIDIA H100; torch 2" in page
    assert "Next: snakemake evaluation" in page
    assert "split 1 min, train " in page
    assert f"crpipe {__version__}" in page
    assert '<a href="' not in short_page(files)
    files.evaluated(name, {"w1_time": 1.0})
    assert "Next: crpipe report" in short_page(files)


def test_an_unbalanced_ledger_is_the_first_thing_seen(tmp_path):
    made = CampaignFiles(tmp_path, ranges=1)
    made.claim()
    with made.changed_ledger(made.split(0)) as ledger:
        ledger["events"]["train"] -= 1
    assert '<li class="bad"><b>✗ not balanced</b>' in render_page(made.state)


def test_failures_say_whether_they_were_solved(tmp_path, running):
    text = words(running["whole"])
    assert "CUDA error: an illegal memory access" in text
    assert "✗ not finished" in text
    assert "✓ finished later" not in text
    made = CampaignFiles(tmp_path, ranges=1)
    made.journal("stage", made.name(0), "start")
    made.journal("stage", made.name(0), "failed", error="no route to host")
    made.clock += 10
    made.attempt("stage", made.name(0))
    assert "no route to host" in render_page(made.state)
    assert "✓ finished later" in words(render_page(made.state))


def test_jobs_have_a_lane_for_each_verb_and_failures_are_marked(tmp_path):
    files = CampaignFiles(tmp_path, ranges=2)
    files.attempt("train", files.name(0), 7200.0)
    files.attempt("stage", files.name(0), 60.0)
    files.journal("stage", files.name(1), "start")
    files.journal("stage", files.name(1), "failed", error="x")
    lanes = lanes_of(attempts_of(files.paths))
    assert [verb for verb, _ in lanes] == ["stage", "train"]
    bars = [bar for _, row in lanes for bar in row]
    assert [kind for _, _, kind, _ in bars] == ["done", "failed", "done"]
    assert bars[2][:2] == (0, pytest.approx(100 * 7200 / 7260))
    assert all(left + width <= 100.001 for left, width, _, _ in bars)
    assert bars[1][-1].endswith(". x")
    assert lanes_of([]) == []


def test_keys_that_the_user_set_come_first(page, tmp_path):
    configuration = words("</style>" + page[page.index('id="configuration"') :])
    assert re.search(r"differ.* run mine default .* all [0-9]+ keys key value run mine seed 1", configuration)
    keys = configured_keys(CampaignFiles(tmp_path, ranges=2).config)
    assert {name for name, value, default in keys if value != default} == {
        "source.uri", "source.reader", "source.simulator", "train.workload", "results", "runs", "ranges.last",
        "source.disk_budget_gib",
    }  # fmt: skip
    ((_, value, default),) = [row for row in keys if row[0] == "model.hidden"]
    assert value == default != ""


def test_versions_name_crpipe_and_the_host():
    found = dict(versions())
    assert found["crpipe"] == __version__
    assert set(found) >= {"Python", "torch", "numpy", "host"}
