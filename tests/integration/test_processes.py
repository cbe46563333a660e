"""Training in two processes on CPUs through the whole workflow, one of them killed."""

import psutil
import pytest

from runs import RANGES, children, kill, wait_for
from same_results import products

pytestmark = pytest.mark.timeout(600)


def in_two_processes(split, folder):
    """Copy the campaign whose ranges are split, and let two processes train together."""
    campaign = split.copy(folder)
    campaign.change(train={"processes": 2, "gpus": 0}, resources={"train": {"cpus": 2, "mem_mb": 3000}})
    return campaign


def second_rank(head):
    """Find the process of rank 1 of the training job that runs."""
    for process in children(head):
        try:
            if process.environ().get("RANK") == "1":
                return process
        except psutil.Error:
            continue
    return None


def test_two_processes_killed_in_a_chain_end_with_the_same_bytes(split, tmp_path):
    calm, killed = (in_two_processes(split, tmp_path / name) for name in ("calm", "killed"))
    target = f"runs/tiny/ranges/{RANGES[1]}.json"
    calm.snakemake(target)
    with killed.running(target) as head:
        assert wait_for(lambda: [*killed.run.glob("store/*/snapshot-*")], head)
        kill(wait_for(lambda: second_rank(head), head))
        head.wait()
    killed.snakemake(target)
    attempts = [row for row in killed.journal() if row["what"] == "start" and row.get("verb") == "train"]
    assert len(attempts) > 2
    assert products(killed) == products(calm)
    assert calm.checkpoints()
    assert {row["ranks"] for row in killed.journal() if row["what"] == "machine"} == {2}
