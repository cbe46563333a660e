"""The files and commands of docs/training.md, in their order, on a campaign of three tiny ranges.

Its raw files are read in place: then each command needs one process, and not one for each job.
"""

import json
import re

import pytest
import yaml

from crpipe.campaign.simulators import open_simulator, simulate_range
from crpipe.config.loading import read_tree
from crpipe.core.ranges import Range
from crpipe.core.text import NullProgress
from named import SIMULATOR
from runs import REPOSITORY, TINY, Campaign, follow

pytestmark = pytest.mark.timeout(1800)
BLOCKS = re.findall(
    r"```(yaml|python|bash)\n(.*?)```", (REPOSITORY / "docs" / "training.md").read_text(), re.DOTALL
)


def test_every_file_and_command_of_the_page_works_as_it_is_written(tmp_path):
    campaign = Campaign.begin(tmp_path / "campaign")
    path = campaign.folder / "config" / "config.yaml"
    tree = read_tree([path, TINY])[0]
    tree |= {"run": "default", "ranges": {"first": 0, "last": 2999, "size": 1000, "skip": []}}
    tree["train"]["passes_per_link"] = 2
    simulator = open_simulator(SIMULATOR, tree["simulator"])
    for first in (0, 1000, 2000):
        raw = campaign.folder / "raw" / str(Range(first, first + 999))
        simulate_range(simulator, Range(first, first + 999), 1, raw, NullProgress())
    tree["source"]["uri"] = "raw/{range}/*.parquet"
    path.write_text(yaml.safe_dump(tree))
    follow(BLOCKS, campaign.folder)
    runs = campaign.folder / "runs"
    assert (runs / "mine" / "ranges" / "0000000-0001999.2.json").exists()
    assert list((runs / "watched" / "evaluation").glob("*.best/metrics.json"))
    loaded = json.loads((runs / "pretrained" / "init_from.json").read_text())
    assert loaded
    assert (runs / "gentler" / "ranges" / "0002000-0002999.json").exists()
    assert (campaign.folder / "learning-rate.svg").exists()
    assert (campaign.folder / "compare.svg").exists()
    assert "critic/loss" in (runs / "logged" / "lines.txt").read_text()
    assert (runs / "profiled" / "profile.json").exists()
