"""The commands of docs/operations.md, in their order, on a campaign of three tiny ranges."""

import os
import re

import pytest
import yaml

from crpipe.config.loading import read_tree
from integration.slurm.cluster import wait_for
from runs import BIN, REPOSITORY, TINY, Campaign, bash

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]
BLOCKS = re.findall(r"```bash\n(.*?)```", (REPOSITORY / "docs" / "operations.md").read_text(), re.DOTALL)


def test_every_command_of_the_page_runs_as_it_stands(cluster, tmp_path):
    """All but the head that is a job itself run without the profile, which test_slurm.py is about."""
    campaign = Campaign.begin(tmp_path / "campaign")
    path = campaign.folder / "config" / "config.yaml"
    tree = read_tree([path, TINY])[0]
    tree |= {"run": "default", "ranges": {"first": 0, "last": 2999, "size": 1000, "skip": []}}
    path.write_text(yaml.safe_dump(tree))
    places = os.pathsep.join(map(str, (BIN, cluster.bin, "/usr/bin", "/bin")))

    def run(block):
        return bash(block, campaign.folder, PATH=places, TMUX_TMPDIR=str(tmp_path))

    for block in BLOCKS:
        on_slurm = block.startswith("sbatch")
        done = run(block if on_slurm else block.replace(" --profile slurm", ""))
        assert done.returncode == 0, f"{block}\n{done.stdout}"
        if on_slurm:
            wait_for(lambda: not cluster.jobs(), "the head has ended", 120)
            assert "Nothing to be done" in (campaign.folder / "head.log").read_text()
        if "send-keys" in block:
            wait_for(lambda: run("tmux has-session -t crpipe").returncode, "the head has stopped", 60)
    assert (campaign.folder / "runs" / "clipped" / "ranges" / "0002000-0002999.json").exists()
    assert (campaign.folder.parent / "moved" / "results").is_dir()
