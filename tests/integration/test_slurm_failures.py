"""All that a cluster does to a campaign in three weeks, one by one; run by `make test-slurm`.

Each ends in the same final checkpoint as the campaign that nothing disturbed. Two ranges are trained: one
that meets the failure, and its successor.
"""

import json
import os
import shutil
import signal
import subprocess

import pytest

from integration.slurm.campaigns import (
    SECOND,
    SLURM,
    attempts,
    configure,
    finished_in,
    hurry,
    in_training,
    job_in_training,
    linger,
    never_two_at_once,
    on_cluster,
    sha256,
    told_by,
)
from integration.slurm.cluster import wait_for
from runs import RANGES

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(900)]
FIRST, MIDDLE, LAST = RANGES
TRAIN = f"{SLURM} {SECOND}"
# Without the signal ahead of the time limit, which would come too early for jobs of one minute.
UNWARNED = "--set-resources train:slurm_partition=gpu"


@pytest.fixture
def campaign(cluster, faulty, tmp_path):
    return on_cluster(faulty, cluster, tmp_path / "campaign")


@pytest.fixture
def slow(campaign):
    """The same campaign, in training long enough for a blow from outside."""
    (campaign.folder / "slow").write_text("0.5")
    return campaign


@pytest.fixture
def same(undisturbed):
    def check(campaign, *ways):
        """Assert the final checkpoint, and how the attempts on the first range ended."""
        assert sha256(campaign, MIDDLE) == sha256(undisturbed, MIDDLE)
        never_two_at_once(campaign)
        assert [how for *_, how in attempts(campaign)[FIRST]] == [*ways, "finished"]

    return check


@pytest.mark.parametrize(
    ("fault", "way"), [("fail", "PluginError"), ("vanish", "killed"), ("grow", "killed")]
)
def test_a_job_that_fails_is_killed_or_takes_too_much_memory(campaign, same, fault, way):
    (campaign.folder / "fault").write_text(fault)
    campaign.snakemake(TRAIN)
    same(campaign, way)


def test_a_job_is_cancelled(slow, cluster, same):
    with slow.running(TRAIN) as head:
        cluster.call("scancel", in_training(slow, cluster, FIRST))
        hurry(slow)
        assert finished_in(head, 300)
    same(slow, "Interrupted")


@pytest.mark.parametrize("number", ["TERM", "USR1"])
def test_a_signal_ahead_of_the_time_limit(slow, cluster, same, number):
    with slow.running(TRAIN) as head:
        cluster.call("scancel", f"--signal={number}", in_training(slow, cluster, FIRST))
        wait_for(lambda: not cluster.jobs(), "the job has ended", 60)
        hurry(slow)
        assert finished_in(head, 300)
    same(slow, "Interrupted")


def test_a_job_hangs_into_its_time_limit(campaign, same):
    configure(campaign, **{"resources.train.runtime_minutes": 1})
    (campaign.folder / "fault").write_text("hang")
    told = campaign.snakemake(f"{TRAIN} {UNWARNED}").stdout
    assert "TIMEOUT" in told
    same(campaign, "killed")


def test_a_job_keeps_its_own_deadline(slow, same):
    configure(slow, **{"resources.train.runtime_minutes": 2})
    (slow.folder / "slow").write_text("4")
    with slow.running(f"{TRAIN} {UNWARNED}") as head:
        wait_for(lambda: any(end for _, end, _ in attempts(slow)[FIRST]), "the first attempt ends", 300)
        hurry(slow)
        assert finished_in(head, 300)
    same(slow, "Interrupted")


def test_a_job_is_preempted_and_queued_again(slow, cluster, same):
    with slow.running(TRAIN) as head:
        job = in_training(slow, cluster, FIRST)
        cluster.call("sbatch", "-p", "urgent", "-N2", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 3")
        wait_for(lambda: job_in_training(slow, cluster, FIRST) != job, "the job gives way", 60)
        hurry(slow)
        assert finished_in(head, 600)
    same(slow, "Interrupted")


def test_a_node_dies_under_a_job(slow, cluster, same):
    with slow.running(TRAIN) as head:
        job = in_training(slow, cluster, FIRST)
        (node,) = (place for number, _, _, place in cluster.jobs() if number == job)
        cluster.break_node(node)
        hurry(slow)
        try:
            assert finished_in(head, 600)
        finally:
            cluster.start(node)
            wait_for(lambda: cluster.states()[node] == "idle", "the node is back", 60)
    same(slow, "killed")


def test_the_daemons_are_restarted_under_a_job(slow, cluster, same):
    with slow.running(TRAIN) as head:
        in_training(slow, cluster, FIRST)
        for name in ("slurmctld", *cluster.nodes):
            cluster.stop(name)
        wait_for(lambda: not cluster.states(), "Slurm does not answer", 60)
        for name in ("slurmctld", *cluster.nodes):
            cluster.start(name)
        hurry(slow)
        assert finished_in(head, 300)
    same(slow)


def test_the_head_is_killed_and_its_jobs_run_on(slow, cluster, same):
    with slow.running(TRAIN) as head:
        orphan = in_training(slow, cluster, FIRST)
        linger(slow)
        os.kill(head.pid, signal.SIGKILL)
    with slow.running(TRAIN) as head:
        wait_for(
            lambda: f"cancelling its Slurm jobs {orphan}" in told_by(slow), "the orphan is cancelled", 60
        )
        hurry(slow)
        assert finished_in(head, 300)
    same(slow, "Interrupted")


def test_a_new_head_waits_until_slurm_tells_what_is_left(slow, cluster, undisturbed):
    with slow.running(TRAIN) as head:
        orphan = in_training(slow, cluster, FIRST)
        linger(slow)
        os.kill(head.pid, signal.SIGKILL)
    cluster.stop("slurmctld")
    with slow.running(TRAIN) as head:
        try:
            wait_for(lambda: "which jobs are left here" in told_by(slow), "the head waits", 120)
        finally:
            cluster.start("slurmctld")  # or every later test would fail, too
        hurry(slow)
        assert finished_in(head, 300)
    assert orphan not in {job for job, *_ in cluster.jobs()}
    assert sha256(slow, MIDDLE) == sha256(undisturbed, MIDDLE)
    never_two_at_once(slow)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_the_disk_of_the_runs_is_full(campaign, same):
    campaign.run.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48k", "tmpfs", campaign.run], check=True)
    try:
        told = campaign.snakemake(f"{TRAIN} --retries 0", check=False).stdout
        assert f"train {FIRST}" in told.partition("crpipe: the workflow did not finish.")[2]
        subprocess.run(["mount", "-o", "remount,size=64m", campaign.run], check=True)
        campaign.snakemake(TRAIN)
        same(campaign, "DiskError")
    finally:
        subprocess.run(["umount", "-l", campaign.run], check=True)


def test_only_what_failed_for_good_and_its_successors_are_done_again(campaign, undisturbed):
    """The middle range is damaged; the last one's data are made all the same; the error says what to do."""
    configure(campaign, **{"source.prefetch_ranges": 2})
    made = [campaign.results / place / LAST for place in ("shards", "outliers", "multiplicity")]
    for place in made:
        shutil.rmtree(place, ignore_errors=True)
    ledger = campaign.results / "ledgers" / f"{LAST}.json"
    ledger.unlink()
    shard = campaign.results / "shards" / MIDDLE / "train-00000.muons.parquet"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-100])
    done = campaign.snakemake(f"{SLURM} --retries 0 train_all", check=False)
    told = done.stdout.partition("crpipe: the workflow did not finish.")[2]
    assert done.returncode == 1
    assert f"train {MIDDLE} (exit 65)" in told
    assert shard.name.partition(".")[0] in told
    assert "Slurm job" in told
    assert f"Training waits for range {MIDDLE} (2 of 3 still to do)." in told
    assert f"snakemake {SLURM}" in told
    assert ledger.exists()
    shard.write_bytes(whole)
    first = attempts(campaign)[FIRST]
    campaign.snakemake(f"{SLURM} train_all")
    assert attempts(campaign)[FIRST] == first
    assert sha256(campaign, LAST) == sha256(undisturbed, LAST)


def test_a_job_that_slurm_does_not_take_is_explained(campaign):
    configure(campaign, **{"resources.train.mem_mb": 1_000_000})
    told = campaign.snakemake(f"{TRAIN} --retries 0", check=False).stdout
    assert f"train {FIRST}: Slurm refused the job: " in told
    assert "Requested node configuration is not available" in told


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_range_is_trained_by_several_processes(campaign, undisturbed, nodes):
    configure(campaign, **{"train.gpus": 2 // nodes, "train.nodes": nodes})
    campaign.snakemake(f"{SLURM} runs/tiny/ranges/{FIRST}.json")
    alone, together = (item.run / "ranges" / f"{FIRST}.json" for item in (undisturbed, campaign))
    assert events(together) == events(alone)
    assert sha256(campaign, FIRST) != sha256(undisturbed, FIRST)


def events(receipt):
    return json.loads(receipt.read_text())["events"]
