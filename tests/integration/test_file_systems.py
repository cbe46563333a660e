"""A campaign where deleted files stay under hidden names as long as they are open, as on NFS."""

import os

import pytest

from hidden_names import hiding
from runs import RANGES, Campaign, job_of, kill, wait_for
from same_results import same_result

pytestmark = [pytest.mark.bindfs, pytest.mark.compiler, pytest.mark.timeout(900)]

PRELOADED = [False, True] if os.environ.get("CRPIPE_NFS") else [False]


@pytest.mark.parametrize("preloaded", PRELOADED)
def test_a_campaign_ends_in_the_bytes_of_a_local_disk_also_after_kills(tmp_path, finished, preloaded):
    with hiding(tmp_path, preloaded=preloaded) as (folder, variables):
        campaign = Campaign(Campaign.begin(folder / "campaign").folder, variables)
        for verb in ("split", "train"):
            with campaign.running("all") as head:
                job = wait_for(lambda head=head, verb=verb: job_of(head, [verb]), head)
                assert job
                kill(job)
                kill(head)
        campaign.snakemake("all")
        same_result(campaign, finished)
        assert not [name for name in RANGES if (campaign.results / "staged" / name).exists()]
        assert "Nothing to be done" in campaign.snakemake("all").stdout
        done = campaign.crpipe("check")
        assert done.returncode == 0, done.stdout + done.stderr
