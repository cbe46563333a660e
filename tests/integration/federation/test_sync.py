"""What a run made, sent into a real origin."""

import pytest

from crpipe.cli.jobs.source import sync_job
from crpipe.source.sync import sync_run

pytestmark = pytest.mark.federation


@pytest.fixture
def run(campaign, federation):
    config = campaign.config()
    sync = config.sync.model_copy(update={"to": federation.uri("/icecube/wipac/backup")})
    config = config.model_copy(update={"runs": str(campaign.folder / "runs"), "sync": sync})
    events = config.paths().tensorboard() / "events.1"
    events.parent.mkdir(parents=True)
    events.write_bytes(b"losses" * 100_000)
    return config


def test_files_arrive_whole_and_changes_follow(run, campaign, federation):
    campaign.give_token("storage.modify:/backup storage.read:/backup")
    arrived = federation.data / "icecube/wipac/backup/default/tensorboard/events.1"
    events = run.paths().tensorboard() / "events.1"
    assert sync_run(sync_job(run), campaign) == 0
    assert arrived.read_bytes() == events.read_bytes()
    events.write_bytes(b"more losses" * 100_000)
    assert sync_run(sync_job(run), campaign) == 0
    assert arrived.read_bytes() == events.read_bytes()
    assert sync_run(sync_job(run), campaign) == 0
    assert campaign.lines[-1].endswith(": 0 files sent, 0 failed")


def test_a_token_that_may_not_write_is_a_warning(run, campaign):
    campaign.give_token("storage.read:/")
    assert sync_run(sync_job(run), campaign) == 1
    assert any("the token needs storage.modify for this path" in line for line in campaign.lines)
