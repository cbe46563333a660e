"""A small campaign from raw files to the report, beside a plain script that does the same without guarantees.

The jets of the examples: six ranges of two files of 1,000 jets. The script reads the files, holds jets out,
trains the same network over the same number of batches, file by file, and writes weights, AUC and a figure.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from benchmarks.runner import Command, take_turns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.runner import Run, Turn

ROOT = Path(__file__).parents[1]
SCRIPT = """
import sys
from pathlib import Path
import matplotlib
matplotlib.use("agg")
import matplotlib.pyplot as plt
import numpy as np
import pyarrow.parquet as pq
import torch
from sklearn.metrics import roc_auc_score
from torch.nn import functional
from jets.model import DeepSet

torch.manual_seed(1)
rng = np.random.default_rng(1)
model = DeepSet(32)
optimizer = torch.optim.AdamW(model.parameters(), 3e-3)

def batches(table, rows, size=64):
    lists = [table[name].combine_chunks() for name in ("pt_gev", "eta", "phi")]
    ends = lists[0].offsets.to_numpy()
    items = np.stack([each.values.to_numpy() for each in lists], 1).astype(np.float32)
    label, jet_pt = (table[name].to_numpy() for name in ("label", "jet_pt_gev"))
    for first in range(0, len(rows), size):
        chosen = rows[first : first + size]
        count = ends[chosen + 1] - ends[chosen]
        places = np.concatenate([np.arange(ends[row], ends[row + 1]) for row in chosen])
        jet = np.repeat(np.arange(len(chosen)), count)
        columns = items[places], jet, jet_pt[chosen].astype(np.float32), label[chosen].astype(np.int64)
        yield tuple(map(torch.from_numpy, columns))

def scores(held):
    with torch.no_grad():
        drawn = (batch for table, rows in held for batch in batches(table, rows))
        parts = [(model(*inputs).numpy(), label.numpy()) for *inputs, label in drawn]
    return np.concatenate([p for p, _ in parts]), np.concatenate([label for _, label in parts])

held = []
for folder in sorted(Path("data").iterdir()):
    table = pq.read_table(folder)
    rows = rng.permutation(len(table))
    held.append((table, rows[: len(rows) // 5]))
    for _ in range(10):
        for *inputs, label in batches(table, rng.permutation(rows[len(rows) // 5 :])):
            optimizer.zero_grad()
            functional.nll_loss(model(*inputs).clamp_min(1e-9).log(), label).backward()
            optimizer.step()
    print(folder.name, np.mean(np.argmax(scores(held[:1])[0], 1) == scores(held[:1])[1]))
p, label = scores(held)
p = p.astype(float)
print("auc", roc_auc_score(label, p / p.sum(1, keepdims=True), multi_class="ovr"))
torch.save(model.state_dict(), "model.pt")
for value in range(3):
    plt.hist(p[label == value, 2], 40, range=(0, 1), histtype="step")
plt.savefig("top.svg")
"""


class Anew(Command):
    """A command whose results are deleted before each turn."""

    def turn(self) -> Turn:
        """Delete what the last turn left, and run the command."""
        for name in ("results", "runs", ".snakemake"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        return super().turn()


def small(run: Run, *, rounds: int = 5, cores: int = 2) -> None:
    """Run both in turn; the figure is how many times as long the campaign takes."""
    folder = run.folder / "small"
    shutil.copytree(ROOT / "examples" / "jets", folder / "jets")
    data = "from jets import data; make = data.jets; data.range = lambda _: range(12)"
    data += "; data.jets = lambda seed: make(seed, 1000); data.main('data', 'parquet')"
    _call([sys.executable, "-c", data], folder)
    settings = yaml.safe_load((folder / "jets" / "jets.yaml").read_text())
    settings["ranges"] = {"last": 11, "size": 2}
    (folder / "crpipe.yaml").write_text(yaml.safe_dump(settings))
    (folder / "script.py").write_text(SCRIPT)
    beside = Path(sys.executable).parent
    campaign = [str(beside / "snakemake"), "--snakefile", str(ROOT / "Snakefile"), f"-c{cores}", "all"]
    sides = [
        Anew("crpipe", words=["env", f"PYTHONPATH={folder}", *campaign], folder=folder),
        Anew("script", words=[sys.executable, "script.py"], folder=folder),
    ]
    take_turns(sides, rounds)
    for side in sides:
        run.note(f"small campaign, {side.name}", side.median(), "s")
    run.faster("small campaign", sides[0], sides[1], goal=0.5)


def _call(words: Sequence[str], folder: Path) -> None:
    subprocess.run(words, cwd=folder, check=True)
