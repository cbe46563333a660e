import subprocess
import sys

import pytest

from crpipe import campaign
from crpipe.config import load_config
from crpipe.errors import ConfigError
from crpipe.files import read_json


@pytest.fixture
def configure(tmp_path):
    def make(*overrides):
        return load_config([], [f"results={tmp_path}/results", f"runs={tmp_path}/runs", *overrides])

    return make


def test_nothing_is_refused_before_the_campaign_has_begun(configure):
    campaign.check_data(configure())
    campaign.check_train(configure())
    assert not configure().paths().campaign().exists()


def test_data_made_under_other_keys_is_refused_with_key_values_and_way_out(configure):
    campaign.claim_data(configure())
    for judge in (campaign.check_data, campaign.claim_data):
        with pytest.raises(ConfigError) as caught:
            judge(configure("split.threshold=7"))
        assert "split.threshold" in str(caught.value)
        assert "50000, config 7" in str(caught.value)
        assert "set `results` to a new directory" in str(caught.value)


def test_a_changed_run_is_refused_and_a_new_name_is_not(configure):
    campaign.claim_train(configure())
    with pytest.raises(ConfigError, match="give the changed campaign a new name with `run`"):
        campaign.check_train(configure("train.epochs=2"))
    campaign.check_train(configure("train.epochs=2", "run=other"))


def test_keys_of_the_site_may_change_under_a_campaign(configure):
    campaign.claim_data(configure())
    campaign.claim_train(configure())
    changed = configure("source.concurrency=2", "train.snapshot_steps=3", "resources.train.cpus=1")
    campaign.check_data(changed)
    campaign.check_train(changed)


def test_a_claim_is_never_overwritten(configure):
    campaign.claim_data(configure())
    before = read_json(configure().paths().campaign())
    campaign.claim_data(configure())
    with pytest.raises(ConfigError):
        campaign.claim_data(configure("seed=2"))
    assert read_json(configure().paths().campaign()) == before


CLAIMS = """
import os, sys
from crpipe.campaign import claim_data
from crpipe.config import load_config
config = load_config([], sys.argv[1:])
closed, gate = os.pipe()
jobs = []
for _ in range(6):
    job = os.fork()
    if job == 0:
        os.close(gate)
        os.read(closed, 1)  # returns when the last holder of the gate, the parent, has closed it
        claim_data(config)
        os._exit(0)
    jobs.append(job)
os.close(gate)
sys.exit(sum(os.waitpid(job, 0)[1] != 0 for job in jobs))
"""


def test_the_first_jobs_of_a_campaign_may_start_together(configure):
    words = [sys.executable, "-c", CLAIMS, f"results={configure().results}"]
    assert subprocess.run(words, check=False).returncode == 0
    assert configure().paths().campaign().exists()
