"""Pictures of index.md and start.md: `python docs/figures/make.py runs/demo [FOLDER]`, after `make demo`."""

import sys
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import polars as pl
from matplotlib.patches import FancyBboxPatch

import crpipe

FOLDER = Path(__file__).parent
STEPS = {
    "list": "which files\nthere should be",
    "stage": "copies,\neach verified",
    "split": "shards, and a ledger\nof every event",
    "train": "link after link,\nresumed exactly",
    "evaluate": "against held-out\nevents",
    "report": "figures, status,\nHTML",
}
BELOW = {2: ("outliers", "events above the\nthreshold, merged"), 4: ("predict, export", "the model\nin use")}
# Equal input gives equal bytes.
mpl.rcParams.update({"svg.hashsalt": "crpipe", "font.size": 10})


def save(figure, name):
    figure.savefig(folder / name, metadata={"Date": None}, bbox_inches="tight")
    plt.close(figure)


def box(axes, x, y, title, text):
    style = {"boxstyle": "round,pad=0.02,rounding_size=0.08", "facecolor": "#eef3f8", "edgecolor": "#2a6496"}
    axes.add_patch(FancyBboxPatch((x - 0.72, y - 0.42), 1.44, 0.84, **style))
    axes.text(x, y + 0.2, title, ha="center", va="center", weight="bold")
    axes.text(x, y - 0.14, text, ha="center", va="center", fontsize=8)


def pipeline():
    figure, axes = plt.subplots(figsize=(11, 2.9), layout="constrained")
    axes.set(xlim=(-0.9, 9.9), ylim=(-1.9, 0.6), aspect="equal")
    axes.axis("off")
    arrow = {"arrowstyle": "-|>", "color": "#2a6496"}
    for place, (title, text) in enumerate(STEPS.items()):
        box(axes, 1.8 * place, 0, title, text)
        if place:
            axes.annotate("", (1.8 * place - 0.75, 0), (1.8 * place - 1.05, 0), arrowprops=arrow)
    for place, (title, text) in BELOW.items():
        box(axes, 1.8 * place, -1.4, title, text)
    axes.annotate("", (3.6, -0.95), (3.6, -0.45), arrowprops=arrow)
    axes.annotate(
        "", (5.4, -0.45), (4.35, -1.4), arrowprops=arrow | {"connectionstyle": "angle,angleA=0,angleB=90"}
    )
    axes.annotate("", (7.2, -0.95), (5.75, -0.45), arrowprops=arrow)
    save(figure, "pipeline.svg")


def losses(campaign):
    metrics = campaign.metrics.filter(pl.col("link") != "outliers")
    figure, axes = plt.subplots(1, 2, figsize=(10, 3), layout="constrained")
    for axis, names in zip(axes, (("muons/loss",), ("multiplicity/loss",)), strict=True):
        for name in names:
            logged = metrics.drop_nulls(name)
            axis.plot(logged["step"], logged[name], label=name, color="C2" if axis is axes[1] else None)
        axis.set(xlabel="step", ylabel="loss")
        axis.legend()
    axes[1].set_yscale("log")
    save(figure, "demo-losses.svg")


def bundles(campaign):
    simulated = next(iter(campaign.shards("validation", batch_events=20_000)))
    generated = campaign.model().predict(simulated)
    edges = (np.arange(0, 60), np.geomspace(1, 1e4, 40), np.geomspace(0.1, 1e3, 40))
    figure, axes = plt.subplots(1, 3, figsize=(10, 3), layout="constrained")
    for name, made in (("simulated", simulated), ("generated", generated)):
        energy, x, y = made.items.T
        for axis, values, bins in zip(axes, (made.multiplicity, energy, np.hypot(x, y)), edges, strict=True):
            axis.hist(values, bins, histtype="step", density=True, label=name)
    axes[0].set(xlabel="muons in an event", ylabel="density", yscale="log")
    axes[1].set(xlabel="muon energy (GeV)", xscale="log", yscale="log")
    axes[2].set(xlabel="distance to the shower axis (m)", xscale="log", yscale="log")
    axes[0].legend()
    save(figure, "demo-bundles.svg")


if __name__ == "__main__":
    run, *folders = sys.argv[1:]
    folder = Path(*folders) if folders else FOLDER
    opened = crpipe.open(run)
    pipeline()
    losses(opened)
    bundles(opened)
