"""What crpipe and its workflow cost before and beside the work: start-up, planning, seconds of each range.

    python benchmarks/startup.py --rounds 5
    python benchmarks/startup.py --only planning --ranges 100 1000

Planning is compared in turn with a bare workflow: the same rules, wildcards, files and jobs as plain text,
without crpipe. Overhead is the time of a further tiny range on one core less that inside its verbs.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from side_by_side import compared, spread
from tiny_campaign import FIRST, lay_out, multiply, verb_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

RANGES = 100  # of the campaign that status looks at
BARE_STEPS = """
rule {name}:
    input: {inputs}
    output: {outputs}
    log: "results/logs/{name}/{{range}}.log"
    benchmark: "results/benchmarks/{name}/{{range}}.tsv"
    threads: 1
    resources: mem_mb=1000, runtime=60
    message: "{name} range {{wildcards.range}}"
    shell: "touch {{output}} > {{log:q}} 2>&1"
"""
BARE_HEAD = """
RANGES = [f"{{1000 * n:07}}-{{1000 * n + 999:07}}" for n in range({ranges})]
PARENTS = dict(zip(RANGES[1:], RANGES))
wildcard_constraints: range=r"[0-9-]+"
localrules: all, list
rule all:
    input: expand("runs/ranges/{{range}}.json", range=RANGES), "results/outliers/consolidated/manifest.json"
rule consolidate:
    input: expand("results/outliers/{{range}}/manifest.json", range=RANGES)
    output: "results/outliers/consolidated/manifest.json"
    shell: "touch {{output}}"
def parent(wildcards):
    return [f"runs/ranges/{{PARENTS[wildcards.range]}}.json"] if wildcards.range in PARENTS else []
"""
_SPLIT = ("shards/{range}/manifest.json", "outliers/{range}/manifest.json", "multiplicity/{range}.parquet")
_SPLIT += ("multiplicity/{range}.histogram.json", "ledgers/{range}.json")


def bare_workflow(folder: Path, ranges: int) -> None:
    """Write a workflow with the rules, files and jobs of crpipe's, and nothing else."""
    folder.mkdir()
    steps = {
        "list": ("[]", '"results/manifests/{range}.parquet"'),
        "stage": ('"results/manifests/{range}.parquet"', 'temp("results/raw/{range}.parquet")'),
        "split": ('"results/raw/{range}.parquet"', ", ".join(f'"results/{name}"' for name in _SPLIT)),
        "train": ('"results/shards/{range}/manifest.json", parent', '"runs/ranges/{range}.json"'),
    }
    rules = [
        BARE_STEPS.format(name=name, inputs=inputs, outputs=outputs)
        for name, (inputs, outputs) in steps.items()
    ]
    (folder / "Snakefile").write_text(BARE_HEAD.format(ranges=ranges) + "".join(rules))


def timed(words: Sequence[str], folder: Path) -> float:
    """Run a command; return its wall time in seconds."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    started = time.perf_counter()
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(words)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return time.perf_counter() - started


def start_up(folder: Path, rounds: int) -> None:
    """Print how long the first answers take."""
    place = folder / "hundred"
    lay_out(place, RANGES)
    timed(["snakemake", f"results/ledgers/{FIRST}.json", "--cores", "2"], place)
    multiply(place, RANGES)
    python = [sys.executable, "-c", "pass"]
    commands = {"python -c pass": python} | {
        " ".join(words): list(words)
        for words in (("crpipe", "--help"), ("crpipe", "--version"), ("crpipe", "status"))
    }
    commands["completion of a verb"] = ["env", "_CRPIPE_COMPLETE=complete_bash", "COMP_WORDS=crpipe st"]
    commands["completion of a verb"] += ["COMP_CWORD=1", "crpipe"]
    found: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(rounds + 1):
        for name, words in commands.items():
            found[name].append(timed(words, place))
    print(f"\nseconds, {rounds} rounds in turn; status of {RANGES} split ranges")
    for name, times in found.items():
        print(f"  {name:24}{spread(times[1:])}")


def planning(folder: Path, counts: Sequence[int], rounds: int) -> None:
    """Print how long a dry run takes beside that of a bare workflow."""
    print(f"\nsnakemake -n -q rules train_outliers, seconds, {rounds} rounds in turn")
    for count in counts:
        ours, bare = folder / f"ours-{count}", folder / f"bare-{count}"
        lay_out(ours, count, source={})  # raw files in a federation, which a dry run does not ask
        bare_workflow(bare, count)
        words = ["snakemake", "-n", "-q", "rules"]
        pairs = []
        for number in range(rounds + 1):
            sides = [(ours, ["snakemake", "train_outliers", *words[1:]]), (bare, [*words, "--cores", "all"])]
            times = {side: timed(call, side) for side, call in (sides if number % 2 else sides[::-1])}
            pairs.append((times[ours], times[bare]))
        pairs = pairs[1:]
        compared(f"plan of {count} ranges", "a bare workflow", [two / one for one, two in pairs], 1 / 1.3)
        print(
            f"  {count:5} ranges: crpipe {spread([one for one, _ in pairs])}, "
            f"bare {spread([other for _, other in pairs])}, ratio {spread([one / two for one, two in pairs])}"
        )


def overhead(folder: Path, ranges: int, rounds: int) -> None:
    """Print the time that a further range takes on one core, and the part of it that is not a verb's work."""
    found = []
    for number in range(rounds):
        sides = []
        for count in (1, 1 + ranges):
            place = folder / f"local-{number}-{count}"
            lay_out(place, count)
            wall = timed(["snakemake", "train_all", "--cores", "1"], place)
            sides.append((wall, verb_seconds(place)))
        found.append([(more - one) / ranges for one, more in zip(*sides, strict=True)])
    print(f"\n{ranges} further tiny ranges on one core, {rounds} rounds, seconds for each range")
    print(f"  all of it:    {spread([wall for wall, _ in found])}")
    print(f"  inside verbs: {spread([work for _, work in found])}")
    print(f"  beside them:  {spread([wall - work for wall, work in found])}")


def main() -> None:
    """Print the three tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranges", type=int, nargs="+", default=[100, 1000], help="of the plans")
    parser.add_argument("--local", type=int, default=1, help="further ranges on one core")
    parser.add_argument("--only", choices=["start", "planning", "overhead"])
    given = parser.parse_args()
    print(f"load of the machine: {[round(value, 1) for value in os.getloadavg()]}")
    with tempfile.TemporaryDirectory(prefix="crpipe-startup-") as text:
        folder = Path(text)
        if given.only in {None, "start"}:
            start_up(folder, given.rounds)
        if given.only in {None, "planning"}:
            planning(folder, given.ranges, given.rounds)
        if given.only in {None, "overhead"}:
            overhead(folder, given.local, given.rounds)


if __name__ == "__main__":
    main()
