"""A reader, a simulator and a workload of one screen each that keep the contract."""

import zipfile

import numpy as np
import torch
from pydantic import BaseModel
from torch import nn

from crpipe.core.errors import FormatError
from crpipe.events.batch import Events
from crpipe.events.layout import Field, Layout, Metric
from crpipe.train.workload import OptimizerSpec, Phase

LAYOUT = Layout(
    item="hits",
    events=(
        Field("event_id", "uint32", "", 0, 2**32 - 1, "number of the event"),
        Field("energy_gev", "float32", "GeV", 0, 1e6, "true energy"),
        Field("rate_hz", "float32", "Hz", 0, 10, "how much the event counts"),
    ),
    items=(
        Field("x_m", "float32", "m", -100, 100, "position along the detector"),
        Field("charge_pe", "float32", "photoelectrons", 0, 1e6, "charge"),
    ),
    group=("event_id",),
    key=("event_id",),
    weight="rate_hz",
)


class HitFilesOptions(BaseModel, frozen=True, extra="forbid"):
    block: int = 7


class HitFiles:
    layout = LAYOUT
    needs = ()
    formats = ("zip",)

    def __init__(self, options):
        self.block = options.block

    def rows(self, path, tables):
        events = self.read(path)
        for first in range(0, len(events), self.block):
            yield events.part(first, min(first + self.block, len(events)))

    def totals(self, path, tables):
        events = self.read(path)
        return len(events), len(events.items)

    def read(self, path):
        try:
            with path.open("rb") as handle, np.load(handle) as file:
                columns = {field.name: file[field.name].astype(field.dtype) for field in LAYOUT.events}
                return Events(columns, file["multiplicity"], file["items"].astype(np.float32))
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise FormatError(f"{path}: no .npz file ({error})") from error


class HitMakerOptions(BaseModel, frozen=True, extra="forbid"):
    events: int = 20


class HitMaker:
    layout = LAYOUT

    def __init__(self, options):
        self.options = options

    def files(self, name):
        return [f"hits_{number}.npz" for number in range(name.first, name.last + 1)]

    def write(self, name, file, seed, path):
        number = int(file.removesuffix(".npz").removeprefix("hits_"))
        rng = np.random.default_rng([seed, number])
        count = self.options.events
        columns = {
            "event_id": count * number + np.arange(count, dtype=np.uint32),
            "energy_gev": (10 ** rng.uniform(0, 3, count)).astype(np.float32),
            "rate_hz": rng.uniform(0.5, 2, count).astype(np.float32),
        }
        events = self.again(columns, int(rng.integers(2**31)))
        with path.open("wb") as handle:
            np.savez(handle, multiplicity=events.multiplicity, items=events.items, **columns)

    def tables(self, folder):
        return {}

    def again(self, columns, seed):
        rng = np.random.default_rng(seed)
        energy = np.maximum(columns["energy_gev"], 1)
        counts = 1 + rng.poisson(2 * np.log10(energy))
        total = int(counts.sum())
        charge = rng.exponential(np.repeat(energy / counts, counts))
        items = np.stack([rng.uniform(-100, 100, total), charge], axis=1).astype(np.float32)
        return Events(dict(columns), counts.astype(np.uint32), items)


class HitEnergyOptions(BaseModel, frozen=True, extra="forbid"):
    hidden: int = 8


class HitEnergy:
    weighted = True
    metrics = (Metric("bias", "mean of log10(predicted / true)", better="near", ideal=0.0),)
    validation_metrics = (Metric("distance", "|log10(predicted / true)|", ideal=0.0),)
    event_columns = ("energy_gev",)
    item_columns = ("x_m", "charge_pe")

    def __init__(self, options):
        self.options = options

    def size(self, events):
        return events.multiplicity

    def collate(self, events, index, seed):
        part = events.take(index)
        x, charge = part.items.T
        shift = np.random.default_rng(seed).normal(0, 1e-3, len(part)) if seed else np.zeros(len(part))
        energy = np.log10(part.columns["energy_gev"]) + shift.astype(np.float32)
        return {
            "hits": torch.from_numpy(np.stack([x / 100, np.log1p(charge)], axis=1)),
            "event": torch.from_numpy(np.repeat(np.arange(len(part)), part.multiplicity)),
            "count": torch.from_numpy(part.multiplicity.astype(np.float32)),
            "energy": torch.from_numpy(energy),
        }

    def model(self):
        hidden = self.options.hidden
        each = nn.Sequential(nn.Linear(2, hidden), nn.SiLU(), nn.Linear(hidden, hidden))
        return nn.ModuleDict({"each": each, "whole": nn.Linear(hidden + 1, 1)})

    def phases(self):
        adam = OptimizerSpec("adam", 1e-2)
        return [Phase("fit", lambda model: model.parameters(), self.loss, adam, average=True)]

    def guess(self, model, batch):
        each = model["each"](batch["hits"])
        pooled = each.new_zeros(len(batch["energy"]), each.shape[1]).index_add(0, batch["event"], each)
        count = batch["count"][:, None]
        pooled = torch.cat([pooled / count.clamp_min(1), count / 10], dim=1)
        return model["whole"](pooled)[:, 0]

    def loss(self, model, batch, generator):
        wrong, weight = (self.guess(model, batch) - batch["energy"]).square(), batch["weight"]
        mean = (wrong * weight).sum() / weight.sum()
        return mean, {"squared": mean.detach()}

    def predict(self, model, events, generator):
        batch = self.collate(events, np.arange(len(events)), ())
        return {"energy_gev_predicted": 10 ** self.guess(model, batch).numpy()}

    def baseline(self, events):
        return {"energy_gev_predicted": 10 ** (events.multiplicity / 5)}

    def validate(self, model, events, generator):
        found = self.predict(model, events, generator)["energy_gev_predicted"]
        return {"distance": np.abs(np.log10(found / events.columns["energy_gev"]))}

    def score(self, truth, prediction, folder):
        ratio = np.log10(prediction["energy_gev_predicted"] / truth.columns["energy_gev"])
        return {"bias": float(np.average(ratio, weights=truth.columns["weight"]))}

    def multiplicities(self, model, events, generator):
        mean = 2 * np.log10(np.maximum(events.columns["energy_gev"], 1))
        return 1 + torch.poisson(torch.from_numpy(mean), generator=generator).numpy().astype(np.int64)

    def generate(self, model, events, multiplicity, generator):
        items = torch.rand(int(multiplicity.sum()), 2, generator=generator).numpy()
        return Events(events.columns, multiplicity.astype(np.uint32), items)


def tree(module, **train):
    """Return the keys of a campaign of this package, or of a changed copy of it, on two simulated files."""
    return {
        "run": "small",
        "source": {
            "uri": "synthetic://",
            "reader": f"{module}:HitFiles",
            "simulator": f"{module}:HitMaker",
        },
        "ranges": {"first": 0, "last": 1, "size": 2},
        "load": {"batch_size": 20},
        "train": {"workload": f"{module}:HitEnergy", **train},
    }
