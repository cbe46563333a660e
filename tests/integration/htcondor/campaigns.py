"""Campaigns whose commands all run in the pool's root, as a user who is nobody special."""

import random
import re
import shutil
import subprocess
import time
from dataclasses import dataclass

import psutil

from integration.htcondor.pool import USER, Pool
from integration.slurm.campaigns import attempts
from integration.slurm.cluster import wait_for
from runs import Campaign

# The profile as it is, but for how often one asks: tests are short of time.
HTCONDOR = "--profile htcondor --seconds-between-status-checks 2 --latency-wait 5"


@dataclass(frozen=True)
class PoolCampaign(Campaign):
    """A campaign whose commands run in the root of a pool."""

    pool: Pool | None = None

    def command(self, words):
        return self.pool.inside(super().command(words), self.folder)

    def copy(self, folder, **variables):
        shutil.copytree(self.folder, folder, symlinks=True)
        return owned(PoolCampaign(folder, {**self.variables, **variables}, self.pool))

    def head_inside(self, head):
        """Return the head itself, which ``head`` has started within the pool."""
        return wait_for(lambda: psutil.Process(head.pid).children(), "the head runs", 10)[0]

    def queue(self, *words):
        """List the ids of the jobs that were submitted here."""
        constraint = f'Iwd == "{self.folder}"'
        return self.pool.call("condor_q", *words, "-constraint", constraint, "-af", "ClusterId").split()


def owned(campaign):
    """Give all files of a campaign to the user."""
    subprocess.run(["chown", "-hR", f"{USER}:{USER}", campaign.folder], check=True)
    return campaign


HELD, EVICTED = "012", "004"


def events(campaign, kind=EVICTED):
    """Count the events of a kind in the pool's log of a campaign's jobs."""
    log = campaign.folder / ".snakemake" / "htcondor" / "snakemake-rules.log"
    return len(re.findall(rf"^{kind} \(", log.read_text(), re.MULTILINE)) if log.exists() else 0


def evict(campaign, times, seed):
    """Evict running jobs, each second time with SIGKILL, until so many evictions are in the log."""
    choice, tried = random.Random(seed), 0
    while events(campaign) < times:
        running = wait_for(lambda: campaign.queue("-constraint", "JobStatus == 2"), "a job runs", 200)
        time.sleep(choice.uniform(0, 6))
        how = ("-fast",) if tried % 2 else ()
        campaign.pool.call("condor_vacate_job", *how, choice.choice(running), check=False)
        tried += 1
        assert tried < 5 * times, "jobs end before they are evicted"


def in_training(campaign, name, seconds=120):
    """Wait until a range is in training and has a snapshot; return the id of its job."""

    def running():
        snapshots = list((campaign.run / "store" / name).glob("snapshot-*.pt"))
        return snapshots and campaign.queue("-constraint", 'JobStatus == 2 && JobBatchName > "train-"')

    return wait_for(running, f"{name} is in training", seconds)[0]


def tries(campaign, name):
    """Count the attempts to train a range that have begun."""
    return len(attempts(campaign)[name])
