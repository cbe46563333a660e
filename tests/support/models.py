"""The model verbs on a configuration, as the command line calls them."""

import json

import pytest
import torch

from crpipe.campaign.campaign import Campaign
from crpipe.core.errors import Interrupted
from crpipe.inference.evaluate import evaluate_link
from crpipe.train.checkpoints import load
from crpipe.train.link import train_link
from told import Told
from toy import RANGES


def train_range(config, name, progress, **options):
    train_link(Campaign.open(config), name, progress, **options)


def trained(config, name=RANGES[0], **options):
    """Train a link; return its receipt, its checkpoint, and what a person was told."""
    told = Told()
    train_range(config, name, told, **options)
    receipt = json.loads(config.paths().receipt(name).read_text())
    return receipt, load(config.paths().store(name) / receipt["checkpoint"]), str(told)


def interrupted(config, name=RANGES[0]):
    """Train a link until it stops after its next step; return its newest snapshot."""
    with pytest.raises(Interrupted):
        train_range(config, name, Told(), max_minutes=1e-9)
    return max(config.paths().store(name).glob("snapshot-*.pt"))


def equal(one, other):
    """Compare two states of a training, bit for bit."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[name], other[name]) for name in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(equal, one, other))
    return one == other


def evaluate_range(config, name, progress):
    evaluate_link(Campaign.open(config), name, progress)
