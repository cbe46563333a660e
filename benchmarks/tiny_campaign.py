"""A campaign of tiny simulated ranges: what its workflow costs besides the work."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
TINY = {"files_per_range": 2, "showers_per_file": 12, "depths": 10, "energy_min_gev": 1.0e4}
TINY["energy_max_gev"] = 1.0e7
JOB = {"cpus": 1, "mem_mb": 800}
FIRST = "0000000-0000999"


def lay_out(folder: Path, ranges: int, **sections: Any) -> None:
    """Lay out a campaign of tiny ranges, as `crpipe init` does; ``sections`` replace its own."""
    (folder / "config").mkdir(parents=True)
    for name in ("Snakefile", "workflow", "profiles", "slurm"):
        (folder / name).symlink_to(ROOT / name)
    shutil.copy(ROOT / "config" / "config.yaml", folder / "config")
    tree: dict[str, Any] = {
        "source": {"uri": "synthetic://", "look_ahead": ranges},
        "simulator": TINY,
        "ranges": {"last": ranges * 1000 - 1},
        "split": {"threshold": 40, "validation_fraction": 0.2},
        "load": {"batch_events": 32, "budget_items": 2000, "prefetch": 0},
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
            elif row["what"] in {"finished", "failed"}:
                total += row["time"] - begun.pop((row["verb"], row["range"]))
    return total
