"""What can go wrong on the way: killed processes, full disks, damaged files. Each is survived or refused."""

import json
import os
import random
import subprocess
from contextlib import contextmanager

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from runs import LINKS, RANGES, flipped, job_of, kill_at_random, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

# How many jobs of each verb are disturbed: none of them more often than it runs at least.
KILLS = {"list": 1, "stage": 2, "split": 2, "train": 3, "consolidate": 1, "evaluate": 1}
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")


def steps_of(campaign, link):
    """Read the step numbers in one link's metrics."""
    path = campaign.run / "store" / link / "metrics.jsonl"
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


def curves(campaign):
    """Read every curve of TensorBoard: name -> steps, over the event files of the training."""
    accumulator = EventAccumulator(str(campaign.run / "tensorboard"))
    accumulator.Reload()
    return {
        tag: [event.step for event in accumulator.Scalars(tag)]
        for tag in accumulator.Tags()["scalars"]
        if not tag.startswith("evaluation/")
    }


def same_result(campaign, reference):
    """Assert that two campaigns hold the same bytes wherever bytes are promised."""
    assert campaign.receipts() == reference.receipts()
    for link in LINKS:
        assert steps_of(campaign, link) == steps_of(reference, link)
        assert len(set(steps_of(campaign, link))) == len(steps_of(campaign, link))
    theirs, ours = reference.contents(), campaign.contents()
    made = [
        name for name in theirs if name.startswith(("results/ledgers", "results/shards", "results/outliers"))
    ]
    assert made
    assert [name for name in made if theirs[name] != ours.get(name)] == []


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [1])
def test_kill_anything_ten_times_and_the_same_command_ends_in_the_same_bytes(begun, finished, seed):
    """SIGKILL of the workflow, of a job, of the training, at random moments of random steps."""
    killed = kill_at_random(begun, "--cores 1", KILLS, random.Random(seed))
    assert killed.total() == 10
    assert set(killed) == {"head", "job"}
    told = begun.snakemake().stdout
    assert "unlock" not in told
    same_result(begun, finished)
    for steps in curves(begun).values():
        assert steps == sorted(set(steps))
    assert begun.jobs("all") == {}


def test_a_killed_head_leaves_no_lock_that_a_person_must_remove(begun):
    with begun.running("outliers_consolidated") as head:
        assert wait_for(lambda: job_of(head, ["list"]), head)
        head.kill()
        head.wait()
        assert list((begun.folder / ".snakemake" / "locks").iterdir())
    assert "its locks are removed" in begun.snakemake("outliers_consolidated").stdout


def test_a_looking_call_disturbs_no_running_workflow(begun):
    with begun.running("outliers_consolidated") as head:
        assert wait_for(lambda: job_of(head, ["stage"]), head)
        begun.snakemake("--dry-run --quiet all")
        assert head.wait() == 0


def chain_until(split, folder, link):
    """Copy a split campaign and train on its ranges before ``link``."""
    campaign = split.copy(folder)
    campaign.snakemake(f"runs/tiny/ranges/{RANGES[RANGES.index(link) - 1]}.json")
    return campaign


def test_a_checkpoint_cut_in_half_is_refused_and_nothing_is_overwritten(split, tmp_path):
    campaign = chain_until(split, tmp_path / "campaign", RANGES[1])
    (checkpoint,) = (campaign.run / "store" / RANGES[0]).glob("checkpoint-*.pt")
    whole = checkpoint.read_bytes()
    checkpoint.write_bytes(whole[: len(whole) // 2])
    before = campaign.contents()
    done = campaign.snakemake("train_all", check=False)
    assert done.returncode == 1
    told = done.stdout[done.stdout.index("crpipe: the workflow did not finish.") :]
    assert checkpoint.name in told
    assert "Traceback" not in told
    assert {name: data for name, data in campaign.contents().items() if name in before} == before
    checkpoint.write_bytes(whole)
    campaign.snakemake("train_all")


@pytest.mark.parametrize("part", ["events", "muons"])
def test_a_shard_with_a_flipped_bit_is_never_trained_on(split, tmp_path, part):
    campaign = split.copy(tmp_path / "campaign")
    shard = campaign.results / "shards" / RANGES[0] / f"train-00000.{part}.parquet"
    data = shard.read_bytes()
    shard.write_bytes(flipped(data, len(data) // 3))
    done = campaign.crpipe("train", RANGES[0])
    assert done.returncode == 65
    assert "train-00000" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(campaign.run.rglob("checkpoint-*.pt"))
    assert not list(campaign.run.rglob("ranges/*.json"))


@contextmanager
def mounted(folder, options):
    """Put a small disk of its own under ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


@needs_root
def test_a_full_disk_is_named_and_more_space_is_all_it_takes(begun):
    with mounted(begun.results, "size=64k"):
        done = begun.snakemake("outliers_consolidated", check=False)
        assert done.returncode == 1
        told = done.stdout[done.stdout.index("crpipe: the workflow did not finish.") :]
        assert "(exit 74)" in told or "the disk is full" in told or "GiB free" in told
        assert "Traceback" not in told
        subprocess.run(["mount", "-o", "remount,size=64m", begun.results], check=True)
        begun.snakemake("outliers_consolidated")


@needs_root
def test_a_results_directory_that_cannot_be_written_is_named(begun):
    with mounted(begun.results, "ro,size=1m"):
        done = begun.crpipe("list", RANGES[0])
    assert done.returncode == 74
    assert "results" in done.stderr
    assert "read-only" in done.stderr


def test_a_file_in_the_place_of_the_results_directory_is_named(begun):
    begun.results.write_text("")
    done = begun.crpipe("list", RANGES[0])
    assert done.returncode == 74
    assert "a file is where a directory is needed" in done.stderr


def test_a_second_job_on_the_same_range_waits_and_adopts(split, tmp_path):
    campaign = split.copy(tmp_path / "campaign")
    with campaign.running(f"runs/tiny/ranges/{RANGES[0]}.json") as head:
        assert wait_for((campaign.run / "store" / RANGES[0] / "metrics.jsonl").exists, head)
        second = campaign.crpipe("train", RANGES[0])
        assert head.wait() == 0
    assert second.returncode == 0
    assert "its checkpoint is adopted" in second.stderr
    assert len(list((campaign.run / "store" / RANGES[0]).glob("checkpoint-*.pt"))) == 1
