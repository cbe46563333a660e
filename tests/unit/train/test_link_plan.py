"""What a link trains on follows from its campaign and its place in the chain; so do its histograms.

A workload gets those before its model is built, and only in training.
"""

import json

import numpy as np
import pytest
import torch

from crpipe.campaign.campaign import Campaign
from crpipe.core.errors import ConfigError, PluginError
from crpipe.core.paths import CONSOLIDATED, OUTLIERS
from crpipe.core.text import NullProgress
from crpipe.events.histograms import Histogram
from crpipe.inference.checkpoints import open_checkpoint
from crpipe.inference.probe import probe_batch, read_batch
from crpipe.loading.loader import RangeShards
from crpipe.train.link_plan import LinkPlan
from crpipe.train.ranks import World
from crpipe.workloads.muons.layout import nested_table
from models import train_range
from toy import RANGES, Toy, ToyOptions, make_events, toy_config

BINNING = [1.0, 2.0, 4]
WORLD = World(0, 1, torch.device("cpu"))


def test_the_links_of_a_chain_follow_each_other(tmp_path):
    campaign = Campaign.open(toy_config(tmp_path))
    plans = [LinkPlan(campaign, link) for link in campaign.chain.links]
    assert [plan.link.name for plan in plans] == [*RANGES, OUTLIERS]
    assert [plan.progress for plan in plans] == [(0, 1 / 3), (1 / 3, 2 / 3), (2 / 3, 1), (1, 1)]
    events = [plan.open_loader(WORLD).events for plan in plans]
    assert events == [300, 300, 300, 40]
    folders = [*map(campaign.paths.shards, RANGES), campaign.paths.outliers(CONSOLIDATED)]
    assert [plan.shards for plan in plans] == [(folder,) for folder in folders]
    assert len({plan.seed for plan in plans}) == 4
    assert {plan.validation for plan in plans} == {(RangeShards.of(campaign.paths, RANGES[0]),)}


class Balanced(Toy):
    """Wants the histogram of the energy before its model is built."""

    calls = ()

    def __init__(self, options):
        super().__init__(options)
        self.wanted_histograms = ("energy_gev",)

    def use_histograms(self, histograms):
        Balanced.calls = (*Balanced.calls, histograms)
        self.found = histograms

    def model(self):
        Balanced.calls = (*Balanced.calls, "model")
        return super().model()


BalancedOptions = ToyOptions


@pytest.fixture
def config(tmp_path):
    """Three split ranges, each with a histogram of its own in its manifest."""
    Balanced.calls = ()
    config = toy_config(
        tmp_path,
        split={"histograms": {"energy_gev": BINNING}},
        train={"workload": f"{__name__}:Balanced"},
    )
    for number, name in enumerate(RANGES):
        path = config.paths().shards(name) / "manifest.json"
        histogram = Histogram(1.0, 2.0, 10**number * np.arange(4), number, 5).describe()
        tree = json.loads(path.read_text())
        path.write_text(json.dumps({**tree, "histograms": {"energy_gev": histogram}}))
    return config


def counts(call):
    (histogram,) = call.values()
    return histogram.counts.tolist(), histogram.under, histogram.over


def test_the_histograms_come_before_the_model_and_never_in_inference(config):
    train_range(config, RANGES[0], NullProgress())
    histograms, model, *rest = Balanced.calls
    assert counts(histograms) == ([0, 1, 2, 3], 0, 5)
    assert (model, rest) == ("model", [])
    Balanced.calls = ()
    open_checkpoint(config.paths().receipt(RANGES[0]), allowed_plugins=[f"{__name__}:Balanced"])
    assert Balanced.calls == ("model",)


def test_they_are_those_of_all_ranges_of_the_link(config, tmp_path):
    together = toy_config(
        tmp_path,
        split={"histograms": {"energy_gev": BINNING}},
        train={"workload": f"{__name__}:Balanced", "ranges_per_link": 2},
        run="together",
    )
    campaign = Campaign.open(together)
    assert campaign.chain.names[-1] == OUTLIERS
    for link in campaign.chain.names:
        train_range(together, link, NullProgress())
    assert counts(Balanced.calls[0]) == ([0, 11, 22, 33], 1, 10)
    assert counts(Balanced.calls[-2]) == ([0, 111, 222, 333], 3, 15)  # outliers have none of their own


def test_shards_without_a_wanted_histogram_are_refused(config):
    path = config.paths().shards(RANGES[0]) / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "histograms": {}}))
    with pytest.raises(
        ConfigError, match=r"Balanced wants a histogram of energy_gev, which split.histograms"
    ):
        train_range(config, RANGES[0], NullProgress())


def test_an_error_of_the_workload_is_named(config, monkeypatch):
    monkeypatch.setattr(Balanced, "use_histograms", lambda *_: 1 // 0)
    with pytest.raises(PluginError, match="Balanced.use_histograms failed: ZeroDivisionError"):
        train_range(config, RANGES[0], NullProgress())


def test_a_probe_uses_those_of_its_range_or_of_its_batch(config, tmp_path):
    import pyarrow.parquet as pq

    campaign = Campaign.open(config)
    probe_batch(campaign, read_batch(campaign, (), RANGES[1]), 1, NullProgress())
    assert counts(Balanced.calls[0]) == ([0, 10, 20, 30], 1, 5)
    events = make_events(12, 1)
    path = tmp_path / "raw.parquet"
    pq.write_table(nested_table(events.columns, events.multiplicity, np.abs(events.items)), path)
    Balanced.calls = ()
    probe_batch(campaign, read_batch(campaign, [path], ""), 1, NullProgress())
    expected = Histogram.of(events.columns["energy_gev"], (1.0, 2.0, 4))
    assert counts(Balanced.calls[0]) == (expected.counts.tolist(), 0, 0)
