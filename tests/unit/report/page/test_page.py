import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from campaign_files import CampaignFiles, realistic
from crpipe import __version__
from crpipe.events.layout import Metric
from crpipe.report.page import overview as page_module
from crpipe.report.page.overview import LETTERS, render_page, write_page
from crpipe.report.state_types import State

VOID = {"meta", "br", "hr", "img"}


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


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return render_page(realistic(tmp_path_factory.mktemp("campaign"), ranges=20).campaign)


def test_a_running_campaign_shows_all_sections(page):
    assert structure(page) == [
        "progress", "ranges", "errors", "losses", "watched-0", "throughput", "multiplicity",
    ]  # fmt: skip


def test_the_page_needs_nothing_from_elsewhere(page):
    without_errors = re.sub(r"pelican://[^<\"]*", "", page)
    assert not re.search(r"(src|href)=|url\(|@import|://", without_errors)


def test_a_failed_range_is_what_comes_next(page):
    assert "Next: read the errors below" in page


def test_an_empty_campaign_has_a_page_too(tmp_path):
    page = render_page(CampaignFiles(tmp_path, ranges=3).campaign)
    assert structure(page) == ["progress", "ranges"]
    assert "0 of 3 ranges trained" in page


HOSTILE = """</pre></svg>"'><script>alert("x")</script>"""


def test_names_from_files_cannot_break_the_page(tmp_path):
    """Errors, item words, metrics, their titles, and names of numbers come from files and from workloads."""
    files = CampaignFiles(tmp_path, ranges=3)
    files.claim()
    files.trained(files.split(0))
    row = {"range": files.name(0), "range_step": 1, "range_steps": 1, "epoch": 0, "time": 0.0, "step": 1}
    values = {f"{HOSTILE}/loss": 1.0, f"{HOSTILE}/x": 1.0, f"{HOSTILE}/x_average": 1.0}
    with (files.paths.store(files.name(0)) / "metrics.jsonl").open("a") as handle:
        handle.write(json.dumps({**row, **values, "speed/items_per_s": 1.0}) + "\n")
    files.evaluated(files.name(0), {"a": 1.0, HOSTILE: 2.0}, (Metric("a", HOSTILE, HOSTILE),))
    name = files.listed(1)
    files.journal("stage", name, "start")
    files.journal("stage", name, "failed", error=HOSTILE)
    layout = replace(files.campaign.known_layout, item=HOSTILE)
    page = render_page(replace(files.campaign, known_layout=layout))
    assert structure(page) == [
        "progress", "ranges", "errors", "evaluation", "losses", "watched-0", "watched-1", "throughput",
        "multiplicity",
    ]  # fmt: skip
    assert "<script" not in page
    assert page.count("&lt;script&gt;") > 8
    assert HOSTILE not in page
    loads = r"<(?:link|img|iframe|object|embed|base|form)\b|url\(|@import|(?:src|href)=\"(?!#)"
    assert re.findall(loads, page) == []


def test_the_page_speaks_of_the_campaigns_items(tmp_path):
    files = CampaignFiles(tmp_path, ranges=2)
    files.trained(files.split(0))
    assert "multiplicity (items in one event)" in render_page(replace(files.campaign, known_layout=None))
    files.laid_out()
    page = render_page(files.campaign)
    assert "multiplicity (hits in one event)" in page
    assert "<dt>hits</dt>" in page
    assert "hits / s against" in page


def test_the_newest_evaluation_is_shown_with_what_is_better(tmp_path):
    files = CampaignFiles(tmp_path, ranges=2)
    files.evaluated(files.name(0), {"w1_time": 9.0})
    assert "<td>9</td>" in render_page(files.campaign)
    files.evaluated(
        files.name(1), {"w1_time": 0.5, "w1_time_error": 0.25, "bins": 7.0}, again={"w1_time": 0.1}
    )
    page = render_page(files.campaign)
    assert f"Evaluation of {files.name(1)}" in page
    assert "<td>W1 of the time (ns)<small>lower is better, ideal 0</small></td>\n<td>0.50 ± 0.25</td>" in page
    assert "<th>simulated again</th>" in page
    assert "<th>baseline</th>" not in page
    assert "more numbers: 1<" in page


def test_an_evaluation_without_numbers_has_a_place_on_the_page(tmp_path):
    files = CampaignFiles(tmp_path, ranges=2)
    files.evaluated(files.name(0), {}, ())
    assert "too few held-out events for any metric" in render_page(files.campaign)


def test_events_of_one_size_have_neither_threshold_nor_outliers(tmp_path):
    files = CampaignFiles(tmp_path, ranges=2)
    files.laid_out(fixed=4)
    files.split(0)
    page = render_page(files.campaign)
    assert 'class="threshold"' not in page
    assert page.count('<li class="') == 2
    assert "outliers, above" not in page


def test_a_single_row_of_metrics_can_be_plotted(tmp_path):
    files = CampaignFiles(tmp_path, ranges=2)
    files.metrics(files.split(0), 20)
    assert "losses" in structure(render_page(files.campaign))


def test_every_state_has_a_letter_and_a_colour():
    assert set(LETTERS) == set(State)
    sheet = (Path(page_module.__file__).parent / "templates" / "page.css").read_text()
    assert all(f".{state}" in sheet for state in State)


def test_writing_replaces_the_old_page(tmp_path):
    path = tmp_path / "out" / "page.html"
    campaign = CampaignFiles(tmp_path, ranges=1).campaign
    write_page(campaign, path)
    write_page(campaign, path)
    assert path.read_text().endswith("</html>\n")
    assert [item.name for item in path.parent.iterdir()] == ["page.html"]


def test_the_page_says_what_trains_what_comes_next_and_where_the_logs_are(tmp_path):
    files = CampaignFiles(tmp_path, ranges=1)
    files.claim()
    assert "Next: snakemake: begin the campaign" in render_page(files.campaign)
    name = files.split(0)
    files.trained(name)
    log = files.paths.run_dir() / "logs" / "train" / f"{name}.log"
    log.parent.mkdir(parents=True)
    log.touch()
    row = {"what": "machine", "host": "node7", "device": "NVIDIA H100", "ranks": 1, "time": 0.0, "pid": 1}
    with files.paths.train_journal().open("a") as handle:
        handle.write(json.dumps({**row, "torch": "2", "python": "3", "crpipe": "1", "range": name}) + "\n")
    write_page(files.campaign, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert f'<a href="runs/default/logs/train/{name}.log">train</a>' in page
    assert "<dt>learning rate</dt><dd>1 times that of each phase, at step 400</dd>" in page
    assert "<dd>node7: NVIDIA H100; torch 2" in page
    assert "Next: snakemake evaluation" in page
    assert "split 1 min" in page
    files.evaluated(name, {"w1_time": 1.0})
    assert "Next: crpipe report" in render_page(files.campaign)
    assert f"crpipe {__version__}" in page
