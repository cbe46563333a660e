"""A fork is configured by one file, from a link that is finished, for shards that exist."""

import re
import sys

import pytest
import yaml

from crpipe.campaign.campaign import Campaign
from crpipe.cli.app import main
from crpipe.config.loading import load_config
from crpipe.core.records import Forks
from crpipe.core.text import NullProgress
from models import train_range
from toy import RANGES, toy_config

FIRST, SECOND, THIRD = RANGES


@pytest.fixture
def campaign(tmp_path, monkeypatch):
    """One finished link, and its configuration in a file: (file, folder)."""
    monkeypatch.chdir(tmp_path)
    config = toy_config(tmp_path)
    train_range(config, FIRST, NullProgress())
    path = tmp_path / "toy.yaml"
    path.write_text(yaml.safe_dump(config.model_dump(mode="json", exclude_unset=True)))
    return path


@pytest.fixture
def fork(campaign, monkeypatch, capsys):
    """Call the command line: fork(*words) -> (exit code, what it printed)."""

    def call(*words, before=()):
        monkeypatch.setattr(sys, "argv", ["crpipe", "--config", str(campaign), *before, "fork", *words])
        with pytest.raises(SystemExit) as end:
            main()
        found = capsys.readouterr()
        return end.value.code or 0, found.out + found.err

    return call


def test_the_file_goes_on_after_the_link_under_the_changed_keys(fork, campaign, tmp_path):
    code, said = fork(
        "--from", FIRST, "--run", "slow", "--set", "model.rate=1e-5", "--set", "train.gradient_clip_norm=2"
    )
    assert code == 0
    assert f"snakemake --configfile {campaign} slow.yaml" in said
    assert f"goes on with link {SECOND}, 3 to train" in said
    tree = yaml.safe_load((tmp_path / "slow.yaml").read_text())
    checkpoint = tree["train"].pop("pretrained")
    assert checkpoint.startswith(str(tmp_path / "runs" / "toy" / "store" / FIRST / "checkpoint-"))
    assert tree == {
        "run": "slow",
        "train": {"start_after": FIRST, "on_optimizer_change": "reset", "gradient_clip_norm": 2},
        "model": {"rate": 1e-5},
    }
    forks = Campaign.open(load_config([campaign]), "recorded").paths.forks()
    assert Forks.read(forks).checkpoints == {"slow": checkpoint}  # `crpipe clean` keeps it
    config = load_config([campaign, tmp_path / "slow.yaml"])
    assert config.options()["rate"] == 1e-5
    assert Campaign.open(config).chain.names == (SECOND, THIRD, "outliers")
    train_range(config, SECOND, NullProgress())


def test_what_was_set_before_the_verb_is_part_of_the_file(fork, tmp_path):
    code, _ = fork("--from", FIRST, "--run", "slow", before=("--set", "train.log_steps=2"))
    assert code == 0
    assert yaml.safe_load((tmp_path / "slow.yaml").read_text())["train"]["log_steps"] == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--from", SECOND], f"--from {SECOND}: this link is not finished .* finished are: {FIRST}"),
        (["--from", "0009000-0009999"], "not a link of this campaign"),
        (["--from", "outliers"], f"nothing follows them; .* --from {THIRD}"),
        (
            ["--from", FIRST, "--set", "split.outlier_above=9"],
            "--set split.outlier_above: changes the shards",
        ),
        (["--from", FIRST, "--set", "run=other"], "--set run: the fork itself sets"),
        (["--from", FIRST, "--set", "train.clip=2"], "--set train.clip=2: train.clip: unknown key"),
        (["--from", FIRST, "--set", "train.ranges_per_link=2"], f"{FIRST}: not a link of this campaign"),
        (["--from", FIRST, "--out", "toy.yaml"], "toy.yaml exists; name another file"),
        (["--from", FIRST, "--run", "toy"], "--run toy: .* exists; choose another name"),
    ],
)
def test_what_cannot_be_a_fork_is_refused_and_no_file_is_left(fork, tmp_path, words, said):
    code, printed = fork(*(words if "--run" in words else [*words, "--run", "slow"]))
    assert code == 2
    assert re.search(said, printed), printed
    assert [path.name for path in tmp_path.glob("*.yaml")] == ["toy.yaml"]


def test_the_same_fork_again_goes_on_where_a_failed_one_ended_and_another_is_refused(fork, tmp_path):
    words = ("--from", FIRST, "--run", "slow", "--set", "train.log_steps=2")
    assert fork(*words)[0] == 0
    written = (tmp_path / "slow.yaml").read_bytes()
    assert fork(*words)[0] == 0
    assert (tmp_path / "slow.yaml").read_bytes() == written
    code, printed = fork("--from", FIRST, "--run", "slow", "--set", "train.log_steps=3")
    assert code == 2
    assert "slow.yaml exists; name another file" in printed


def test_another_configuration_than_that_of_the_run_is_refused(fork):
    code, printed = fork("--from", FIRST, "--run", "slow", before=("--set", "train.gradient_clip_norm=3"))
    assert code == 2
    assert "train.gradient_clip_norm" in printed


def test_after_the_last_link_of_a_campaign_it_says_what_to_add(fork, campaign, tmp_path, monkeypatch):
    """Shards of constant size have no outliers: the last range is the last link."""
    monkeypatch.setattr("crpipe.events.layout.Layout.has_outliers", lambda _: False)
    for name in (SECOND, THIRD):
        train_range(load_config([campaign]), name, NullProgress())
    code, printed = fork("--from", THIRD, "--run", "more")
    assert code == 2
    assert "nothing is left to train; add ranges with ranges.last, or rounds with train.passes" in printed
    assert fork("--from", THIRD, "--run", "more", "--set", "train.passes=2")[0] == 0
