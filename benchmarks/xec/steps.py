"""A training step of gammas beside xec-ml-wl's, and a split.

Both networks get the same events and learn energy and position, with clipping, AdamW and averaged weights;
theirs gets them normalised, ours has its codec in the network. The batches are ready before: loading is
measured apart.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from benchmarks import campaigns, steppers
from benchmarks.xec import data

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Literal

    from crpipe.events.batch import Cursor, Events
    from crpipe.train.step import Stepper

    Group = tuple[Events, Cursor]
    Precision = Literal["float32", "bfloat16", "float16"]

SIZES: dict[str, dict[str, Any]] = {
    "0.65 M": {},
    "29 M": {"width": 1024, "layers": 2, "heads": 8, "feedforward": 4096, "head": 168},
}
# Theirs has a network of six quantities in any case, of which two are in use here, and counted. 29 M: its
# default.
THEIR_SIZES: dict[str, dict[str, Any]] = {
    "0.65 M": {"encoder_dim": 128, "num_fusion_layers": 2, "dim_feedforward": 176, "hidden_dim": 64},
    "29 M": {"encoder_dim": 1024, "num_fusion_layers": 2, "dim_feedforward": 4096, "hidden_dim": 256},
}
THEIR_TASKS = {"energy": ("energy_gev",), "uvwFI": ("u_cm", "v_cm", "w_cm")}
CLIP, AVERAGE, RATE, DECAY = 1.0, 0.999, 3e-4, 1e-4  # their defaults, for both
CHANNEL_DROPOUT = 0.1


def used_weights(model: torch.nn.Module) -> int:
    """Count the trained numbers of their network without the heads that are not used."""
    return sum(
        parameter.numel()
        for name, parameter in model.named_parameters()
        if not name.startswith("heads.") or name.split(".")[1] in THEIR_TASKS
    )


def prepare(
    raw: Path, size: str, batch_events: int, *, device: str = "cpu", precision: Precision = "float32"
) -> Stepper:
    """Build what trains crpipe's network."""
    train = {"gradient_clip_norm": CLIP, "ema_decay": AVERAGE, "precision": precision}
    tree = {
        "train": {"workload": "crpipe.workloads.xec:Regressor", **train},
        "load": {"batch_size": batch_events},
        "model": {"learning_rate": RATE, "weight_decay": DECAY, **SIZES[size]},
    }
    return steppers.stepper_of(tree, torch.device(device), tables={"sensors": data.sensors(raw)})[1]


def theirs(
    size: str, groups: list[Group], *, dropout: bool, device: str = "cpu"
) -> tuple[torch.nn.Module, list[Any]]:
    """Prepare a step of xec-ml-wl for each batch, as its engine does in float32."""
    from lib.models import XECEncoder, XECMultiHeadModel  # type: ignore[import-not-found]  # noqa: PLC0415
    from lib.utils import get_pointwise_loss_fn  # type: ignore[import-not-found]  # noqa: PLC0415

    options = dict(THEIR_SIZES[size])
    hidden = options.pop("hidden_dim")
    torch.manual_seed(1)
    encoder = XECEncoder(sentinel_time=-1.0, **options)
    model = XECMultiHeadModel(encoder, hidden_dim=hidden, active_tasks=list(THEIR_TASKS)).to(device)
    if not dropout:
        _without_dropout(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY)
    average = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(AVERAGE)
    )
    loss_of = get_pointwise_loss_fn("smooth_l1", beta=0.1)
    steps = []
    for events, _ in groups:
        inputs, truth = normalised(events)
        if device != "cpu":  # as its loader does
            inputs, truth = inputs.pin_memory(), {name: each.pin_memory() for name, each in truth.items()}

        def step(inputs: torch.Tensor = inputs, truth: Any = truth) -> None:
            given = inputs.to(device, non_blocking=True)
            wanted = {name: each.to(device, non_blocking=True) for name, each in truth.items()}
            if dropout:
                given = given * (torch.rand(*inputs.shape[:2], 1, device=device) >= CHANNEL_DROPOUT)
            found = model(given)
            loss = sum(loss_of(found[name], wanted[name]).mean(dim=-1).mean() for name in found)
            loss.item()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            average.update_parameters(model)
            optimizer.zero_grad(set_to_none=True)

        steps.append(step)
    model.train()
    return model, steps


def _without_dropout(model: torch.nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        elif isinstance(module, torch.nn.MultiheadAttention):
            module.dropout = 0.0


def normalised(events: Events) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return events as their loader does: photons and times, -1 where not valid, [B, 4760, 2]; truth."""
    photons, times, photons_valid, times_valid = np.moveaxis(events.items.reshape(len(events), -1, 4), 2, 0)
    logs = np.log1p(np.maximum(photons, -999.0) / 1000.0) / 4.08
    channels = [
        np.where(photons_valid > 0, logs, -1.0),
        np.where(times_valid > 0, times / 114.0 + 0.46, -1.0),
    ]
    truth = {
        name: torch.from_numpy(np.stack([events.columns[column] for column in columns], axis=1))
        for name, columns in THEIR_TASKS.items()
    }
    return torch.from_numpy(np.stack(channels, axis=-1).astype(np.float32)), truth


def side(
    raw: str,
    size: str,
    batch: int,
    steps: int,
    *,
    dropout: bool | None = None,
    device: str = "cpu",
    precision: Precision = "float32",
) -> Callable[[], dict[str, Any]]:
    """Prepare so many steps: of crpipe, or with ``dropout`` on or off of xec-ml-wl."""
    groups = steppers.batches_of(data.shards(Path(raw)), batch, steps)
    if dropout is None:
        stepper = prepare(Path(raw), size, batch, device=device, precision=precision)
        answer = {"weights": steppers.weights(stepper.state.model)}
        return steppers.in_turn(steppers.prepared_steps(stepper, groups), answer, device)
    model, made = theirs(size, groups, dropout=dropout, device=device)
    answer = {"weights": used_weights(model), "built": steppers.weights(model)}
    return steppers.in_turn(made, answer, device)


def split(raw: str) -> Callable[[], int]:
    """Prepare the split of all ranges of a folder; its work returns the bytes of the shards."""
    folder = Path(raw)
    names = campaigns.stage_all(data.configured(folder))
    return lambda: sum(path.stat().st_size for each in data.split(folder, names) for path in each.iterdir())
