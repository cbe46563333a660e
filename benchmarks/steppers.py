"""A stepper of crpipe for benchmarks: the configuration, as a tree, and the device are given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from crpipe.config.loading import validate
from crpipe.train.meter import Meter
from crpipe.train.ranks import World
from crpipe.train.state import TrainState
from crpipe.train.step import Stepper
from crpipe.train.workload import build_workload

if TYPE_CHECKING:
    from collections.abc import Mapping

    from crpipe.config.loading import Config

MUON_GAN = "crpipe.workloads.muons:MuonGan"


def stepper_of(tree: Mapping[str, Any], world: World | torch.device, seed: int = 1) -> tuple[Config, Stepper]:
    """Build a workload with fresh weights, and what trains it; without another name it is MuonGan."""
    if isinstance(world, torch.device):
        world = World(0, 1, world)
    config = validate(dict(tree) | {"train": {"workload": MUON_GAN, **tree.get("train", {})}})
    workload = build_workload(config.train.workload, config.options())
    torch.manual_seed(seed)
    state = TrainState(workload.model(), workload.phases(), seed, world.device)
    return config, Stepper(config.train, config.load, workload, state, world, Meter(world.device))
