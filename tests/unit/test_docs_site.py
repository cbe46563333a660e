"""The site of the documentation is built without a warning: every page, link, heading and docstring."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # the build takes ten seconds

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Build the site as `make docs` does."""
    folder = tmp_path_factory.mktemp("site") / "html"
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-W",
        "--keep-going",
        "-q",
        "-d",
        folder / "trees",
        DOCS,
        folder,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_page_is_there_and_in_the_contents(site):
    contents = (site / "index.html").read_text()
    pages = [
        path.relative_to(DOCS).with_suffix("") for path in (*DOCS.rglob("*.md"), DOCS / "tutorial.ipynb")
    ]
    pages = [page for page in pages if page.parts[0] != "_build" and str(page) != "index"]
    assert [page for page in pages if not (site / f"{page}.html").is_file()] == []
    assert [page for page in pages if f'href="{page}.html"' not in contents] == []


def test_links_between_pages_lead_to_pages(site):
    text = (site / "own-data.html").read_text()
    assert 'href="operations.html#exit-codes"' in text
    body = [page.read_text().partition('role="main"')[2] for page in site.glob("*.html")]
    assert {link for page in body for link in re.findall(r'href="(\w[\w/-]*)\.md', page)} == set()


def test_the_page_on_python_shows_the_docstrings(site):
    text = (site / "api.html").read_text()
    for name in (
        "crpipe.open",
        "CampaignRun.shards",
        "TrainedModel.generate",
        "Loader.batches",
        "Workload.phases",
    ):
        assert (
            f"{name}</span>" in text or f'id="crpipe.{name.removeprefix("crpipe.")}"' in text or name in text
        )
    assert "the folder of the run, such as" in text
