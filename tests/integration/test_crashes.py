"""What can go wrong on the way: killed processes, full disks, damaged files. Each is survived or refused."""

import json
import os
import random
import subprocess
import time
from collections import Counter
from contextlib import contextmanager, suppress

import psutil
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from runs import LINKS, RANGES, children, flipped, kill, verb_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

# How many jobs of each verb are disturbed: none of them more often than it runs at least.
KILLS = {"list": 1, "stage": 2, "split": 2, "train": 3, "consolidate": 1, "evaluate": 1}
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")


def wait_for(condition, head, seconds=500.0):
    """Wait until ``condition()`` gives something, or the workflow is over."""
    deadline = time.monotonic() + seconds
    while head.poll() is None and time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.02)
    return None


def job_of(head, verbs):
    """Find a running job of one of several verbs."""
    return next((process for process in children(head) if verb_of(process) in verbs), None)


def caught_after(process, seconds):
    """Let a process run so long, then stop it where it stands; tell whether it was still alive."""
    with suppress(psutil.TimeoutExpired):
        process.wait(seconds)
    try:
        process.suspend()
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


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
    choice = random.Random(seed)
    left, killed = Counter(KILLS), Counter()
    while left.total():
        # One job at a time: none is born and done while another one is watched.
        with begun.running("--cores 1") as head:
            while job := wait_for(lambda head=head: job_of(head, +left), head):
                verb = verb_of(job)
                left[verb] -= 1
                caught = caught_after(job, choice.uniform(0, 2.5 if verb == "train" else 0.8))
                # A job that got away is done: then the workflow dies, before it starts the next one.
                victim = choice.choice([head, job]) if caught else head
                kill(victim)
                kill(job)
                killed["head" if victim is head else "job"] += 1
                if victim is head:
                    break
            head.wait()
        assert head.returncode or not left.total(), f"the campaign ended, and these never ran: {+left}"
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
