"""What a link is trained on: device, ranks and versions, for the journal and the reports."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

import torch

from crpipe import __version__

if TYPE_CHECKING:
    from crpipe.train.ranks import World


def machine(world: World) -> dict[str, str | int]:
    """Name the device of the leading rank, the number of ranks, and the versions that compute."""
    gpu = world.device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(world.device) if gpu else world.device.type,
        "ranks": world.size,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "crpipe": __version__,
    }
