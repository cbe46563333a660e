"""What crpipe and its workflow cost before and beside the work: start, planning, seconds of each range."""

from __future__ import annotations

import json
import shutil
import sys
from typing import TYPE_CHECKING

from benchmarks.campaigns import FIRST, lay_out, multiply, verb_seconds
from benchmarks.runner import Command, ratios, take_turns, timed
from benchmarks.table import show, spread

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.runner import Run, Side

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


def times(side: Side) -> str:
    """Show the wall times of a side."""
    return spread([turn.wall for turn in side.turns])


def start(run: Run, *, rounds: int = 5, ranges: int = 100) -> None:
    """Measure how long the first answers take; ``ranges``: of the split campaign that status looks at."""
    place = run.folder / "many"
    lay_out(place, ranges)
    timed(["snakemake", f"results/ledgers/{FIRST}.json", "--cores", "2"], place)
    multiply(place, ranges)
    completion = ["env", "_CRPIPE_COMPLETE=complete_bash", "COMP_WORDS=crpipe st", "COMP_CWORD=1", "crpipe"]
    commands = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "crpipe --version": ["crpipe", "--version"],
        "completion of a verb by the shell": completion,
        "crpipe --help": ["crpipe", "--help"],
        f"crpipe status of {ranges} split ranges": ["crpipe", "status"],
    }
    sides = [Command(name, words=words, folder=place) for name, words in commands.items()]
    take_turns(sides, rounds)
    show(f"start, {rounds} rounds", ["", "seconds"], [[each.name, times(each)] for each in sides])


def planning(run: Run, *, ranges: tuple[int, ...] = (100, 1000), rounds: int = 5) -> None:
    """Compare a dry run with that of a bare workflow: the same rules, files and jobs as plain text."""
    rows, words = [], ["snakemake", "-n", "-q", "rules"]
    for count in ranges:
        ours, bare = run.folder / f"ours-{count}", run.folder / f"bare-{count}"
        lay_out(ours, count, source={})  # raw files in a federation, which a dry run does not ask
        bare_workflow(bare, count)
        own = Command("crpipe", words=["snakemake", "train_outliers", *words[1:]], folder=ours)
        other = Command("a bare workflow", words=[*words, "--cores", "all"], folder=bare)
        take_turns([own, other], rounds)
        run.faster(f"plan of {count} ranges", own, other, goal=1 / 1.3)
        rows.append([f"{count:,} ranges", times(own), times(other), spread(ratios(own, other))])
    show("snakemake -n -q rules train_outliers, seconds", ["", "crpipe", "bare", "ratio"], rows)


def overhead(run: Run, *, ranges: int = 1, rounds: int = 5) -> None:
    """Measure what further tiny ranges take on one core, and the part of it that is not a verb's work."""
    further: list[tuple[float, float]] = []
    for number in range(rounds):
        sides = []
        for count in (1, 1 + ranges):
            place: Path = run.folder / f"local-{number}-{count}"
            lay_out(place, count)
            wall = timed(["snakemake", "train_all", "--cores", "1"], place)
            sides.append((wall, verb_seconds(place)))
        wall, work = ((more - one) / ranges for one, more in zip(*sides, strict=True))
        further.append((wall, work))
    rows = [
        ["all of it", spread([wall for wall, _ in further])],
        ["inside verbs", spread([work for _, work in further])],
        ["beside them", spread([wall - work for wall, work in further])],
    ]
    show(f"{ranges} further tiny ranges on one core, {rounds} rounds", ["", "seconds for each range"], rows)


def packs(run: Run, *, rounds: int = 5) -> None:
    """Measure what a tiny link in a pack takes beside its training, and the same link trained in place."""
    place = run.folder / "packs"
    lay_out(place, 1)
    timed(["snakemake", f"results/ledgers/{FIRST}.json", "--cores", "2"], place)
    steps: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name, words in {
            "crpipe train, in place": ["crpipe", "train", FIRST],
            "crpipe pack": ["crpipe", "pack", FIRST, "--out", "in.tar"],
            "crpipe train --pack": ["crpipe", "train", "--pack", "in.tar", "--out", "out.tar"],
            "crpipe unpack": ["crpipe", "unpack", "out.tar"],
        }.items():
            steps.setdefault(name, []).append(timed(words, place))
            if words[1:] == ["train", FIRST]:
                shutil.rmtree(place / "runs")
        row = json.loads((place / "runs/default/store" / FIRST / "slices.jsonl").read_text())
        steps.setdefault("from its start to its first step", []).append(row["start_seconds"])
        shutil.rmtree(place / "runs")
    show(
        f"a tiny link in a pack, {rounds} rounds", ["", "seconds"], [[n, spread(s)] for n, s in steps.items()]
    )
