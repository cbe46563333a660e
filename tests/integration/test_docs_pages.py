"""The files and commands of docs/own-data.md."""

import json
import re

import pytest

from runs import REPOSITORY, Campaign, follow

pytestmark = pytest.mark.timeout(900)
DOCS = REPOSITORY / "docs"


def blocks():
    """Collect the files and commands of the page, in their order."""
    text = (DOCS / "own-data.md").read_text()
    return re.findall(r"^```(yaml|python|bash)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


@pytest.fixture
def folder(tmp_path):
    """A directory with the workflow and the defaults, and no configuration of its own."""
    campaign = Campaign.begin(tmp_path / "campaign")
    (campaign.folder / "config" / "tiny.yaml").unlink()
    return campaign.folder


def test_own_data_goes_through_every_step_as_the_page_says(folder):
    follow(blocks(), folder)
    events = json.loads((folder / "results/mine/ledgers/0000000-0000007.json").read_text())["events"]
    assert events["listed"] == 8000
    assert (folder / "runs/mine/report.html").stat().st_size > 0
    # What the page's own commands have made is not made again by the workflow.
    journal = [json.loads(row) for row in (folder / "runs/mine/journal.jsonl").read_text().splitlines()]
    starts = [row["range"] for row in journal if (row["what"], row.get("verb")) == ("start", "train")]
    assert starts == ["0000000-0000007", "0000008-0000015", "outliers"]
