"""What a run made, sent into a real origin."""

import pytest

from crpipe.core.errors import AccessError, DiskError
from crpipe.source.pelican.login import check_access, log_in
from crpipe.source.restore import restore_run
from crpipe.source.sync import SyncRules, sync_run, try_place
from opened import opened

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
    assert sync_run(opened(run), campaign) == 1
    assert arrived.read_bytes() == events.read_bytes()
    events.write_bytes(b"more losses" * 100_000)
    assert sync_run(opened(run), campaign) == 1
    assert arrived.read_bytes() == events.read_bytes()
    assert sync_run(opened(run), campaign) == 0
    assert campaign.lines[-1].endswith(": 0 files sent, 0 failed")


def test_whether_a_token_may_write_is_tried(run, campaign, federation):
    campaign.give_token("storage.modify:/backup storage.read:/backup")
    assert try_place(run).endswith("/icecube/wipac/backup/crpipe-write-test.txt")
    assert (federation.data / "icecube/wipac/backup/crpipe-write-test.txt").read_text()
    campaign.give_token("storage.read:/")
    with pytest.raises(AccessError, match="the token needs storage.modify for this path"):
        try_place(run)


def test_a_token_that_may_not_write_is_an_error(run, campaign):
    campaign.give_token("storage.read:/")
    with pytest.raises(AccessError, match="the token needs storage.modify for this path"):
        sync_run(opened(run), campaign)


def test_what_the_copy_lost_or_damaged_is_sent_again(run, campaign, federation):
    campaign.give_token("storage.modify:/backup storage.read:/backup")
    assert sync_run(opened(run), campaign) == 1
    copy = federation.data / "icecube/wipac/backup/default"
    events, whole = copy / "tensorboard/events.1", (run.paths().tensorboard() / "events.1").read_bytes()
    events.unlink()
    assert sync_run(opened(run), campaign) == 1
    assert events.read_bytes() == whole
    events.write_bytes(b"x" * len(whole))
    assert sync_run(opened(run), campaign, SyncRules(verify=True)) == 1
    assert events.read_bytes() == whole
    assert sync_run(opened(run), campaign, SyncRules(verify=True)) == 0
    copy.rename(copy.with_name("away"))
    with pytest.raises(DiskError, match="not the place of the last sync"):
        sync_run(opened(run), campaign)


def test_a_login_that_may_write_is_all_that_sync_and_restore_need(run, campaign, tmp_path, monkeypatch):
    pytest.importorskip("rest_tools", reason="pip install 'crpipe[icecube]'")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    log_in(run, campaign)
    with pytest.raises(AccessError):
        sync_run(opened(run), campaign)
    log_in(run, campaign, write=True)
    assert check_access(run, write=True).problem == ""
    assert sync_run(opened(run), campaign) == 1
    back = opened(
        run.model_copy(update={"runs": tmp_path / "back", "results": tmp_path / "back" / "results"})
    )
    assert restore_run(back, campaign) == 1
    events = run.paths().tensorboard() / "events.1"
    assert (back.paths.run_dir() / "tensorboard" / "events.1").read_bytes() == events.read_bytes()
