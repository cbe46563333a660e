"""A DeepSet over the particles of a jet, trained by its cross entropy."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from crpipe.author import Graph, Metric, OptimizerSpec, Workload, auc

CLASSES = 3


class DeepSet(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.each = nn.Sequential(nn.Linear(3, hidden), nn.SiLU(), nn.Linear(hidden, hidden))
        self.whole = nn.Sequential(nn.Linear(hidden + 1, hidden), nn.SiLU(), nn.Linear(hidden, CLASSES))

    def forward(self, particles, jet, jet_pt):
        """particles [M, 3]: pt in GeV, eta, phi; jet [M]: of each; jet_pt [N] in GeV. p [N, 3]."""
        share = (particles[:, 0] / jet_pt[jet] + 1e-6).log() / 5
        each = self.each(torch.cat([share[:, None], 5 * particles[:, 1:]], dim=1))
        sums = each.new_zeros(len(jet_pt), each.shape[1]).index_add(0, jet, each)
        return self.whole(torch.cat([sums / 20, (jet_pt / 500).log()[:, None]], dim=1)).softmax(dim=1)


class JetTagger(Workload):
    metrics = (
        Metric("accuracy", "share of jets with the right class", better="high", ideal=1.0, tolerance=0.01),
        Metric("cross_entropy", "mean of -log p of the right class", ideal=0.0, tolerance=0.02),
        Metric(
            "auc",
            "mean AUC of one class against the others",
            better="high",
            ideal=1.0,
            groups=20,
            needs="20 jets, some of each class",
            tolerance=0.01,
        ),
    )
    monitored = ("accuracy", "cross_entropy")
    event_columns = ("label", "jet_pt_gev")
    item_columns = ("pt_gev", "eta", "phi")

    def __init__(self, options):
        super().__init__(options)
        self.optimizer = OptimizerSpec("adam", options.learning_rate)

    def model(self):
        return DeepSet(self.options.hidden)

    def batch(self, events, rng):
        return {
            "particles": events.items,
            "jet": np.repeat(np.arange(len(events)), events.multiplicity),
            "jet_pt": events.columns["jet_pt_gev"],
            "label": events.columns["label"].astype(np.int64),
        }

    def loss(self, model, batch, generator):
        return functional.nll_loss(self.outputs(model, batch)["p"].clamp_min(1e-9).log(), batch["label"])

    def outputs(self, model, batch):
        return {"p": model(batch["particles"], batch["jet"], batch["jet_pt"])}

    def baseline(self, events):
        """The number of particles alone: which class has a typical number next to it?"""
        p = np.exp(-np.abs(events.multiplicity[:, None] - np.array([17.0, 30.0, 45.0])) / 8)
        return {"p": p / p.sum(axis=1, keepdims=True)}

    def each(self, truth, predicted):
        p, label = predicted["p"], truth.columns["label"]
        right = p[np.arange(len(p)), label]
        return {"accuracy": p.argmax(axis=1) == label, "cross_entropy": -np.log(np.maximum(right, 1e-12))}

    def measures(self, truth, predicted):
        p, label = predicted["p"], truth.columns["label"]
        rows, ones = np.arange(len(p)), np.ones(len(p))
        against_others = [auc(p[:, value], label == value, rows, ones) for value in range(CLASSES)]
        return {"auc": lambda weight: np.mean([each(weight) for each in against_others])}

    def figures(self, truth, predicted, new):
        axis = new("top", 3.0)
        for label, name in enumerate(("quark", "gluon", "top")):
            p = predicted["p"][truth.columns["label"] == label, 2]
            axis.hist(p, 40, range=(0, 1), histtype="step", label=name)
        axis.set(xlabel="probability of a top quark", ylabel="jets")
        axis.legend()

    def graph(self, model, layout):
        example = {
            "particles": torch.arange(1.0, 16).reshape(5, 3),
            "jet": torch.tensor([0, 0, 1, 1, 1]),
            "jet_pt": torch.tensor([500.0, 300.0]),
        }
        rows = {"particles": "particles", "jet": "particles", "jet_pt": "jets"}
        return Graph(model, rows, ("p",), example, tolerance=1e-5)
