"""What Slurm and Snakemake cost a campaign: wall time, the head's peak memory, and seconds beside the work.

Starts a Slurm of its own on this machine, stages and splits tiny simulated ranges through it with the profile
as it is.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from benchmarks.campaigns import lay_out
from benchmarks.table import show, spread

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from integration.slurm.cluster import Cluster  # noqa: E402 - the tests' cluster is a benchmark's, too

if TYPE_CHECKING:
    from benchmarks.runner import Run


def busy_s() -> float:
    """Return the CPU time that this machine spent on anything, in seconds: trust it on a quiet one only."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system)


def run_campaign(folder: Path, cluster: Cluster) -> tuple[float, float, float]:
    """Run the campaign; return its wall time in seconds, the head's peak memory in MB, and all CPU time."""
    places = os.pathsep.join(map(str, (cluster.bin, Path(sys.executable).parent, "/usr/bin", "/bin")))
    command = ["snakemake", "--profile", "slurm", "outliers_consolidated"]
    started, peak, before = time.monotonic(), 0, busy_s()
    with (folder / "head.log").open("w") as log:
        environment = {**os.environ, "PATH": places, "OMP_NUM_THREADS": "1"}
        head = psutil.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
        while head.poll() is None:
            peak = max(peak, head.memory_info().rss)
            time.sleep(0.5)
    if head.returncode:
        sys.exit((folder / "head.log").read_text()[-3000:])
    return time.monotonic() - started, peak / 1e6, busy_s() - before


def overhead(folder: Path, cluster: Cluster, before: set[str]) -> dict[str, float]:
    """Compare each job's time on its node with that of the crpipe call inside: number, means in s."""
    told = cluster.call("squeue", "-h", "--states=all", "-o", "%A|%M").splitlines()
    seconds = {}
    for line in told:
        number, text = line.split("|")
        if number not in before:
            seconds[number] = 60 * int(text.split(":")[-2]) + int(text.split(":")[-1])
    before |= seconds.keys()
    rows = [json.loads(line) for line in (folder / "results" / "journal.jsonl").read_text().splitlines()]
    begun: dict[tuple[str, str], float] = {}
    inside = []
    for row in rows:
        work = (row["verb"], row["range"])
        if row["what"] == "start":
            begun[work] = row["time"]
        elif "slurm_job" in row:
            inside.append(row["time"] - begun[work])
    job_s, work_s = statistics.mean(seconds.values()), statistics.mean(inside)
    return {
        "jobs": len(inside),
        "job_s": round(job_s, 1),
        "work_s": round(work_s, 2),
        "overhead_s": round(job_s - work_s, 1),
    }


def slurm(run: Run, *, ranges: int = 100, rounds: int = 1) -> None:
    """Run campaigns of so many ranges."""
    cluster, seen, found = Cluster(run.folder / "slurm"), set[str](), []
    try:
        cluster.up()
        for number in range(rounds):
            place = run.folder / f"{number}"
            lay_out(place, ranges)
            wall_s, peak_mb, cpu_s = run_campaign(place, cluster)
            jobs = overhead(place, cluster, seen)
            figures = {"wall_s": round(wall_s), "head_peak_mb": round(peak_mb)} | jobs
            found.append(figures | {"cpu_s_per_job": round(cpu_s / jobs["jobs"], 2)})
            print(json.dumps(found[-1]), flush=True)
    finally:
        cluster.down()
    rows = [[name, spread([row[name] for row in found])] for name in found[0]]
    show(f"{ranges} ranges on Slurm, {rounds} rounds", ["", ""], rows)
