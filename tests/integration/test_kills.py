"""Kill anything, held at its work or at random moments: the same command ends in the same bytes.

CRPIPE_KILLS=200 kills so often (`make test-kills`), CRPIPE_KILL_SEED chooses the moments.
"""

import json
import os
import shutil
import sys

import pytest

from kills import (
    PREDICT,
    RAW,
    Killer,
    aimed,
    check_nothing_was_lost,
    command_of,
    cpu_seconds_of,
    disturbed,
    remaining,
    table,
)
from runs import Campaign

pytestmark = [pytest.mark.compiler, pytest.mark.timeout(1800)]

SEED = int(os.environ.get("CRPIPE_KILL_SEED", "1"))
NIGHTLY = int(os.environ.get("CRPIPE_KILLS", "0"))
RANDOM = {"list": 2, "stage": 4, "split": 4, "train": 6, "consolidate": 2, "evaluate": 2, "figures": 1}
# Shares of 40 kills of one campaign in the nightly run.
SHARES = {"list": 2, "stage": 7, "split": 8, "train": 9, "consolidate": 3, "evaluate": 3}
SHARES |= {"figures": 5, "tables": 3, "predict": 3}
# What is held: a verb, which one of its operations on files of what place; and who is killed how.
AIMED = [
    ("stage", "results/staged/", 5, ("job", "KILL")),
    ("split", "results/shards/", 3, ("worker", "KILL")),
    ("split", "/.finished.part/", 5, ("group", "KILL")),
    ("split", "results/staged/", 3, ("group", "KILL")),
    ("train", "/store/", 9, ("head", "KILL")),
    ("consolidate", "outliers/consolidated/", 5, ("job", "STOP then KILL")),
    ("evaluate", "evaluation/outliers/", 3, ("group", "TERM")),
]


def say(text):
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


@pytest.fixture(scope="session")
def cpu(finished):
    found = cpu_seconds_of(finished)
    return {**found, "tables": found["list"], "predict": found["train"]}


def test_jobs_held_at_their_work_are_killed_and_the_same_command_ends_in_the_same_bytes(
    begun, finished, tmp_path
):
    campaign = disturbed(begun)
    for verb, place, which, kind in AIMED:
        aimed(campaign, campaign.command("--cores 2"), verb, place, which, kind, tmp_path)
    check_nothing_was_lost(campaign, finished)


def with_tables(folder):
    """Begin a campaign with a side table."""
    campaign = Campaign.begin(folder)
    (campaign.folder / "geometry.csv").write_text("channel,x_m\n0,1.5\n")
    os.utime(campaign.folder / "geometry.csv", (1_700_000_000, 1_700_000_000))
    campaign.change(source={"tables": {"geometry": "geometry.csv"}})
    return campaign


def check_tables(campaign, *, same=None):
    """Stage the side tables; their record and copies are those of another campaign."""
    campaign.snakemake("results/tables.json")
    assert remaining(campaign) == []
    found = campaign.contents()
    names = [name for name in found if name.startswith("results/tables")]
    assert sorted(names) == ["results/tables.json", "results/tables/geometry.csv"]
    if same is not None:
        assert {name: same[name] for name in names} == {name: found[name] for name in names}
    return found


@pytest.mark.parametrize("which", [4, 8])
def test_tables_held_at_their_staging_are_killed_and_staged_by_the_same_command(tmp_path, which):
    campaign = with_tables(tmp_path / "campaign")
    command = campaign.command("results/tables.json")
    aimed(campaign, command, "tables", "results/tables", which, ("job", "KILL"), tmp_path)
    assert not (campaign.results / "tables.json").exists()
    check_tables(campaign)
    (row,) = json.loads((campaign.results / "tables.json").read_text()).values()
    copy = campaign.results / row["path"]
    assert copy.read_bytes() == (campaign.folder / "geometry.csv").read_bytes()


def predicted(finished, folder):
    """Copy a finished campaign, with raw files; and give the bytes of an undisturbed prediction."""
    campaign = finished.copy(folder)
    assert campaign.crpipe("simulate", RAW, "--out", "raw").returncode == 0
    done = campaign.crpipe(*PREDICT)
    assert done.returncode == 0, done.stderr
    out = campaign.folder / PREDICT[-1]
    whole = out.read_bytes()
    out.unlink()
    return campaign, whole


def check_predicted(campaign, whole):
    """Predict by the same command; nothing of earlier attempts is left."""
    done = campaign.crpipe(*PREDICT)
    assert done.returncode == 0, done.stderr
    assert (campaign.folder / PREDICT[-1]).read_bytes() == whole
    assert remaining(campaign) == []
    left = [path.name for path in campaign.folder.rglob("*") if path.suffix in (".part", ".parts")]
    assert left == []


def test_a_prediction_held_at_its_work_is_killed_and_made_by_the_same_command(finished, tmp_path):
    campaign, whole = predicted(finished, tmp_path / "campaign")
    for which, kind in ((3, ("job", "KILL")), (2, ("group", "TERM")), (2, ("job", "INT"))):
        aimed(campaign, command_of(*PREDICT), "predict", "predicted", which, kind, tmp_path)
        assert not (campaign.folder / PREDICT[-1]).exists()
    check_predicted(campaign, whole)


def test_fifteen_kills_of_anything_at_random_moments_change_nothing(finished, cpu, tmp_path):
    killer, number = Killer(SEED, RANDOM, cpu, say), 0
    while len(killer.kills) < 15:  # once, unless jobs ended before their kills
        campaign = disturbed(Campaign.begin(tmp_path / f"{number}"))
        killer.disturb(campaign, "", RANDOM, most=15)
        check_nothing_was_lost(campaign, finished)
        killer.left.update(RANDOM)
        number += 1
    assert {kill.who for kill in killer.kills} >= {"head", "job", "group"}


@pytest.mark.skipif(not NIGHTLY, reason="CRPIPE_KILLS=N: nightly")
@pytest.mark.timeout(4 * 3600)
def test_many_kills_change_nothing(finished, cpu, tmp_path):
    """Each campaign is killed some 40 times, and has to end as one that nobody killed."""
    killer = Killer(SEED, {}, cpu, say)
    side = check_tables(with_tables(tmp_path / "tables"))
    done = 0
    while len(killer.kills) < NIGHTLY:
        killer.left.update(SHARES)
        campaign = disturbed(Campaign.begin(tmp_path / f"{done}"))
        killer.disturb(campaign, "", {*SHARES} - {"tables", "predict"})
        check_nothing_was_lost(campaign, finished)
        tables = with_tables(tmp_path / f"{done}-tables")
        killer.disturb(tables, "results/tables.json", {"tables"})
        check_tables(tables, same=side)
        predicts, whole = predicted(campaign, tmp_path / f"{done}-predict")
        killer.disturb_command(predicts, "predict", PREDICT)
        check_predicted(predicts, whole)
        for folder in (campaign, tables, predicts):
            shutil.rmtree(folder.folder)
        done += 1
        say(f"{done} campaigns, {len(killer.kills)} kills: identical\n{table(killer.kills)}")
    caught = {verb: sum(kill.verb == verb for kill in killer.kills) for verb in SHARES}
    assert min(caught.values()) >= min(10, NIGHTLY // 20)
