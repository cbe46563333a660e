"""A job trains the next links of seconds, too; their jobs adopt them and get what they would have trained."""

import subprocess
import sys
import time
from functools import partial

import pytest

from crpipe.campaign.campaign import Campaign
from crpipe.train.ahead import LIMIT_S, adopt_ahead, train_ahead
from crpipe.train.link import train_link
from models import train_range
from told import Told
from toy import RANGES, make_events, toy_config, write_shards

FIRST, SECOND, THIRD = RANGES


def go_on(config, *, begun=None, stopped=str, **train):
    campaign = Campaign.open(config)
    train_range(config, FIRST, Told())
    link = partial(train_link, campaign, progress=Told(), **train)
    train_ahead(campaign, FIRST, link, Told(), begun=begun or time.monotonic(), stopped=stopped)
    waiting = [name for name in RANGES if (config.paths().store(name) / "ahead.json").exists()]
    assert [name for name in RANGES if config.paths().receipt(name).exists()] == [FIRST]
    return [FIRST, *waiting]


def receipts(config):
    return {name: config.paths().receipt(name).read_bytes() for name in RANGES}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Receipts of links that were trained one by one; they name the hashes of the checkpoints."""
    config = toy_config(tmp_path_factory.mktemp("alone"))
    for name in RANGES:
        train_range(config, name, Told())
    return receipts(config)


@pytest.fixture
def ahead(tmp_path):
    config = toy_config(tmp_path)
    assert go_on(config) == list(RANGES)
    return config


def test_links_trained_ahead_are_those_trained_one_by_one(ahead, alone):
    campaign = Campaign.open(ahead)
    for name in RANGES[1:]:
        told = Told()
        assert adopt_ahead(campaign, name, told)
        assert f"{name}: trained by the job before it" in str(told)
    assert receipts(ahead) == alone
    assert not list(ahead.paths().store(SECOND).glob("ahead*"))


def test_adopting_imports_no_torch():
    code = "import sys, crpipe.cli.steps, crpipe.train.ahead; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_link_is_adopted_once_and_by_its_own_key_alone(ahead, alone):
    campaign = Campaign.open(ahead)
    assert adopt_ahead(campaign, SECOND, Told())
    ahead.paths().receipt(SECOND).unlink()
    assert not adopt_ahead(campaign, SECOND, Told())
    assert not adopt_ahead(campaign, THIRD, Told())  # of a parent that has no receipt
    for name in RANGES[1:]:
        train_range(ahead, name, Told())
    assert receipts(ahead) == alone


@pytest.mark.parametrize("pattern", ["checkpoint-*.pt", "ahead.json"])
def test_a_damaged_file_is_left_to_training(ahead, alone, pattern):
    (file,) = ahead.paths().store(SECOND).glob(pattern)
    file.write_bytes(file.read_bytes()[:-3] + b"?")
    assert not adopt_ahead(Campaign.open(ahead), SECOND, Told())
    train_range(ahead, SECOND, Told())
    assert receipts_of(ahead, SECOND) == alone[SECOND]


def receipts_of(config, name):
    return config.paths().receipt(name).read_bytes()


def test_other_shards_are_not_adopted(ahead):
    folder = ahead.paths().shards(SECOND)
    write_shards(folder, [("train-00000", "train", make_events(60, 5))], Campaign.open(ahead).data)
    assert not adopt_ahead(Campaign.open(ahead), SECOND, Told())


def test_it_ends_where_shards_are_missing(tmp_path):
    config = toy_config(tmp_path)
    config.paths().shard_manifest(THIRD).unlink()
    assert go_on(config) == [FIRST, SECOND]


def test_a_link_that_would_take_long_is_left_to_its_own_job(tmp_path):
    config = toy_config(tmp_path)
    (config.paths().shards(THIRD) / "more").write_bytes(bytes(10_000_000))
    assert go_on(config, begun=time.monotonic() - 5) == [FIRST, SECOND]


@pytest.mark.parametrize("why", [{"begun": time.monotonic() - LIMIT_S - 1}, {"stopped": lambda: "SIGTERM"}])
def test_it_ends_after_a_minute_and_when_it_is_stopped(tmp_path, why):
    assert go_on(toy_config(tmp_path), **why) == [FIRST]


def test_a_link_that_fails_is_left_to_its_own_job(tmp_path):
    config = toy_config(tmp_path)
    folder = config.paths().shards(THIRD)
    next(folder.glob("train*")).write_bytes(b"damaged")
    assert go_on(config) == [FIRST, SECOND]
