"""The model verbs on a configuration, as the command line calls them."""

import json

import pytest

from crpipe.campaign.campaign import Campaign
from crpipe.core.errors import Interrupted
from crpipe.inference.evaluate import evaluate_link
from crpipe.train.checkpoints import load
from crpipe.train.link import train_link
from told import Told


def train_range(config, name, progress, **options):
    train_link(Campaign.open(config), name, progress, **options)


def trained(config, name, **options):
    """Train a link; return its receipt, its checkpoint, and what a person was told."""
    told = Told()
    train_range(config, name, told, **options)
    receipt = json.loads(config.paths().receipt(name).read_text())
    return receipt, load(config.paths().store(name) / receipt["checkpoint"]), str(told)


def interrupted(config, name):
    """Train a link until it stops after its next step; return its newest snapshot."""
    with pytest.raises(Interrupted):
        train_range(config, name, Told(), max_minutes=1e-9)
    return max(config.paths().store(name).glob("snapshot-*.pt"))


def evaluate_range(config, name, progress):
    evaluate_link(Campaign.open(config), name, progress)
