"""A long training job, watched from outside: its memory, open files and threads while it counts steps."""

import json
import math
import os
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import yaml

from runs import BIN, RANGES, REPOSITORY, environment

LINK = f"{RANGES[0][:7]}-{RANGES[-1][8:]}"  # all ranges together
CONFIG = ("--config", "config/config.yaml", "--config", "config/tiny.yaml")
BATCHES = 3  # of a step: one for each update of the critic
BLOCKS = 10
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Sample:
    """What the training process took when so many steps were logged; memory: resident, in MiB."""

    step: int
    memory: float
    files: int
    threads: int


class Leaking:
    """A logger that loses 50 kB and an open file for each row, as a leak in the training would."""

    def __init__(self, run):
        self.lost = []

    def log(self, step, metrics):
        self.lost.append((b"x" * 50_000, Path(__file__).open()))  # noqa: SIM115 - lost on purpose

    def close(self):
        pass


def configure(campaign, steps, **train):
    """Train one job on all ranges for ``steps`` steps at least, with all that a campaign writes."""
    path = campaign.folder / "config" / "tiny.yaml"
    tree = yaml.safe_load(path.read_text())
    tree["load"] |= {"prefetch": 2}
    manifests = [campaign.results / "shards" / name / "manifest.json" for name in RANGES]
    shards = [shard for each in manifests for shard in json.loads(each.read_text())["shards"]]
    events = sum(shard["events"] for shard in shards if shard["role"] == "train")
    tree["train"] |= {
        "ranges_per_link": 0,
        "passes_per_link": math.ceil(steps * BATCHES / (events // tree["load"]["batch_size"])),
        "validate_every": 100,
        "validate_events": 200,
        "monitor": "multiplicity/loss",
        "snapshot_steps": 200,
        "log_steps": 10,
        **train,
    }
    path.write_text(yaml.safe_dump(tree))


def soak(campaign, every):
    """Train the link; return a sample for each ``every`` steps at least, while the process lives."""
    command = [BIN / "crpipe", *CONFIG, "train", LINK]
    places = os.pathsep.join([str(REPOSITORY / "src"), str(REPOSITORY / "tests" / "support")])
    variables = environment({"PYTHONPATH": places, **campaign.variables})
    metrics = campaign.run / "store" / LINK / "metrics.jsonl"
    samples = []
    with (campaign.folder / "soak.log").open("w") as log:
        job = subprocess.Popen(command, cwd=campaign.folder, env=variables, stdout=log, stderr=log)
        try:
            watched = psutil.Process(job.pid)
            while job.poll() is None:
                time.sleep(0.2)
                step = last_step(metrics)
                if step and (not samples or step >= samples[-1].step + every):
                    with suppress(psutil.NoSuchProcess):
                        samples.append(sample(watched, step))
        finally:
            job.kill()
            job.wait()
    assert job.returncode == 0, (campaign.folder / "soak.log").read_text()[-3000:]
    return samples


def sample(process, step):
    with process.oneshot():
        memory = process.memory_info().rss / MIB
        return Sample(step, memory, process.num_fds(), process.num_threads())


def last_step(metrics):
    """Read the step of the last whole line; 0 where there is none."""
    if not metrics.exists():
        return 0
    with metrics.open("rb") as file:
        file.seek(max(0, metrics.stat().st_size - 8192))
        lines = file.read().split(b"\n")[:-1]
    return json.loads(lines[-1])["step"] if lines and lines[-1].startswith(b"{") else 0


def slope(steps, values):
    """Fit a line; return its slope for 1,000 steps and the error of that.

    Neighbouring samples are not independent, so the error is that of leaving out one tenth of the samples in
    a row at a time (jackknife).
    """
    steps, values = np.asarray(steps, float) / 1000, np.asarray(values, float)
    block = np.arange(len(steps)) * BLOCKS // len(steps)
    without = [np.polyfit(steps[block != out], values[block != out], 1)[0] for out in range(BLOCKS)]
    error = math.sqrt((BLOCKS - 1) * np.var(without))
    return np.polyfit(steps, values, 1)[0], error
