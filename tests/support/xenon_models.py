"""Small models of the xenon detector, for tests."""

import numpy as np
import torch

from crpipe.events.batch import Events
from crpipe.workloads.xec import (
    Inpainter,
    InpainterOptions,
    MaskedAutoencoder,
    MaskedAutoencoderOptions,
    Regressor,
    RegressorOptions,
)
from crpipe.workloads.xec.layout import SENSORS
from crpipe.workloads.xec.sensors import sensor_map

PLACES = sensor_map()
WORKLOADS = {
    "Regressor": (Regressor, RegressorOptions),
    "MaskedAutoencoder": (MaskedAutoencoder, MaskedAutoencoderOptions),
    "Inpainter": (Inpainter, InpainterOptions),
}
SMALL = {
    "channels": 4,
    "blocks": (1, 1),
    "hex_blocks": 1,
    "width": 16,
    "layers": 1,
    "heads": 2,
    "feedforward": 16,
}
ALL_TASKS = {"energy": {}, "position": {}, "time": {}, "angle": {}}


def workload(name="Regressor", **options):
    """Build a workload of small models that knows where the sensors are."""
    kind, kind_options = WORKLOADS[name]
    found = kind(kind_options(**{**SMALL, **options}))
    found.places = PLACES
    return found


def build(name="Regressor", **options):
    """Build a workload, and a model none of whose weights is zero: at first many blocks do nothing."""
    made = workload(name, **options)
    torch.manual_seed(1)
    model = made.model()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.05 * torch.randn(weight.shape))
    return made, model.eval()


def collate(made, events, index=None, seed=()):
    return made.collate(events, np.arange(len(events)) if index is None else np.asarray(index), seed)


def loss(made, model, events, index=None, seed=()):
    """Collate some events and give the loss with its metrics."""
    return made.loss(model, collate(made, events, index, seed), torch.Generator())


def predict(made, model, events, seed=1):
    with torch.no_grad():
        return made.predict(model, events, torch.Generator().manual_seed(seed))


def validate(made, model, events):
    with torch.no_grad():
        return made.validate(model, events, torch.Generator())


def with_items(events, change):
    """Copy events; change: a function that edits their sensors [N, 4760, 4] in place."""
    items = events.items.reshape(len(events), SENSORS, 4).copy()
    change(items)
    return Events(events.columns, events.multiplicity, items.reshape(-1, 4))
