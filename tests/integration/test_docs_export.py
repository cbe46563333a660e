"""The commands of docs/export.md, in their order, with the model of a campaign of three tiny ranges."""

import re
import subprocess
import sys

import polars as pl
import pytest
import yaml

from crpipe.config.loading import read_tree
from runs import REPOSITORY, TINY, bash

pytestmark = pytest.mark.timeout(600)
PAGE = (REPOSITORY / "docs" / "export.md").read_text()
COMMANDS, SCRIPTS = (
    re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE) for kind in ("bash", "python")
)
PRIMARIES = {"energy_gev": [1e5, 1e6, 1e7], "zenith_rad": 0.4, "mass_number": 1.0, "depth_m": 1500.0}


def test_every_command_of_the_page_works_as_it_is_written(finished, tmp_path):
    campaign = finished.copy(tmp_path / "campaign")
    folder = campaign.folder
    campaign.run.rename(campaign.run.with_name("default"))
    defaults = folder / "config" / "config.yaml"
    defaults.write_text(yaml.safe_dump(read_tree([defaults, TINY])[0] | {"run": "default"}))
    assert bash("crpipe simulate 0000006-0000007 --out new", folder).returncode == 0
    min((folder / "new").glob("*.parquet")).rename(folder / "new.parquet")
    pl.DataFrame(PRIMARIES).write_parquet(folder / "primaries.parquet")
    for block in COMMANDS:
        done = bash(block, folder)
        assert done.returncode == 0, f"{block}\n{done.stdout}"
    assert len(pl.read_parquet(folder / "predictions.parquet")) == 120
    assert len(pl.read_parquet(folder / "bundles.parquet")) == 3
    for block in SCRIPTS:
        subprocess.run([sys.executable, "-c", block], cwd=folder / "muon-bundles", check=True)
