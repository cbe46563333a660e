"""How good the demo's model gets when the same number of steps is arranged in other ways.

One command: ``python benchmarks/chain.py --seeds 1 2 3``. Each arrangement of links, rounds and epochs is a
run of its own over the same shards, through ``snakemake evaluation``; the shards of a seed are made once.
Prints a Markdown table: every seed's event AUC, and means over the seeds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
EPOCHS = 5
ARRANGEMENTS = {
    "epochs": ("each range five times, then the next", {"epochs": EPOCHS}),
    "rounds": ("each range once, five rounds", {"epochs": 1, "rounds": EPOCHS}),
    "one-link": ("all ranges shuffled together, five times", {"epochs": EPOCHS, "ranges_per_link": 0}),
    "pairs": ("two ranges shuffled together, five times", {"epochs": EPOCHS, "ranges_per_link": 2}),
}
SHOWN = ("auc_event", "auc_full", "w1_log_energy", "w1_radius_m")


def train(folder: Path, seed: int, name: str, cores: int) -> dict[str, float]:
    """Train and evaluate one arrangement; return the numbers of its final checkpoint."""
    results, run = folder / f"results-{seed}", f"{name}-{seed}"
    keys = {**ARRANGEMENTS[name][1], "threads": 1}
    settings = [f"seed={seed}", f"results={results}", f"runs={folder / 'runs'}", f"run={run}"]
    settings.append(f"train={json.dumps(keys)}")
    command = [Path(sys.executable).parent / "snakemake", "--cores", str(cores), "--quiet", "all"]
    command += ["--configfile", "config/demo.yaml", "--config", *settings, "--", "evaluation"]
    log = folder / f"{run}.log"
    with log.open("w") as output:
        done = subprocess.run(command, cwd=REPOSITORY, stdout=output, stderr=output, check=False)
    if done.returncode:
        sys.exit(f"{run} failed: see {log}")
    (path,) = (folder / "runs" / run / "evaluation").glob("*/metrics.json")
    values: dict[str, float] = json.loads(path.read_text())["values"]
    return values


def main() -> None:
    """Run every arrangement with every seed and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--arrangements", nargs="+", default=["epochs", "rounds", "one-link"])
    parser.add_argument("--folder", type=Path, default=Path("/tmp/crpipe-chain"))
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    print(f"| arrangement | event AUC, seeds {', '.join(map(str, given.seeds))} | {' | '.join(SHOWN)} |")
    print(f"|---|---|{'---|' * len(SHOWN)}")
    for name in given.arrangements:
        found = [train(given.folder, seed, name, given.cores) for seed in given.seeds]
        seeds = ", ".join(f"{values['auc_event']:.3f}" for values in found)
        means = [sum(values[key] for values in found) / len(found) for key in SHOWN]
        print(f"| {ARRANGEMENTS[name][0]} | {seeds} | {' | '.join(f'{mean:.3f}' for mean in means)} |")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
