"""The files and commands of docs/direction.md, in their order, on small simulated files."""

import json
import re

import pyarrow.parquet as pq
import pytest

from prometheus_files import nested_table
from runs import REPOSITORY, Campaign, follow

pytestmark = pytest.mark.timeout(1800)
PAGE = (REPOSITORY / "docs" / "direction.md").read_text()
BLOCKS = re.findall(r"```(yaml|python|bash)\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def campaign(tmp_path_factory):
    """A clone in which every file of the page was written and every command ran."""
    campaign = Campaign.begin(tmp_path_factory.mktemp("direction") / "campaign")
    (campaign.folder / "prometheus").mkdir()
    for number in range(2):
        table = nested_table([40, 3, 0, 25] * 10, seed=number)
        pq.write_table(table, campaign.folder / "prometheus" / f"{number}_photons.parquet")
    follow(BLOCKS, campaign.folder)
    return campaign.folder


def test_blocks_that_do_not_run_here_say_why():
    left_out = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    assert left_out
    assert all("CI runs it by itself" in block or "2026-" in block for block in left_out)


def test_the_files_train_and_are_evaluated(campaign):
    metrics = json.loads(next((campaign / "runs/kaggle/evaluation").glob("*/metrics.json")).read_text())
    assert metrics["events"] == 300
    assert metrics["baseline"]["angle_mean_deg"] > 0
    shown = {path.stem for path in (campaign / "runs/kaggle/figures/evaluation").glob("*.svg")}
    assert {f"direction-{name}.svg" for name in shown} == {*re.findall(r"figures/(direction-\S+\.svg)", PAGE)}


def test_each_stage_goes_on_where_the_one_before_ended(campaign):
    ends = [json.loads(path.read_text())["step"] for path in last_receipts(campaign)]
    assert ends == [ends[0], 2 * ends[0], 3 * ends[0]]


def last_receipts(campaign):
    for stage in range(1, 4):
        ranges = campaign / "runs" / f"stage{stage}" / "ranges"
        yield next(ranges.glob("0000003-0000004*.json"))


def test_the_files_of_prometheus_are_split(campaign):
    ledger = json.loads((campaign / "results/prometheus/ledgers/0000000-0000001.json").read_text())
    assert ledger["balanced"]
    assert ledger["events"]["listed"] == 80
