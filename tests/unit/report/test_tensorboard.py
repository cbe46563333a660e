"""`crpipe tb merge` collects runs without touching them."""

import os
import time

import pytest

from crpipe.core.errors import ConfigError, DataError
from crpipe.report.tensorboard import merge_runs


@pytest.fixture
def campaigns(tmp_path):
    for name in ("a/tensorboard", "b/tensorboard", "old/tensorboard"):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        (folder / "events.out.tfevents.000000.r").write_bytes(name.encode())
    past = time.time() - 40 * 86400
    os.utime(tmp_path / "runs/old/tensorboard/events.out.tfevents.000000.r", (past, past))
    return tmp_path / "runs"


def test_links_follow_a_run_that_still_writes(campaigns, tmp_path):
    merged = merge_runs(tmp_path / "dst", [campaigns], mode="symlink")
    assert merged == ["runs/a/tensorboard", "runs/b/tensorboard", "runs/old/tensorboard"]
    (campaigns / "a/tensorboard/events.out.tfevents.000000.r").write_bytes(b"more")
    assert (tmp_path / "dst/runs/a/tensorboard/events.out.tfevents.000000.r").read_bytes() == b"more"
    assert merge_runs(tmp_path / "dst", [campaigns], mode="symlink") == merged


def test_copies_outlive_a_run_and_are_refreshed(campaigns, tmp_path):
    merge_runs(tmp_path / "dst", [campaigns], mode="copy")
    source = campaigns / "a/tensorboard/events.out.tfevents.000000.r"
    source.write_bytes(b"longer than before")
    merge_runs(tmp_path / "dst", [campaigns], mode="copy")
    source.unlink()
    assert (tmp_path / "dst/runs/a/tensorboard" / source.name).read_bytes() == b"longer than before"


def test_runs_are_chosen_by_day_expression_and_pattern(campaigns, tmp_path):
    day = time.strftime("%Y-%m-%d", time.localtime(time.time() - 2 * 86400))
    assert len(merge_runs(tmp_path / "1", [campaigns], since=day, mode="copy")) == 2
    assert merge_runs(tmp_path / "2", [campaigns], match="/b/", mode="copy") == ["runs/b/tensorboard"]
    assert merge_runs(tmp_path / "3", [campaigns], glob="runs/a/*", mode="copy") == ["runs/a/tensorboard"]


@pytest.mark.parametrize(
    "form", ["%Y%m%d-%H%M%S", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S%z", "%Y%m%dT%H%M%S"]
)
def test_runs_are_chosen_by_a_time_of_the_day(campaigns, tmp_path, form):
    for name, age in (("a", 7200), ("b", 600)):
        written = time.time() - age
        os.utime(campaigns / name / "tensorboard/events.out.tfevents.000000.r", (written, written))
    moment = time.strftime(form, time.localtime(time.time() - 3600))
    assert merge_runs(tmp_path / "dst", [campaigns], since=moment, mode="copy") == ["runs/b/tensorboard"]


def test_nothing_is_overwritten_and_bad_arguments_are_told(campaigns, tmp_path):
    taken = tmp_path / "dst/runs/a/tensorboard/events.out.tfevents.000000.r"
    taken.parent.mkdir(parents=True)
    taken.write_bytes(b"mine")
    with pytest.raises(DataError, match="a different file exists here"):
        merge_runs(tmp_path / "dst", [campaigns], mode="symlink")
    assert taken.read_bytes() == b"mine"
    with pytest.raises(ConfigError, match="--since soon: expected a day or a time"):
        merge_runs(tmp_path / "dst", [campaigns], since="soon", mode="copy")
    with pytest.raises(ConfigError, match="no such directory"):
        merge_runs(tmp_path / "dst", [tmp_path / "none"], mode="copy")
