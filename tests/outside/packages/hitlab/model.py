"""A DeepSet that finds position and energy of an event from its hits and the geometry."""

import os

import numpy as np
import torch
from torch import nn

from crpipe.events.layout import Metric
from crpipe.train.workload import OptimizerSpec, Phase

if os.environ.get("HITLAB_NO_MODEL"):
    raise RuntimeError("hitlab.model was imported")

SCALES = np.array([2.0, 30.0, 30.0], np.float32)  # log10 of the energy, x, y: of order one
PREDICTED = ("energy_mev", "x_m", "y_m")


class HitPosition:
    metrics = (
        Metric("distance_median", "median distance to the truth", "m", better="low", ideal=0.0),
        Metric("energy_bias", "mean of log10 predicted over true energy", better="near", ideal=0.0),
        Metric("energy_correlation", "correlation of the energies", better="high", ideal=1.0, groups=3),
    )
    event_columns = PREDICTED
    item_columns = ("detector", "time_ns", "charge_pe")
    needs = ("geometry",)

    def __init__(self, options):
        self.options = options
        self.places = np.zeros((0, 2), np.float32)

    def use(self, tables):
        table = np.loadtxt(tables["geometry"], delimiter=",", skiprows=1, ndmin=2)
        self.places = table[:, 1:3].astype(np.float32)

    def size(self, events):
        return events.multiplicity

    def collate(self, events, index, seed):
        part = events.take(index)
        detector, time, charge = part.items.T
        places = self.places[detector.astype(np.int64)]
        features = np.column_stack([places / 30, time / 100, np.log1p(charge)]).astype(np.float32)
        truth = np.stack([part.columns[name] for name in PREDICTED], axis=1).astype(np.float32)
        truth[:, 0] = np.log10(truth[:, 0])
        return {
            "hits": torch.from_numpy(features),
            "event": torch.from_numpy(np.repeat(np.arange(len(part)), part.multiplicity)),
            "truth": torch.from_numpy(truth / SCALES),
        }

    def model(self):
        hidden = self.options.hidden
        each = nn.Sequential(nn.Linear(4, hidden), nn.SiLU(), nn.Linear(hidden, hidden))
        whole = nn.Sequential(nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, 3))
        return nn.ModuleDict({"each": each, "whole": whole})

    def phases(self):
        adam = OptimizerSpec("adam", self.options.learning_rate)
        return [Phase("fit", lambda model: model.parameters(), self.loss, adam, average=True)]

    def guess(self, model, batch):
        each = model["each"](batch["hits"])
        pooled = each.new_zeros(len(batch["truth"]), each.shape[1]).index_add(0, batch["event"], each)
        return model["whole"](pooled / 20)

    def loss(self, model, batch, generator):
        wrong = (self.guess(model, batch) - batch["truth"]).square()
        return wrong.sum(dim=1).mean(), {"energy": wrong[:, 0].detach().mean()}

    def predict(self, model, events, generator):
        device = next(model.parameters()).device
        batch = self.collate(events, np.arange(len(events)), ())
        found = self.guess(model, {name: value.to(device) for name, value in batch.items()})
        found = found.cpu().numpy() * SCALES
        return {"energy_mev": 10 ** found[:, 0], "x_m": found[:, 1], "y_m": found[:, 2]}

    def baseline(self, events):
        """The mean position of the hits, weighted by charge, and an energy that follows the charge."""
        owner = np.repeat(np.arange(len(events)), events.multiplicity)
        places = self.places[events.items[:, 0].astype(np.int64)]
        charge = events.items[:, 2]
        total = np.bincount(owner, charge, minlength=len(events))
        sums = [np.bincount(owner, charge * axis, minlength=len(events)) for axis in places.T]
        x, y = (axis / np.maximum(total, 1e-6) for axis in sums)
        return {"energy_mev": 1 + 10 * total, "x_m": x, "y_m": y}

    def score(self, truth, prediction, folder):
        real = truth.columns
        distance = np.hypot(prediction["x_m"] - real["x_m"], prediction["y_m"] - real["y_m"])
        energies = np.log10(prediction["energy_mev"]), np.log10(real["energy_mev"])
        (folder / "distance.svg").write_text(_scatter(truth.multiplicity, distance))
        return {
            "distance_median": float(np.median(distance)),
            "distance_median_error": float(distance.std() / len(distance) ** 0.5),
            "energy_bias": float((energies[0] - energies[1]).mean()),
            "energy_correlation": float(np.corrcoef(*energies)[0, 1]),
            "events_without_hits": float((truth.multiplicity == 0).sum()),
        }


def _scatter(hits, distance):
    dots = [
        f'<circle cx="{5 * many:.0f}" cy="{300 - 5 * far:.0f}" r="2"/>'
        for many, far in zip(hits, distance, strict=True)
    ]
    labels = '<text x="200" y="330">hits</text><text x="5" y="15">distance (m)</text>'
    size = 'width="400" height="340"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{"".join(dots)}{labels}</svg>\n'
