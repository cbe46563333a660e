import re
from html.parser import HTMLParser

import pytest

from campaign_files import CampaignFiles, realistic
from crpipe.report.status.page import LETTERS, render_page, write_page
from crpipe.report.status.page_style import SHEET
from crpipe.report.status.status_types import State

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
    return render_page(realistic(tmp_path_factory.mktemp("campaign"), ranges=20).config)


def test_a_running_campaign_shows_all_sections(page):
    assert structure(page) == [
        "progress", "ranges", "errors", "losses", "gap", "throughput", "multiplicity",
    ]  # fmt: skip


def test_the_page_needs_nothing_from_elsewhere(page):
    without_errors = re.sub(r"pelican://[^<\"]*", "", page)
    assert not re.search(r"(src|href)=|url\(|@import|://", without_errors)


def test_an_empty_campaign_has_a_page_too(tmp_path):
    page = render_page(CampaignFiles(tmp_path, ranges=3).config)
    assert structure(page) == ["progress", "ranges"]
    assert "0 of 3 ranges trained" in page


def test_errors_cannot_break_the_page(tmp_path):
    files = CampaignFiles(tmp_path, ranges=2)
    name = files.listed(0)
    files.journal("stage", name, "start")
    files.journal("stage", name, "failed", error='</pre><script>alert("x")</script>')
    page = render_page(files.config)
    assert structure(page) == ["progress", "ranges", "errors"]
    assert "<script" not in page


def test_a_single_row_of_metrics_can_be_drawn(tmp_path):
    files = CampaignFiles(tmp_path, ranges=2)
    files.metrics(files.split(0), 20)
    assert "losses" in structure(render_page(files.config))


def test_every_state_has_a_letter_and_a_colour():
    assert set(LETTERS) == set(State)
    assert all(f".{state}" in SHEET for state in State)


def test_writing_replaces_the_old_page(tmp_path):
    path = tmp_path / "out" / "page.html"
    config = CampaignFiles(tmp_path, ranges=1).config
    write_page(config, path)
    write_page(config, path)
    assert path.read_text().endswith("</html>\n")
    assert [item.name for item in path.parent.iterdir()] == ["page.html"]
