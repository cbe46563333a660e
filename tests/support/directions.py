"""Events of pulses and small models of directions, for tests."""

import numpy as np
import torch

from crpipe.events.batch import Events
from crpipe.workloads.direction import (
    DeepSet,
    DeepSetOptions,
    FlatTransformer,
    FlatTransformerOptions,
    HierarchicalTransformer,
    HierarchicalTransformerOptions,
)

SENSORS = 200
WORKLOADS = {
    "FlatTransformer": (
        FlatTransformer,
        FlatTransformerOptions,
        {"width": 16, "layers": 2, "heads": 2, "feedforward": 32, "head": 16},
    ),
    "HierarchicalTransformer": (
        HierarchicalTransformer,
        HierarchicalTransformerOptions,
        {"width": 16, "layers": 1, "pulse_layers": 2, "heads": 2, "feedforward": 32, "head": 16},
    ),
    "DeepSet": (DeepSet, DeepSetOptions, {"hidden": 16}),
}


def make_places(sensors=SENSORS, seed=3):
    """Sensors anywhere within half a kilometre: [sensors, 3] in m."""
    return np.random.default_rng(seed).uniform(-500, 500, (sensors, 3)).astype(np.float32)


def make_events(multiplicity, seed=0, sensors=SENSORS):
    """Pulses in the order of time, whole ns, with the truth of each event."""
    rng = np.random.default_rng(seed)
    multiplicity = np.asarray(multiplicity, np.uint32)
    events, pulses = len(multiplicity), int(multiplicity.sum())
    owner = np.repeat(np.arange(events), multiplicity)
    time = rng.integers(5_000, 15_000, pulses)
    time = time[np.lexsort((time, owner))]
    charge = rng.integers(1, 80, pulses) / 40
    items = [rng.integers(0, sensors, pulses), time, charge, rng.random(pulses) < 0.3]
    columns = {
        "event_id": np.arange(events) + 1000 * seed,
        "azimuth": rng.uniform(0, 2 * np.pi, events),
        "zenith": np.arccos(rng.uniform(-1, 1, events)),
    }
    return Events(columns, multiplicity, np.stack(items, axis=1).astype(np.float32))


def build(name="FlatTransformer", places=None, **options):
    """Build a small workload, and a model none of whose weights is zero: at first most blocks do nothing."""
    kind, kind_options, small = WORKLOADS[name]
    workload = kind(kind_options(**{**small, **options}))
    workload.places = make_places() if places is None else places
    torch.manual_seed(1)
    model = workload.model()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn(weight.shape))
    return workload, model.eval()


def predict(workload, model, events):
    with torch.no_grad():
        return workload.predict(model, events, torch.Generator())


def loss(workload, model, events, index=None, seed=()):
    """Collate some events and give the loss with its metrics."""
    index = np.arange(len(events)) if index is None else np.asarray(index)
    return workload.loss(model, workload.collate(events, index, seed), torch.Generator())


def changed(events, pulse, **values):
    """Copy events with other values (sensor, time, charge, auxiliary) of some pulses."""
    items = events.items.copy()
    for name, value in values.items():
        items[pulse, ("sensor", "time", "charge", "auxiliary").index(name)] = value
    return Events(events.columns, events.multiplicity, items)
