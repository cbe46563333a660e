"""A small adversarial workload and hand-made shards: enough to try all that the trainer promises."""

import json
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from pydantic import BaseModel, ConfigDict
from torch import nn

from crpipe.campaign.campaign import Campaign
from crpipe.config.loading import validate
from crpipe.core.files import sha256
from crpipe.core.paths import CONSOLIDATED, OUTLIERS
from crpipe.events.batch import Events, offsets
from crpipe.events.layout import Metric
from crpipe.train.workload import OptimizerSpec, Phase, Throttle
from crpipe.workloads.muons.layout import BUNDLES
from named import SOURCE

RANGES = ("0000000-0000999", "0001000-0001999", "0002000-0002999")


class ToyOptions(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    hidden: int = 8
    repeat: int = 3
    optimizer: str = "adam"
    poison_row: int = -1  # a source row whose batch turns the loss into NaN
    rate: float = 1e-3
    momentum: float = 0.0
    beta: float = 0.9
    throttle_above: float = 1e9
    watched: str = "loss"
    validation_nan: bool = False  # `validate` gives no finite number
    frozen_steps: int = 0  # of the first layers of critic and generator
    decay: float = 0.0
    quiet: bool = False  # noise follows from the events instead of the generator; no dropout


class Toy:
    """A critic with a gradient penalty, and a generator with dropout, on each event's mean muon."""

    metrics = ()
    event_columns = ()
    item_columns = tuple(field.name for field in BUNDLES.items)
    validation_metrics = (Metric("score", "mean score", better="high"), Metric("drawn", "a random number"))
    on_collate = staticmethod(lambda: None)  # a test's way to strike at any moment of a step

    def __init__(self, options):
        self.options = options

    def size(self, events):
        return events.multiplicity

    def collate(self, events, index, seed):
        Toy.on_collate()
        part = events.take(index)
        owner = np.repeat(np.arange(len(part)), part.multiplicity)
        sums = np.zeros((len(part), 3))
        np.add.at(sums, owner, part.items)
        return {
            "mean": torch.tensor(sums / np.maximum(part.multiplicity, 1)[:, None], dtype=torch.float32),
            "noise": torch.tensor(
                np.sin(np.outer(part.columns["source_row"] + 1, np.arange(1, 5))), dtype=torch.float32
            ),
            "poison": torch.tensor(part.columns["source_row"] == self.options.poison_row),
        }

    def model(self):
        def block(width, out):
            return nn.Sequential(
                nn.Linear(width, self.options.hidden), nn.SiLU(), nn.Linear(self.options.hidden, out)
            )

        return nn.ModuleDict(
            {
                "critic": block(3, 1),
                "generator": nn.Sequential(block(4, 3), nn.Dropout(0.0 if self.options.quiet else 0.1)),
            }
        )

    def fake(self, model, batch, generator):
        noise = batch["noise"]
        if not self.options.quiet:
            noise = torch.randn(noise.shape, generator=generator)
        return model["generator"](noise)

    def critic_loss(self, model, batch, generator):
        real, fake = batch["mean"], self.fake(model, batch, generator).detach()
        gap = (model["critic"](real) - model["critic"](fake)).mean()
        point = (real + fake).div(2).requires_grad_(True)
        (slope,) = torch.autograd.grad(model["critic"](point).sum(), point, create_graph=True)
        poison = torch.where(batch["poison"].any(), torch.nan, 0.0)
        return -gap + ((slope.norm(dim=1) - 1) ** 2).mean() + poison, {"gap": gap.detach()}

    def generator_loss(self, model, batch, generator):
        loss = -model["critic"](self.fake(model, batch, generator)).mean()
        return loss, {"small": loss.detach() / 1e9, "large": loss.detach() * 1e9}

    def phases(self):
        options = self.options
        own = {"adam": {"betas": (options.beta, 0.999)}, "sgd": {"momentum": options.momentum}}
        spec = OptimizerSpec(
            options.optimizer, options.rate, weight_decay=options.decay, **own.get(options.optimizer, {})
        )
        return [
            Phase(
                "critic",
                lambda m: m["critic"].parameters(),
                self.critic_loss,
                spec,
                self.options.repeat,
                smoothed=("gap",),
                throttle=Throttle("gap", self.options.throttle_above, 0.5, 0.2),
                frozen=lambda m: m["critic"][0].parameters(),
                frozen_steps=options.frozen_steps,
            ),
            Phase(
                "generator",
                lambda m: m["generator"].parameters(),
                self.generator_loss,
                spec,
                average=True,
                watched_metric=options.watched,
                frozen=lambda m: m["generator"][0][0].parameters(),
                frozen_steps=options.frozen_steps,
            ),
        ]

    def validate(self, model, events, generator):
        assert not model.training
        assert not torch.is_grad_enabled()
        means = self.collate(events, np.arange(len(events)), (0,))["mean"]
        score = np.full(len(events), np.nan) if self.options.validation_nan else model["critic"](means)[:, 0]
        return {"score": score, "drawn": torch.rand(len(events), generator=generator).numpy()}

    def predict(self, model, events, generator):
        return events

    def histograms(self, model, events, generator):
        drawn = torch.rand(4, generator=generator) + torch.rand(4)
        return {"noise": model["generator"](drawn).numpy()}

    def score(self, truth, prediction, folder):
        return {"events": float(len(truth))}


class Fitted(nn.Module):
    """What a FittedToy fits and calibrates, and how many events that took."""

    def __init__(self):
        super().__init__()
        self.register_buffer("centre", torch.zeros(3))
        self.register_buffer("events", torch.zeros(()))
        self.register_buffer("factor", torch.ones(()))
        self.register_buffer("calibrated", torch.zeros(()))


FittedToyOptions = ToyOptions  # found by its name


class FittedToy(Toy):
    """A toy whose critic sees the distance from the mean training event, and that calibrates a factor."""

    fit_events = 70
    calibration_events = 45

    def model(self):
        model = super().model()
        model["fitted"] = Fitted()
        return model

    def fit(self, model, blocks):
        means = torch.cat([self.collate(events, np.arange(len(events)), ())["mean"] for events in blocks])
        model["fitted"].centre.copy_(means.mean(dim=0))
        model["fitted"].events.fill_(len(means))

    def critic_loss(self, model, batch, generator):
        return super().critic_loss(
            model, {**batch, "mean": batch["mean"] - model["fitted"].centre}, generator
        )

    def deviations(self, model, events, generator):
        assert not model.training
        means = self.collate(events, np.arange(len(events)), ())["mean"]
        noise = 1e-3 * torch.rand(len(events), generator=generator)
        return {"off": (model["critic"](means)[:, 0] + noise).numpy()}

    def calibrate(self, model, deviations):
        model["fitted"].factor.fill_(float(np.quantile(np.abs(deviations["off"]), 0.68)))
        model["fitted"].calibrated.fill_(len(deviations["off"]))


class KeptRows:
    """A logger that keeps what it gets."""

    made = ()  # every logger that was built

    def __init__(self, run):
        self.run, self.rows, self.closed = run, [], False
        KeptRows.made = (*KeptRows.made, self)

    def log(self, step, metrics):
        self.rows.append((step, dict(metrics)))

    def close(self):
        self.closed = True


class RaisingLogger(KeptRows):
    """A logger whose server is away."""

    def log(self, step, metrics):
        raise ConnectionError("no server")


class SleepingLogger(KeptRows):
    """A logger whose server never answers."""

    def log(self, step, metrics):
        time.sleep(3600)


def make_events(count: int, seed: int) -> Events:
    """Draw events with a few muons each; every row is named by its own source row."""
    rng = np.random.default_rng(seed)
    multiplicity = rng.poisson(3, count).astype(np.uint32)
    columns = {field.name: rng.uniform(1, 2, count).astype(field.dtype) for field in BUNDLES.events}
    columns |= {
        "source_file": np.full(count, seed, np.uint32),
        "source_row": np.arange(count, dtype=np.uint32),
    }
    return Events(columns, multiplicity, rng.normal(size=(int(multiplicity.sum()), 3)).astype(np.float32))


def write_shards(folder: Path, shards: list[tuple[str, str, Events]], data: str, rows: int = 50) -> None:
    """Write (name, role, events) as flat pairs with aligned row groups, and their manifest.

    A range gets outliers, too: none, unless there are some.
    """
    folder.mkdir(parents=True, exist_ok=True)
    listed = []
    for name, role, events in shards:
        ends = offsets(events.multiplicity)
        table = pa.table({**events.columns, "multiplicity": events.multiplicity})
        muons = pa.table({field.name: events.items[:, i] for i, field in enumerate(BUNDLES.items)})
        files = {kind: folder / f"{name}.{kind}.parquet" for kind in ("events", "muons")}
        with (
            pq.ParquetWriter(files["events"], table.schema, write_page_checksum=True) as first,
            pq.ParquetWriter(files["muons"], muons.schema, write_page_checksum=True) as second,
        ):
            for start in range(0, len(events), rows):
                end = min(start + rows, len(events))
                first.write_table(table.slice(start, end - start))
                second.write_table(muons.slice(ends[start], ends[end] - ends[start]))
        described = {
            kind: {"size": path.stat().st_size, "sha256": sha256(path)} for kind, path in files.items()
        }
        listed.append(
            {
                "name": name,
                "role": role,
                "events": len(events),
                "items": len(events.items),
                "files": described,
            }
        )
    manifest = {
        "range": folder.name,
        "data": data,
        "layout": BUNDLES.describe(),
        "threshold": 50_000,
        "shards": listed,
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    beside = folder.parents[1] / OUTLIERS / folder.name
    if folder.parent.name == "shards" and not beside.exists():
        write_shards(beside, [], data)


def toy_config(root: Path, **sections):
    """Configure three tiny ranges and write their shards, unless they stand already."""
    tree = {
        "results": str(root / "results"),
        "runs": str(root / "runs"),
        "run": "toy",
        "source": SOURCE,
        "ranges": {"first": 0, "last": 2999},
        "load": {"batch_size": 16},
        "train": {
            "workload": "toy:Toy",
            "device": "cpu",
            "threads": 1,
            "log_steps": 4,
            "snapshot_steps": 5,
            **(train := sections.pop("train", {})),
            "schedule": {"warmup_steps": 3, **train.get("schedule", {})},
        },
        "model": sections.pop("model", {}),
        **sections,
    }
    config = validate(tree)
    data = Campaign.open(config).data
    outliers = config.paths().outliers(CONSOLIDATED)
    if not outliers.exists():
        write_shards(outliers, [("outliers-00000", OUTLIERS, make_events(40, 99))], data)
    for number, name in enumerate(RANGES):
        folder = config.paths().shards(name)
        if not folder.exists():
            write_shards(
                folder,
                [
                    *((f"train-{i:05d}", "train", make_events(150, 10 * number + i)) for i in range(2)),
                    ("validation-00000", "validation", make_events(60, 10 * number + 5)),
                ],
                data,
            )
    return config
