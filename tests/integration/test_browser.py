"""The status page in a real browser: what it shows, and that nothing sticks out at desktop or phone width."""

import html
import json
import re
import subprocess

import pytest

from campaign_files import linked, realistic
from crpipe.report.page import render_page

pytestmark = pytest.mark.browser
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
# The page is shown in a frame of the wanted width: a browser window has a least width, a frame has none.
HARNESS = """<!doctype html><meta charset="utf-8"><pre id="measured"></pre>
<iframe width="{width}" height="900" srcdoc="{page}"></iframe><script>
const frame = document.querySelector("iframe");
frame.addEventListener("load", () => {{
  const page = frame.contentDocument, root = page.documentElement;
  const wide = [...page.body.querySelectorAll("*")].filter(
    (one) => one.getBoundingClientRect().right > root.clientWidth + 0.5);
  document.getElementById("measured").textContent = JSON.stringify({{
    width: root.clientWidth, needed: root.scrollWidth, out: wide.map((one) => one.outerHTML.slice(0, 80)),
    cells: page.querySelectorAll("ol > li").length,
    trained: page.querySelectorAll("ol > li.trained").length,
    charts: [...page.querySelectorAll("svg")].map((one) => one.getBoundingClientRect().height),
    columns: new Set([...page.querySelectorAll(".charts section")].map((one) => one.offsetLeft)).size,
    text: page.body.innerText,
    paper: getComputedStyle(page.body).backgroundColor,
    // The size of letters as a person sees them: charts are scaled to their column.
    letters: Math.min(...[...page.querySelectorAll("p, td, th, dt, dd, li, small, svg text")]
      .filter((one) => one.textContent.trim() && one.getClientRects().length)
      .map((one) => parseFloat(getComputedStyle(one).fontSize)
        * (one.ownerSVGElement ? Math.hypot(one.getScreenCTM().a, one.getScreenCTM().b) : 1))),
  }});
}});
</script>"""


def seen_at(tmp_path, page, width, *flags):
    """Measure a page in a frame of this width."""
    dom = dump(tmp_path, HARNESS.format(width=width, page=html.escape(page)), *flags)
    return json.loads(html.unescape(re.search(r'<pre id="measured">(.*?)</pre>', dom, re.DOTALL)[1]))


def dump(tmp_path, document, *flags):
    path = tmp_path / "document.html"
    path.write_text(document)
    command = [
        "chromium",
        *FLAGS,
        *flags,
        f"--user-data-dir={tmp_path / 'profile'}",
        "--virtual-time-budget=3000",
    ]
    done = subprocess.run(
        [*command, "--window-size=1600,1000", "--dump-dom", path.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout


@pytest.fixture(scope="module")
def campaign(tmp_path_factory):
    files = realistic(tmp_path_factory.mktemp("campaign"), ranges=100)
    values = {"w1_time": 0.0312, "w1_time_error": 0.002, "auc_event": 0.53, "efficiency": 0.9, "bins": 12.0}
    files.evaluated(files.name(50), values, again={"w1_time": 0.022}, baseline={"efficiency": 0.7})
    return files


@pytest.fixture(scope="module")
def page(campaign):
    return render_page(campaign.state, short=True)


@pytest.mark.parametrize(("width", "columns"), [(1600, 2), (900, 2), (400, 1), (390, 1)])
def test_the_page_fits_its_width_can_be_read_and_shows_every_range(tmp_path, page, width, columns):
    seen = seen_at(tmp_path, page, width)
    assert seen["needed"] <= seen["width"]
    assert seen["out"] == []
    assert seen["letters"] >= 10 or width < 400
    assert seen["cells"] == 101
    assert seen["trained"] == 57
    assert len(seen["charts"]) == 4
    assert min(seen["charts"]) > 100
    assert seen["columns"] == columns
    assert "57 of 100 ranges trained" in seen["text"]
    assert "CUDA error: an illegal memory access" in seen["text"]


def test_the_page_is_parsed_as_written(tmp_path, page):
    dom = dump(tmp_path, page)
    assert dom.count("<section") == page.count("<section") == 8
    assert '<li class="failed" title="0060000-0060999; failed;' in dom


@pytest.mark.parametrize("width", [1280, 390])
def test_links_have_cells_of_their_own_where_they_are_not_the_ranges(tmp_path, width):
    page = render_page(linked(tmp_path / "campaign", 40).state, short=True)
    seen = seen_at(tmp_path, page, width)
    assert seen["needed"] <= seen["width"]
    assert seen["out"] == []
    assert seen["cells"] == 41 + 41  # 40 ranges and 40 links, each with the outliers
    assert seen["trained"] == 2
    assert "2 of 40 links trained" in seen["text"]


DARK = "--blink-settings=preferredColorScheme=0"


@pytest.mark.parametrize("width", [400, 900, 1600])
def test_the_report_is_readable_at_every_width(tmp_path, campaign, width):
    page = render_page(campaign.state)
    seen = seen_at(tmp_path, page, width)
    assert seen["needed"] <= seen["width"]
    assert seen["out"] == []
    assert seen["letters"] >= 10
    for text in ("2,320,000", "balanced", "0.0312 ± 0.0020", "CUDA error: an illegal memory access"):
        assert text in seen["text"]
    assert len(seen["charts"]) == 4
    assert seen["columns"] == (1 if width == 400 else 2)


FIGURE = '<svg xmlns="http://www.w3.org/2000/svg" width="576pt" height="335pt" viewBox="0 0 576 335"/>'


def test_the_printed_report_has_at_most_eight_sheets(tmp_path):
    """As many figures and numbers as muon bundles have."""
    files = realistic(tmp_path / "campaign", ranges=100)
    files.evaluated(files.name(50), {f"number_{place}": 0.1 for place in range(30)})
    for place in range(9):
        (files.paths.evaluation(files.name(50)) / f"figure_{place}.svg").write_text(FIGURE)
    page, printed = tmp_path / "report.html", tmp_path / "report.pdf"
    page.write_text(render_page(files.state))
    assert page.read_text().count("data:image/svg+xml") >= 9
    command = ["chromium", *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", f"--print-to-pdf={printed}"]
    subprocess.run([*command, page.as_uri()], capture_output=True, timeout=120, check=True)
    sheets = len(re.findall(rb"/Type */Page\b", printed.read_bytes()))
    assert 3 < sheets <= 8


def test_both_pages_are_dark_where_the_reader_wants_it(tmp_path, campaign, page):
    for each in (page, render_page(campaign.state)):
        colours = [seen_at(tmp_path, each, 900, *flags)["paper"] for flags in ((), (DARK,))]
        assert colours == ["rgb(247, 248, 250)", "rgb(18, 22, 28)"]
