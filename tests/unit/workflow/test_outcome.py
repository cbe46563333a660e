"""What is printed when a workflow fails."""

import pytest

from crpipe.campaign.campaign import Campaign
from crpipe.config.loading import load_config
from crpipe.core.errors import DiskError
from crpipe.workflow.head import what_failed
from named import READERS

WORDS = ["snakemake", "all", "--config", "split={threshold: 7}"]


@pytest.fixture
def campaign(tmp_path):
    places = (f"results={tmp_path}/results", f"runs={tmp_path}/runs")
    reader = f"source.reader={READERS['bundles']}"
    config = Campaign.open(load_config((), ("ranges.last=2999", reader, *places)))
    config.paths.receipt("0000000-0000999").parent.mkdir(parents=True)
    config.paths.receipt("0000000-0000999").touch()
    return config


def test_the_last_lines_are_the_command_that_continues(campaign):
    lines = what_failed(campaign, "", {}, WORDS, training=False).splitlines()
    assert lines[1:] == [
        "crpipe: the workflow did not finish.",
        "  Fix the cause; the same command continues where this one stopped:",
        "    snakemake all --config 'split={threshold: 7}'",
    ]


def test_a_disk_that_the_workflow_cannot_write_is_all_that_is_told(campaign):
    full = DiskError(".snakemake: cannot write: the disk is full")
    messages = "Error in rule split:\n    jobid: 3\n    log: x/logs/split/a.log\n"
    text = what_failed(campaign, messages, {}, WORDS, training=False, machine=full)
    assert text.splitlines()[2] == "  .snakemake: cannot write: the disk is full"
    assert "split a" not in text


def test_training_says_at_which_range_it_waits(campaign):
    text = what_failed(campaign, "", {}, WORDS, training=True)
    assert "Training waits for range 0001000-0001999 (2 of 3 still to do)." in text


def test_failed_jobs_are_named_with_their_logs(campaign):
    log = campaign.paths.results / "logs" / "split" / "0001000-0001999.log"
    messages = f"Error in rule split:\n    jobid: 3\n    log: {log} (check log file(s) for error details)\n"
    text = what_failed(campaign, messages, {}, WORDS, training=False)
    assert "split 0001000-0001999" in text
    assert str(log) in text
