"""Campaigns on the test cluster: their fixtures, and what all tests of them look at."""

import json
import os
import shutil
import sys
import tempfile
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from integration.slurm.cluster import Cluster, wait_for
from runs import RANGES, REPOSITORY, Campaign

# The profile as it is, but for how long one waits: tests are short of time.
WAITING = "--slurm-init-seconds-before-status-checks 3 --max-status-checks-per-second 2 --latency-wait 5"
SLURM = f"--profile slurm {WAITING}"
QUICK = Path(__file__).with_name("quick.py")
SECOND = f"runs/tiny/ranges/{RANGES[1]}.json"


class ClusterCampaign(Campaign):
    """A campaign whose jobs run on the cluster, and whose workflow looks after them more often."""

    def command(self, words):
        return [sys.executable, QUICK, *super().command(words)[1:]]


@pytest.fixture(scope="session")
def cluster():
    """A running Slurm of two nodes; its folder lies where a socket's path stays short."""
    folder = Path(tempfile.mkdtemp(prefix="crpipe-slurm-"))
    running = Cluster(folder)
    try:
        running.up()
        yield running
    finally:
        running.down()
        shutil.rmtree(folder)


@pytest.fixture(scope="session")
def faulty(split, tmp_path_factory):
    """A split campaign whose workload meets faults, if there are any."""
    folder = tmp_path_factory.mktemp("faulty") / "campaign"
    places = os.pathsep.join([str(REPOSITORY / "src"), str(REPOSITORY / "tests" / "support")])
    campaign = split.copy(folder, PYTHONPATH=places)
    configure(campaign, model=None, **{"train.workload": "faulty:Faulty"})
    return campaign


@pytest.fixture(scope="session")
def undisturbed(faulty, tmp_path_factory):
    """The same campaign, trained on this machine without any disturbance."""
    campaign = faulty.copy(tmp_path_factory.mktemp("undisturbed") / "campaign", **faulty.variables)
    campaign.snakemake("train_all")
    return campaign


def configure(campaign, **changes):
    """Change keys of tiny.yaml, named with dots; ``None`` takes one away."""
    path = campaign.folder / "config" / "tiny.yaml"
    tree = yaml.safe_load(path.read_text())
    for dotted, value in changes.items():
        *sections, name = dotted.split(".")
        place = tree
        for section in sections:
            place = place[section]
        if value is None:
            del place[name]
        else:
            place[name] = value
    path.write_text(yaml.safe_dump(tree))


def on_cluster(campaign, cluster, folder):
    """Copy a campaign to where its commands find the cluster."""
    variables = {**campaign.variables, "PATH": f"{cluster.bin}:/usr/bin:/bin"}
    return ClusterCampaign(campaign.copy(folder).folder, variables)


def sha256(campaign, name):
    return json.loads((campaign.run / "ranges" / f"{name}.json").read_text())["sha256"]


def in_training(campaign, cluster, name, seconds=120):
    """Wait until a range is in training and has a snapshot; return the id of its Slurm job."""

    def running():
        snapshots = list((campaign.run / "store" / name).glob("snapshot-*.pt"))
        return snapshots and job_in_training(campaign, cluster, name)

    return wait_for(running, f"{name} is in training", seconds)


def job_in_training(campaign, cluster, name):
    """Find the running job that trains a campaign on a range."""
    return cluster.job_of(f"rule_train_wildcards_{name}", campaign.folder.resolve())


def linger(campaign):
    """Keep a job training for longer than a new head needs to come up, on a busy machine, too."""
    (campaign.folder / "slow").write_text("1")


def hurry(campaign):
    """Release the rest of a slow campaign to its own speed."""
    (campaign.folder / "slow").write_text("0")


def told_by(campaign):
    """Read what the head that runs now, or ran last, has said."""
    return (campaign.folder / "head.log").read_text()


def finished_in(head, seconds):
    """Wait for a workflow to end; tell whether it ended well."""
    return head.wait(timeout=seconds) == 0


def attempts(campaign):
    """Return the training attempts of each range in order: [(start, end, how it ended)]."""
    found = defaultdict(list)
    for row in campaign.journal():
        if row.get("verb") != "train":
            continue
        if row["what"] == "start":
            found[row["range"]].append([row["time"], None, "killed"])
        else:
            found[row["range"]][-1][1:] = [row["time"], row.get("kind", row["what"])]
    return found


def never_two_at_once(campaign):
    """Assert that no range was trained by two jobs at a time, and that no step was noted twice."""
    for name, tries in attempts(campaign).items():
        for before, after in pairwise(tries):
            assert before[1] is None or before[1] <= after[0], (name, tries)
        lines = (campaign.run / "store" / name / "metrics.jsonl").read_text().splitlines()
        steps = [json.loads(line)["step"] for line in lines]
        assert steps == sorted(set(steps)), name
