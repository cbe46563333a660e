"""A flow of affine couplings over the logarithms of the deposits, trained by its likelihood."""

import math

import numpy as np
import torch
from torch import nn

from calo.simulation import CELLS, LAYERS, VOXELS
from crpipe.author import LabelledRows, Metric, OptimizerSpec, Workload, cross_fit, mean

LEAST = 1e-4  # GeV: below, a deposit is noise


class Flow(nn.Module):
    def __init__(self, hidden, couplings):
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(VOXELS))
        self.nets = nn.ModuleList()
        for _ in range(couplings):
            layers = nn.Linear(VOXELS + 1, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU()
            self.nets.append(nn.Sequential(*layers, nn.Linear(hidden, 2 * VOXELS)))
        shuffled = [np.random.default_rng(number).permutation(VOXELS) % 2 for number in range(couplings)]
        self.register_buffer("kept", torch.tensor(np.array(shuffled), dtype=torch.float32))

    def _coupling(self, number, x, condition):
        kept = self.kept[number]
        shift, log_scale = self.nets[number](torch.cat([x * kept, condition], dim=1)).chunk(2, dim=1)
        return shift * (1 - kept), torch.tanh(log_scale) * (1 - kept)

    def log_likelihood(self, x, condition):
        """x: [N, 45], condition: [N, 1]; of each event, [N]."""
        x, change = x * self.scale.exp(), self.scale.sum()
        for number in range(len(self.nets)):
            shift, log_scale = self._coupling(number, x, condition)
            x, change = x * log_scale.exp() + shift, change + log_scale.sum(dim=1)
        return change - (x.square().sum(dim=1) + VOXELS * math.log(2 * math.pi)) / 2

    def forward(self, noise, condition):
        x = noise
        for number in reversed(range(len(self.nets))):
            shift, log_scale = self._coupling(number, x, condition)
            x = (x - shift) / log_scale.exp()
        return x / self.scale.exp()


class VoxelFlow(Workload):
    metrics = (
        Metric("auc", "AUC of showers", better="near", ideal=0.5, groups=20, tolerance=0.02),
        Metric("response", "deposited over true energy, generated - real", "", "near", 0.0, tolerance=0.01),
    )
    event_columns = ("energy_gev",)
    item_columns = ("deposit_gev",)
    fixed = VOXELS
    optimizer = OptimizerSpec("adam", 2e-3)

    def model(self):
        return Flow(self.options.hidden, self.options.couplings)

    def batch(self, events, rng):
        energy = events.columns["energy_gev"][:, None]
        x = np.log(events.items.reshape(-1, VOXELS) / energy + LEAST) / 2 + 2
        return {"x": x, "condition": np.log(energy / 30)}

    def loss(self, model, batch, generator):
        return -model.log_likelihood(batch["x"], batch["condition"]).mean() / VOXELS

    def generate(self, model, events, counts, generator):
        energy = torch.from_numpy(events.columns["energy_gev"][:, None]).to(model.scale.device)
        noise = torch.randn(len(events), VOXELS, generator=generator, device=energy.device)
        share = (((model(noise, (energy / 30).log()) - 2) * 2).exp() - LEAST).clamp(0, 1)
        return self.events(events, counts, (share * energy).cpu().numpy().reshape(-1, 1))

    def measures(self, truth, predicted):
        pair = [
            side.items.reshape(-1, VOXELS) / truth.columns["energy_gev"][:, None]
            for side in (truth, predicted)
        ]
        event, real = np.tile(np.arange(len(truth)), 2), np.repeat([True, False], len(truth))
        rows = LabelledRows(
            np.log(np.concatenate(pair) + 1e-3), real, event, np.arange(len(truth)), np.ones(len(event))
        )
        judge, apart = cross_fit(rows), pair[1].sum(axis=1) - pair[0].sum(axis=1)
        numbers = {"response": mean(apart), "showers": rows}
        return numbers | ({"auc": judge.statistic} if judge else {})

    def figures(self, truth, predicted, new):
        axis = new("layers", 3.0)
        for name, side in (("real", truth), ("generated", predicted)):
            layers = side.items.reshape(-1, LAYERS, CELLS).sum(axis=2).mean(axis=0)
            axis.plot(range(LAYERS), layers, "o-", label=name)
        axis.set(xlabel="layer", ylabel="mean deposit [GeV]")
        axis.legend()
