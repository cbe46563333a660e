"""Campaigns for benchmarks: steps of crpipe in this process, verbs in processes of their own, tiny campaigns.

The only module here that knows how crpipe's steps are called.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from crpipe.campaign.campaign import Campaign
from crpipe.check.check import check as check_campaign
from crpipe.check.check import open_files
from crpipe.config.loading import load_config
from crpipe.core.paths import MANIFEST
from crpipe.core.text import NullProgress
from crpipe.source.listing import list_range
from crpipe.source.side_tables import stage_tables
from crpipe.source.stage import stage_range
from crpipe.split.outliers import consolidate_outliers
from crpipe.split.split import split_range

if TYPE_CHECKING:
    from collections.abc import Mapping

    from crpipe.config.loading import Config

ROOT = Path(__file__).parents[1]
TINY = {"files_per_range": 2, "showers_per_file": 12, "depths": 10, "energy_min_gev": 1.0e4}
TINY["energy_max_gev"] = 1.0e7
JOB = {"cpus": 1, "mem_mb": 800}
FIRST = "0000000-0000999"
_VERB = """
import atexit
from crpipe.cli.app import main
from benchmarks.worker import memory_mib
atexit.register(lambda: print(memory_mib()))
main()
"""


def configured(settings: Mapping[str, object]) -> Config:
    """Load a configuration of these keys alone."""
    return load_config((), tuple(f"{key}={value}" for key, value in settings.items()))


def opened(config: Config) -> Campaign:
    """Open the campaign of a configuration."""
    return Campaign.open(config)


def list_files(config: Config, name: str) -> None:
    """List a range."""
    list_range(opened(config), name, NullProgress())


def stage(config: Config, name: str) -> None:
    """Stage a range that is listed."""
    stage_range(opened(config), name, NullProgress())


def split(campaign: Campaign, name: str) -> None:
    """Split a range that is staged."""
    split_range(campaign, name, NullProgress())


def consolidate(campaign: Campaign) -> None:
    """Merge the outliers of all ranges."""
    consolidate_outliers(campaign, NullProgress())


def check(config: Config, jobs: int) -> tuple[list[Any], int]:
    """Check a campaign; return what was found, and the bytes that were read."""
    report = check_campaign(open_files(config), (), NullProgress(), processes=jobs)
    return report.errors, report.counts["bytes"]


def stage_all(config: Config) -> list[str]:
    """Stage the side tables, list and stage all ranges; return their names."""
    stage_tables(opened(config), NullProgress())
    names = [str(name) for name in config.all_ranges()]
    for name in names:
        list_files(config, name)
        stage(config, name)
    return names


def split_all(config: Config) -> list[Path]:
    """List, stage and split all ranges, unless they are; return the folders of their shards."""
    folders = [config.paths().shards(str(name)) for name in config.all_ranges()]
    if not all((folder / MANIFEST).exists() for folder in folders):
        for name in stage_all(config):
            split(opened(config), name)
    return folders


def call(words: list[str]) -> None:
    """Run a verb in this process."""
    from crpipe.cli.app import main  # noqa: PLC0415 - who calls no verb needs no command line

    before, sys.argv = sys.argv, ["crpipe", *words]
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise
    finally:
        sys.argv = before


def run_verb(
    settings: Mapping[str, object], verb: list[str], folder: Path, **environment: str
) -> tuple[float, float]:
    """Run a verb of crpipe in ``folder``; return its largest resident set in MiB, and seconds."""
    options = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    paths = {"PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
    begin = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", _VERB, *options, *verb],
        cwd=folder,
        env=os.environ | paths | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{' '.join(verb)}: {done.stderr}")
    return float(done.stdout.split()[-1]), time.perf_counter() - begin


def lay_out(folder: Path, ranges: int, **sections: Any) -> None:
    """Lay out a campaign of tiny ranges, as `crpipe init` does; ``sections`` replace its own."""
    (folder / "config").mkdir(parents=True)
    for name in ("Snakefile", "workflow", "profiles", "slurm"):
        (folder / name).symlink_to(ROOT / name)
    shutil.copy(ROOT / "config" / "config.yaml", folder / "config")
    tree: dict[str, Any] = {
        "source": {"uri": "synthetic://", "prefetch_ranges": ranges},
        "simulator": TINY,
        "ranges": {"last": ranges * 1000 - 1},
        "split": {"outlier_above": 40, "validation_fraction": 0.2},
        "load": {"batch_size": 32, "max_items": 2000, "prefetch": 0},
        "train": {"log_steps": 1, "threads": 1, "device": "cpu"},
        "model": {"hidden": 8},
        "resources": {"stage": JOB, "split": JOB, "train": JOB},
    }
    (folder / "crpipe.yaml").write_text(yaml.safe_dump(tree | sections))


def multiply(folder: Path, ranges: int) -> None:
    """Copy the files of the first range to all others under their names, in texts and journals too."""
    for top in ("results", "runs"):
        for path in [path for path in sorted((folder / top).rglob("*")) if path.is_file()]:
            inner = str(path.relative_to(folder))
            if FIRST not in inner and path.suffix != ".jsonl":
                continue
            text = path.read_text() if path.suffix in {".json", ".jsonl"} else None
            for number in range(1, ranges):
                name = f"{1000 * number:07}-{1000 * number + 999:07}"
                target = folder / inner.replace(FIRST, name)
                target.parent.mkdir(parents=True, exist_ok=True)
                if text is None:
                    shutil.copy(path, target)
                else:
                    with target.open("a") as file:
                        file.write(text.replace(FIRST, name))


def verb_seconds(folder: Path) -> float:
    """Add up the time between start and end of every attempt in the journals of a campaign."""
    total = 0.0
    for path in (folder / "results" / "journal.jsonl", *(folder / "runs").glob("*/journal.jsonl")):
        begun: dict[tuple[str, str], float] = {}
        for row in map(json.loads, path.read_text().splitlines() if path.exists() else ()):
            if row["what"] == "start":
                begun[row["verb"], row["range"]] = row["time"]
            elif row["what"] in {"finished", "paused", "failed"}:
                total += row["time"] - begun.pop((row["verb"], row["range"]))
    return total
