"""Another learning rate from the second link on, through the real command line and the real Snakemake."""

import json
import shlex

import pytest

from runs import BIN, LINKS, RANGES

pytestmark = pytest.mark.timeout(600)


def test_a_fork_goes_on_after_a_finished_link_and_trains_to_the_end(finished, tmp_path):
    campaign = finished.copy(tmp_path / "campaign")
    changed = "model.generator_learning_rate=5e-5"
    done = campaign.crpipe("fork", "--from", RANGES[0], "--run", "slower", "--set", changed)
    assert done.returncode == 0, done.stderr
    command = done.stdout.splitlines()[-1]
    assert command == "snakemake --configfile config/tiny.yaml slower.yaml"
    done = campaign.process(BIN / "snakemake", "train_outliers", *shlex.split(command)[1:])
    assert done.returncode == 0, done.stdout + done.stderr
    receipts = [
        {path.stem: json.loads(path.read_text()) for path in sorted((run / "ranges").glob("*.json"))}
        for run in (campaign.run, campaign.folder / "runs" / "slower")
    ]
    assert list(receipts[1]) == list(LINKS[1:])
    assert receipts[1][RANGES[1]]["parent"] == receipts[0][RANGES[0]]["sha256"]
    for link in LINKS[1:]:  # the same position in the campaign, other weights
        assert receipts[1][link]["step"] == receipts[0][link]["step"]
        assert receipts[1][link]["events"] == receipts[0][link]["events"]
        assert receipts[1][link]["sha256"] != receipts[0][link]["sha256"]
    assert campaign.times("start", "stage") == finished.times("start", "stage")  # the same shards
