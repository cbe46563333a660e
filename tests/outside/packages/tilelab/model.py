"""The energy of an event from the signals of its 64 tiles: a plain regression."""

import os

import numpy as np
import torch
from torch import nn

from crpipe.train.workload import OptimizerSpec, Phase
from tilelab.layout import COUNT

if os.environ.get("TILELAB_NO_MODEL"):
    raise RuntimeError("tilelab.model was imported")


class TileEnergy:
    metrics = ()
    weighted = True
    event_columns = ("energy_mev",)
    item_columns = ("signal",)

    def __init__(self, options):
        self.options = options

    def size(self, events):
        return events.multiplicity

    def collate(self, events, index, seed):
        signals = events.items.reshape(len(events), COUNT, -1)[index, :, 0]
        return {
            "signals": torch.from_numpy(signals / 1000),
            "energy": torch.from_numpy(events.columns["energy_mev"][index] / 50),
            "rate": torch.from_numpy(events.columns["rate_hz"][index]),
        }

    def model(self):
        hidden = self.options.hidden
        return nn.Sequential(nn.Linear(COUNT, hidden), nn.SiLU(), nn.Linear(hidden, 1), nn.Flatten(0))

    def phases(self):
        adam = OptimizerSpec("adam", 3e-3)
        return [Phase("fit", lambda model: model.parameters(), self.loss, adam, average=True)]

    def loss(self, model, batch, generator):
        weight = batch["weight"]
        if not torch.equal(weight, batch["rate"]):
            raise ValueError("the weights are not those of the events")
        wrong = (model(batch["signals"]) - batch["energy"]).square()
        return (wrong * weight).sum() / weight.sum(), {"unweighted": wrong.mean().detach()}

    def predict(self, model, events, generator):
        batch = self.collate(events, np.arange(len(events)), ())
        signals = batch["signals"].to(next(model.parameters()).device)
        return {"energy_mev": 50 * model(signals).cpu().numpy()}

    def score(self, truth, prediction, folder):
        wrong = prediction["energy_mev"] - truth.columns["energy_mev"]
        weight = truth.columns["weight"]
        mean = np.average(wrong, weights=weight)
        spread = np.sqrt(np.average((wrong - mean) ** 2, weights=weight))
        return {"mean_error_mev": float(mean), "spread_mev": float(spread)}
