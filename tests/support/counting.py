"""A workload that predicts two columns for each event, without training: what inference is tested with."""

from dataclasses import replace

import numpy as np
from pydantic import BaseModel, ConfigDict, Field
from torch import nn

from crpipe.core.files import sha256, write_json
from crpipe.events.batch import Events, cut_lists
from crpipe.events.layout import Metric
from crpipe.statistics.classifier import LabelledRows
from crpipe.train.checkpoints import CheckpointStore
from crpipe.train.workload import OptimizerSpec, Phase
from crpipe.workloads.muons.layout import BUNDLES
from crpipe.workloads.muons.reading.parquet import Bundles
from named import READERS


class CountingOptions(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    width: int = 1
    repeats: int = Field(1, json_schema_extra={"scope": "site"})


# Options are found by the name of what they are of.
ShowingOptions = ListingOptions = EchoOptions = CountingOptions
GivenOptions = ClassifiedOptions = NeedsPlacesOptions = CountingOptions


class Counting:
    """Predicts the number of items of each event, and the sum of their first column."""

    metrics = (Metric("error", "mean error", unit="m", ideal=0.0), Metric("rare", "a rare number"))
    event_columns = ("energy_gev",)
    item_columns = ("energy_gev",)
    seen = staticmethod(lambda _: None)  # a test's way to look at every block, or to strike

    def __init__(self, options):
        self.options = options

    def size(self, events):
        return events.multiplicity

    def collate(self, events, index, seed):
        return {}

    def model(self):
        return nn.Linear(1, self.options.width)

    def phases(self):
        return [Phase("none", nn.Module.parameters, None, OptimizerSpec("adam", 1e-3))]

    def predict(self, model, events, generator):
        type(self).seen(events)
        owner = np.repeat(np.arange(len(events)), events.multiplicity)
        sums = np.bincount(owner, events.items[:, 0], minlength=len(events))
        return {"count": events.multiplicity, "sum_gev": sums.astype(np.float32)}

    def score(self, truth, prediction, folder):
        wrong = prediction["count"].astype(float) - truth.multiplicity
        return {"error": np.abs(wrong).mean(), "rare": np.nan, "own": 3.0, "items": len(truth.items)}


class Showing(Counting):
    """Looks at the events with the most items, the largest first."""

    metrics = (Metric("largest", "most items"),)
    choose = staticmethod(lambda truth: np.argsort(-truth.multiplicity.astype(int), kind="stable")[:30])
    look = staticmethod(lambda *_: {"largest": 1.0})

    def shown(self, truth, prediction):
        assert len(prediction["count"]) == len(truth)
        return type(self).choose(truth)

    def show(self, model, events, prediction, folder):
        (folder / "display.svg").write_text("<svg/>")
        return type(self).look(model, events, prediction)


class Listing(Counting):
    """Predicts a list for each event: the first column of its items, where there are more than ``least``."""

    least = 0

    def predict(self, model, events, generator):
        type(self).seen(events)
        kept = np.where(events.multiplicity > type(self).least, events.multiplicity, 0)
        values = events.items[np.repeat(kept > 0, events.multiplicity), 0]
        return {
            "size": events.multiplicity.astype(np.int16),
            "values": cut_lists(values, kept),
            "places": cut_lists(np.arange(len(values), dtype=np.int16), kept),
        }

    def score(self, truth, prediction, folder):
        return {"values": sum(map(len, prediction["values"]))}


class Echo(Counting):
    """Predicts whole events: those that came in, with a column of its own; generates constant items."""

    metrics = ()

    def predict(self, model, events, generator):
        type(self).seen(events)
        columns = {**events.columns, "guess": np.arange(len(events), dtype=np.float32)}
        return Events(columns, events.multiplicity, events.items)

    def score(self, truth, prediction, folder):
        return {"items": len(truth.items), "same": float(np.array_equal(truth.items, prediction.items))}

    def multiplicities(self, model, events, generator):
        return np.arange(len(events), dtype=np.int64)

    def generate(self, model, events, multiplicity, generator):
        type(self).seen(events)
        items = np.ones((int(multiplicity.sum()), 3), np.float32)
        return Events(events.columns, multiplicity.astype(np.uint32), items)


class Given(Echo):
    """Is judged with the true multiplicities, too."""

    def score_given(self, truth, prediction, folder):
        return {
            "given": float(np.array_equal(truth.items, prediction.items)),
            "counts": float(np.array_equal(truth.multiplicity, prediction.multiplicity)),
        }


class Classified(Echo):
    """Keeps the energies of true and predicted events."""

    def score(self, truth, prediction, folder):
        energies = np.concatenate([side.columns["energy_gev"] for side in (truth, prediction)])
        event = np.tile(np.arange(len(truth)), 2)
        real = np.arange(len(event)) < len(truth)
        rows = LabelledRows(energies[:, None], real, event, np.arange(len(truth)), np.ones(len(event)))
        return {"same": 1.0, "energies": rows}


class NeedsPlaces(Counting):
    """A workload that is trained with a side table."""

    needs = ("places",)

    def use(self, tables):
        self.tables = tables


class KeyedBundles:
    """The reader of bundles, whose events are known by energy and angle."""

    layout = replace(BUNDLES, key=("energy_gev", "zenith_rad"))
    needs = ()

    def rows(self, path, tables):
        return Bundles().rows(path, tables)

    def totals(self, path, tables):
        return Bundles().totals(path, tables)


class TwoTables:
    """The reader of bundles, for files that need two side tables."""

    layout = BUNDLES
    needs = ("places", "truth")
    seen = staticmethod(lambda _: None)

    def rows(self, path, tables):
        type(self).seen(tables)
        return Bundles().rows(path, tables)

    def totals(self, path, tables):
        return Bundles().totals(path, tables)


class Again:
    """A simulator that simulates the events a second time."""

    layout = BUNDLES

    def files(self, name):
        return []

    def write(self, name, file, seed, path):
        pass

    def tables(self, folder):
        return {}

    def again(self, columns, seed):
        count = len(columns["energy_gev"])
        return Events(dict(columns), np.zeros(count, np.uint32), np.zeros((0, 3), np.float32))

    def fresh(self, groups, seed):
        columns = {field.name: np.ones(groups, field.dtype) for field in BUNDLES.events}
        columns["primary_minor_id"] = np.arange(groups, dtype=np.uint64)
        return self.again(columns, seed)


NAMED = tuple(f"{__name__}:{name}" for name, each in vars().copy().items() if isinstance(each, type))


def checkpoint_of(folder, kind=Counting, link="0000000-0000999", **keys):
    """Write a checkpoint of an untrained model."""
    name = f"{kind.__module__}:{kind.__name__}"
    keys = {"train.workload": name, "source.reader": READERS["bundles"], "model.width": 1, **keys}
    weights = kind(CountingOptions()).model().state_dict()
    state = state_of({**BUNDLES.identity(), **keys}, weights, range=link)
    return CheckpointStore(folder, "k").save_checkpoint(state).path


def write_receipt(path, link, checkpoint, **more):
    """Write the receipt of a link's checkpoint as a training does; ``more`` replaces some fields."""
    receipt = {"range": link, "ranges": [link], "round": 1, "key": "k", "parent": "", "fingerprint": "f"}
    receipt |= {"checkpoint": checkpoint.name, "sha256": sha256(checkpoint)}
    receipt |= dict.fromkeys(("step", "events", "items", "skipped"), 0)
    write_json(path, receipt | more)


def state_of(keys, weights, **more):
    """Return the fields of a checkpoint; ``more`` replaces some."""
    counters = {"step": 7, "events": 12_345, "items": 678_901, "skipped": 0, "skipped_in_row": 0}
    state = {"format": 1, "keys": keys, "model": weights, "average": {}, "optimizers": {}, "shares": {}}
    return {**state, "counters": counters | {"range_step": 7, "cursor": [0, 0]}, **more}
