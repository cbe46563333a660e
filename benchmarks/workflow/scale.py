"""What a large campaign costs its head, simulated: every job of it runs, and does nothing but copy files.

One range is staged, split and trained on for real. In the campaigns that follow, a stand-in for crpipe writes
the same files and journal rows for every range, so that memory and CPU time are those of Snakemake with
crpipe's workflow, on the local executor.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import time
from typing import TYPE_CHECKING

import psutil

from benchmarks.campaigns import FIRST, lay_out
from benchmarks.runner import timed
from benchmarks.table import show

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.runner import Run

STAND_IN = '''#!{python} -IS
"""Writes what a verb of crpipe writes, without its work."""
import json, pathlib, shutil, sys, time
TEMPLATE, FIRST = pathlib.Path({template!r}), {first!r}
words = iter(sys.argv[1:])
verb = next(word for word in words if word not in ("--config", "--set") or next(words) is None)
name = next(words, "")
if verb in ("stage", "consolidate"):
    folder = "results/staged" if verb == "stage" else "results/outliers/consolidated"
    pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
    for made in [f"{{name}}.parquet"] if verb == "stage" else ["manifest.json", "index.parquet"]:
        pathlib.Path(folder, made).write_text('{{"range": "consolidated", "data": "", "shards": []}}')
for path in TEMPLATE.glob(f"{{verb}}/**/*"):
    if path.is_file():
        target = pathlib.Path(str(path.relative_to(TEMPLATE / verb)).replace(FIRST, name))
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".json":
            target.write_text(path.read_text().replace(FIRST, name))
        else:
            shutil.copyfile(path, target)
if verb in ("list", "stage", "split", "consolidate", "train"):
    journal = pathlib.Path("runs/default/journal.jsonl" if verb == "train" else "results/journal.jsonl")
    journal.parent.mkdir(parents=True, exist_ok=True)
    row = {{"time": round(time.time(), 3), "host": "simulated", "pid": 1, "verb": verb, "range": name}}
    with journal.open("a") as file:
        file.write("".join(json.dumps(row | {{"what": what}}) + "\\n" for what in ("start", "finished")))
'''
MADE_BY = {"manifests": "list", "shards": "split", "outliers": "split", "multiplicity": "split"}
MADE_BY |= {"ledgers": "split", "ranges": "train", "store": "train", "tensorboard": "train"}


def prepare(folder: Path) -> Path:
    """Make one range for real; leave its files by verb, and a Python whose crpipe is the stand-in."""
    real, template, programs = folder / "real", folder / "template", folder / "bin"
    lay_out(real, 1)
    timed(["snakemake", "train_all", "--cores", "1"], real)
    for top in (real / "results", real / "runs" / "default"):
        for path in [path for path in top.rglob("*") if path.is_file()]:
            verb = MADE_BY.get(path.relative_to(top).parts[0])
            if verb and FIRST in str(path):
                target = template / verb / path.relative_to(real)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, target)
    programs.mkdir()
    (programs / "python").symlink_to(sys.executable)
    text = STAND_IN.format(python=os.path.realpath(sys.executable), template=str(template), first=FIRST)
    (programs / "crpipe").write_text(text)
    (programs / "crpipe").chmod(0o755)
    return programs


def simulate(folder: Path, programs: Path, ranges: int) -> dict[str, float]:
    """Run a campaign of stand-ins to its end; measure its head and what it left."""
    lay_out(folder, ranges, source={"uri": "synthetic://"})
    libraries = [os.environ.get("PYTHONPATH", ""), sysconfig.get_paths()["purelib"]]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, libraries))}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    words = [programs / "python", "-m", "snakemake", "train_outliers", "--cores", "2"]
    started, peak, cpu = time.monotonic(), 0, 0.0
    with (folder / "head.log").open("w") as log:
        head = psutil.Popen(words, cwd=folder, env=environment, stdout=log, stderr=log)
        while head.poll() is None:
            peak = max(peak, head.memory_info().rss)
            times = head.cpu_times()
            cpu = times.user + times.system or cpu
            time.sleep(0.2)
    wall = time.monotonic() - started
    if head.returncode:
        sys.exit((folder / "head.log").read_text()[-3000:])
    jobs = sum(" of " in line and "steps" in line for line in (folder / "head.log").read_text().splitlines())
    journals = [folder / "results" / "journal.jsonl", folder / "runs" / "default" / "journal.jsonl"]
    logs = [*(folder / "results" / "logs").rglob("*"), *(folder / "runs" / "default" / "logs").rglob("*")]
    tables = list(folder.glob("**/benchmarks/**/*.tsv"))
    return {
        "ranges": ranges,
        "jobs": jobs,
        "wall, s": round(wall),
        "CPU of the head, s": round(cpu, 1),
        "CPU of the head for each job, ms": round(1000 * cpu / jobs, 1),
        "peak memory of the head, MB": round(peak / 1e6),
        "bytes of the two journals for each range": round(
            sum(each.stat().st_size for each in journals) / ranges
        ),
        "bytes of Snakemake's log for each job": round(
            sum(each.stat().st_size for each in (folder / ".snakemake" / "log").iterdir()) / jobs
        ),
        "files in results and runs": count(folder / "results") + count(folder / "runs"),
        "of them logs and benchmarks": sum(each.is_file() for each in logs) + len(tables),
        "files in .snakemake": count(folder / ".snakemake"),
        "crpipe status afterwards, s": round(timed(["crpipe", "status"], folder), 2),
        "snakemake -n afterwards, s": round(timed(["snakemake", "train_outliers", "-n"], folder), 1),
    }


def count(folder: Path) -> int:
    """Count the files below a folder."""
    return sum(len(names) for _, _, names in os.walk(folder))


def scale(run: Run, *, ranges: tuple[int, ...] = (100, 1000)) -> None:
    """Run a campaign of each number of ranges."""
    programs = prepare(run.folder)
    columns = [simulate(run.folder / f"{count}", programs, count) for count in ranges]
    rows = [[name, *(column[name] for column in columns)] for name in columns[0]]
    show("head of a campaign", rows[0], rows[1:])
