"""A trained model from a checkpoint file alone: the checkpoint says which workload with which options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from crpipe.config import workload_config
from crpipe.errors import CheckpointError
from crpipe.files import read_json
from crpipe.train.run import build_workload
from crpipe.train.store import load, verified

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn

    from crpipe.train.workload import Workload


@dataclass(frozen=True, slots=True)
class Trained:
    """A workload with its trained model, averaged weights in place, ready to predict."""

    workload: Workload
    model: nn.Module
    checkpoint: dict[str, Any]
    sha256: str


def open_checkpoint(path: Path, device: str = "cpu") -> Trained:
    """Load a checkpoint, or the one that a receipt points to; raise CheckpointError when it is damaged."""
    saved = verified(_resolve(path))
    checkpoint = load(saved.path)
    keys = checkpoint["keys"]
    name = keys["train.workload"]
    workload = build_workload(name, workload_config(name).model_validate(_nested(keys, "model.")))
    model = workload.model()
    model.load_state_dict(checkpoint["model"])
    with torch.no_grad():
        named = dict(model.named_parameters())
        for parameter, value in checkpoint["average"].items():
            named[parameter].copy_(value)
    return Trained(workload, model.to(device).eval(), checkpoint, saved.sha256)


def _resolve(path: Path) -> Path:
    if path.suffix != ".json":
        return path
    receipt = read_json(path)
    if not isinstance(receipt, dict) or "checkpoint" not in receipt:
        raise CheckpointError(
            f"{path}: not a receipt; name a checkpoint (.pt) or runs/<run>/ranges/<range>.json"
        )
    found: Path = path.parent.parent / "store" / receipt["range"] / receipt["checkpoint"]
    return found


def _nested(keys: dict[str, Any], prefix: str) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, value in keys.items():
        if name.startswith(prefix):
            *parents, leaf = name.removeprefix(prefix).split(".")
            node = tree
            for parent in parents:
                node = node.setdefault(parent, {})
            node[leaf] = value
    return tree
