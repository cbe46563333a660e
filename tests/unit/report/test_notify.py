import os
import time

import pytest

from campaign_files import CampaignFiles
from crpipe.campaign.campaign import Campaign
from crpipe.core.errors import ConfigError
from crpipe.report.notify import notify


@pytest.fixture
def message(tmp_path):
    return tmp_path / "message"


def campaign(tmp_path, *overrides):
    files = CampaignFiles(tmp_path, ranges=2, overrides=overrides)
    files.claim()
    files.trained(files.split(0))
    return files


def age(files, seconds):
    then = time.time() - seconds
    for path in (files.paths.data_journal(), files.paths.train_journal()):
        os.utime(path, (then, then))


def test_the_message_comes_by_stdin_and_the_subject_by_the_environment(tmp_path, message):
    command = f'(echo "$CRPIPE_EVENT $CRPIPE_RUN: $CRPIPE_SUBJECT"; cat) > {message}'
    config = campaign(tmp_path, f"notify.failure='{command}'").config
    assert notify(Campaign.open(config, "recorded"), "failure") == "notify.failure: sent"
    text = message.read_text()
    assert text.startswith("failure default: crpipe default: failure, 1 of 2 ranges trained\n")
    assert "0001000-0001999" in text


def test_the_command_does_not_get_the_token(tmp_path, message, monkeypatch):
    monkeypatch.setenv("BEARER_TOKEN", "secret")
    config = campaign(tmp_path, f"notify.failure='env > {message}'").config
    assert notify(Campaign.open(config, "recorded"), "failure") == "notify.failure: sent"
    assert "CRPIPE_EVENT=failure" in message.read_text()
    assert "secret" not in message.read_text()


def test_without_a_command_nothing_is_sent(tmp_path):
    assert "nothing is sent" in notify(Campaign.open(campaign(tmp_path).config, "recorded"), "success")


def test_a_stall_is_reported_once_and_again_after_the_campaign_has_moved(tmp_path, message):
    files = campaign(tmp_path, f"notify.stall='cat >> {message}'")
    assert "nothing is sent" in notify(Campaign.open(files.config, "recorded"), "stall")
    age(files, 5000)
    assert notify(Campaign.open(files.config, "recorded"), "stall") == "notify.stall: sent"
    assert "nothing is sent" in notify(Campaign.open(files.config, "recorded"), "stall")
    age(files, 4000)
    assert notify(Campaign.open(files.config, "recorded"), "stall") == "notify.stall: sent"
    assert message.read_text().count("crpipe default: stall") == 2


def test_a_finished_campaign_never_stalls(tmp_path, message):
    files = campaign(tmp_path, f"notify.stall='cat >> {message}'")
    files.trained(files.split(1))
    age(files, 5000)
    assert "nothing is sent" in notify(Campaign.open(files.config, "recorded"), "stall")


@pytest.mark.parametrize(
    ("command", "error"),
    [("echo no such host >&2; exit 3", "ended with 3: no such host"), ("sleep 30; true", "longer than")],
)
def test_a_command_that_fails_is_named(tmp_path, monkeypatch, command, error):
    monkeypatch.setattr("crpipe.report.notify.TIMEOUT_S", 0.3)
    config = campaign(tmp_path, f"notify.success='{command}'").config
    with pytest.raises(ConfigError, match=f"notify.success: .*{error}"):
        notify(Campaign.open(config, "recorded"), "success")


def test_an_unknown_event_lists_the_known_ones(tmp_path):
    with pytest.raises(ConfigError, match="'done' is not an event; expected success, failure, stall"):
        notify(Campaign.open(campaign(tmp_path).config, "recorded"), "done")
