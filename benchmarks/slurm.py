"""What Slurm and Snakemake cost a campaign: wall time, the head's peak memory, and seconds beside the work.

    python benchmarks/slurm.py --ranges 100

Starts a Slurm of its own on this machine, stages and splits tiny simulated ranges through it with the profile
as it is, and prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import psutil
import yaml

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from integration.slurm.cluster import Cluster  # noqa: E402 - the tests' cluster is a benchmark's, too

TINY = {"files_per_range": 2, "showers_per_file": 2, "depths": 10, "energy_max_gev": 1.0e6}
JOB = {"cpus": 1, "mem_mb": 800}


def campaign(folder: Path, ranges: int) -> None:
    """Lay out a campaign of tiny ranges."""
    (folder / "config").mkdir(parents=True)
    for name in ("workflow", "profiles", "slurm"):
        (folder / name).symlink_to(ROOT / name)
    tree = {
        "source": {"uri": "synthetic://", "look_ahead": ranges},
        "synthetic": TINY,
        "ranges": {"last": ranges * 1000 - 1},
        "resources": {"stage": JOB, "split": JOB},
    }
    (folder / "config" / "config.yaml").write_text(yaml.safe_dump(tree))


def run(folder: Path, cluster: Cluster) -> tuple[float, float]:
    """Run the campaign; return its wall time in seconds and the head's peak memory in MB."""
    places = os.pathsep.join(map(str, (cluster.bin, Path(sys.executable).parent, "/usr/bin", "/bin")))
    command = ["snakemake", "--profile", "slurm", "outliers_consolidated"]
    started, peak = time.monotonic(), 0
    with (folder / "head.log").open("w") as log:
        environment = {**os.environ, "PATH": places, "OMP_NUM_THREADS": "1"}
        head = psutil.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
        while head.poll() is None:
            peak = max(peak, head.memory_info().rss)
            time.sleep(0.5)
    if head.returncode:
        sys.exit((folder / "head.log").read_text()[-3000:])
    return time.monotonic() - started, peak / 1e6


def overhead(folder: Path, cluster: Cluster) -> tuple[int, float, float]:
    """Compare each job's time on its node with that of the crpipe call inside: jobs, median of both, in s."""
    told = cluster.call("squeue", "-h", "--states=all", "-o", "%A|%M|%k").splitlines()
    whole = [line.split("|")[1] for line in told]
    seconds = [60 * int(text.split(":")[-2]) + int(text.split(":")[-1]) for text in whole]
    rows = [json.loads(line) for line in (folder / "results" / "journal.jsonl").read_text().splitlines()]
    begun: dict[tuple[str, str], float] = {}
    inside = []
    for row in rows:
        work = (row["verb"], row["range"])
        if row["what"] == "start":
            begun[work] = row["time"]
        elif "slurm_job" in row:
            inside.append(row["time"] - begun[work])
    return len(inside), statistics.median(seconds), statistics.median(inside)


def main() -> None:
    """Print the figures of one run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranges", type=int, default=100)
    ranges = parser.parse_args().ranges
    folder = Path(tempfile.mkdtemp(prefix="crpipe-slurm-"))
    cluster = Cluster(folder / "slurm")
    try:
        cluster.up()
        campaign(folder / "campaign", ranges)
        wall_s, peak_mb = run(folder / "campaign", cluster)
        jobs, job_s, work_s = overhead(folder / "campaign", cluster)
    finally:
        cluster.down()
        shutil.rmtree(folder)
    figures = {"ranges": ranges, "jobs": jobs, "wall_s": round(wall_s), "head_peak_mb": round(peak_mb)}
    figures |= {"job_s": round(job_s, 1), "work_s": round(work_s, 2), "overhead_s": round(job_s - work_s, 1)}
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
