"""Campaigns with workloads from outside crpipe, run through the real Snakemake in a folder of their own."""

import os
import re
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import yaml

from runs import BIN, REPOSITORY, Campaign

PACKAGES = Path(__file__).parent / "packages"  # only the processes of a campaign look here
WORDS_OF_OTHERS = re.compile(r"muon|bundle|primar|shower|pulse|sensor", re.IGNORECASE)
RANGES = ("0000000-0000001", "0000002-0000003")
COMMON = {
    "run": "first",
    "ranges": {"first": 0, "last": 3, "size": 2},
    "load": {"batch_size": 32, "max_items": 3000, "prefetch": 0},
    "train": {
        "passes_per_link": 6,
        "schedule": {"warmup_steps": 4},
        "ema_decay": 0.9,
        "snapshot_steps": 2,
        "log_steps": 1,
        "threads": 1,
        "device": "cpu",
    },
    "evaluate": {"events": 100, "batch_events": 20, "formats": []},
    "resources": {job: {"cpus": 1, "mem_mb": 1000} for job in ("stage", "split", "train", "evaluate")},
}
HITS = {
    **COMMON,
    "source": {
        "uri": "raw/batch_{number}.parquet",
        "reader": "hitlab.reading:HitFiles",
        "tables": {"truth": "raw/truth.parquet", "geometry": "raw/geometry.csv"},
    },
    "reader": {"charge_scale": 1.5},
    "split": {"outlier_above": 15, "validation_fraction": 0.25, "shard_items": 1000},
    "train": {**COMMON["train"], "workload": "hitlab.model:HitPosition"},
    "model": {"hidden": 12},
}
TILES = {
    **COMMON,
    "source": {
        "uri": "synthetic://",
        "reader": "tilelab.reading:TileFiles",
        "simulator": "tilelab.simulation:BeamTest",
    },
    "simulator": {"events_per_file": 60},
    "split": {"validation_fraction": 0.25, "shard_items": 4000},
    "train": {**COMMON["train"], "workload": "tilelab.model:TileEnergy"},
}


@dataclass(frozen=True)
class Lab(Campaign):
    """A folder with the workflow of crpipe, one configuration file, and packages in PYTHONPATH."""

    @classmethod
    def begin(cls, folder, settings, packages=PACKAGES):
        """Prepare ``settings``; with ``raw`` files beside them where the settings ask for some."""
        folder.mkdir(parents=True)
        for name in ("Snakefile", "workflow", "profiles", "slurm"):
            if (REPOSITORY / name).exists():
                (folder / name).symlink_to(REPOSITORY / name)
        places = [str(packages), *filter(None, [os.environ.get("PYTHONPATH")])]
        lab = cls(folder, {"PYTHONPATH": os.pathsep.join(places)})
        lab.configure(settings)
        if str(settings["source"].get("uri", "")).startswith("raw/"):
            made = lab.python("-m", "hitlab.data", "raw", "4")
            assert made.returncode == 0, made.stderr
        return lab

    def configure(self, settings):
        (self.folder / "crpipe.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))

    def copy(self, folder, **variables):
        shutil.copytree(self.folder, folder, symlinks=True)
        return Lab(folder, self.variables | variables)

    def untrained(self, folder, **variables):
        """Copy the data of a campaign without its training."""
        lab = self.copy(folder, **variables)
        shutil.rmtree(lab.folder / "runs")
        return lab

    @property
    def run(self):
        return self.folder / "runs" / "first"

    def command(self, words):
        return [BIN / "snakemake", *shlex.split(words)]

    def crpipe(self, *words):
        return self.process(BIN / "crpipe", *words)

    def python(self, *words, **variables):
        return self.process(sys.executable, *words, **variables)


def changed(settings, **keys):
    """Copy settings with other values: ``changed(HITS, source__uri="…")``."""
    tree = {name: dict(value) if isinstance(value, dict) else value for name, value in settings.items()}
    for dotted, value in keys.items():
        section, _, leaf = dotted.partition("__")
        if leaf:
            tree.setdefault(section, {})[leaf] = value
        else:
            tree[section] = value
    return tree
