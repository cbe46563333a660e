"""A training step of directions beside iceaggr's.

Both networks get the same events, as many weights, AdamW and clipping. The batches are collated before:
loading is measured apart.
"""

from __future__ import annotations

import itertools
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from benchmarks import steppers
from benchmarks.direction.loaders import DOMS, PULSES

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Literal

    from crpipe.events.batch import Cursor, Events
    from crpipe.train.step import Stepper

    Group = tuple[Events, Cursor]
    Precision = Literal["float32", "bfloat16", "float16"]

SIZES = {
    "0.5 M": {"width": 128, "layers": 4, "heads": 8, "feedforward": 256, "head": 128},
    "5 M": {"width": 256, "layers": 6, "heads": 8, "feedforward": 1024, "head": 1024},
}
THEIR_NAMES = {
    "width": "d_model",
    "layers": "num_layers",
    "heads": "num_heads",
    "feedforward": "hidden_dim",
    "head": "head_hidden_dim",
}
RATE = 1e-4
BATCH, GROUPS = 256, 4


def prepare(
    geometry: Path,
    size: str,
    batch_events: int,
    *,
    device: str = "cpu",
    doms: int = DOMS,
    precision: Precision = "float32",
) -> Stepper:
    """Build what trains crpipe's network; doms: most sensors in an event."""
    tree = {
        "train": {"workload": "crpipe.workloads.direction:FlatTransformer", "precision": precision},
        "load": {"batch_size": batch_events, "max_items": 2_000_000},
        "model": {"pulses_per_dom": PULSES, "max_doms": doms, "learning_rate": RATE, **SIZES[size]},
    }
    return steppers.stepper_of(tree, torch.device(device), tables={"geometry": geometry})[1]


def theirs(
    geometry: Path, size: str, dropout: float, groups: list[Group], device: str = "cpu", doms: int = DOMS
) -> tuple[Any, list[Any], float]:
    """Prepare a step of iceaggr for each batch, as its script train_flat.py does; also its padding."""
    from iceaggr.data import (  # type: ignore[import-not-found]  # noqa: PLC0415
        GeometryLoader,
        make_collate_flat,
    )
    from iceaggr.models import (  # type: ignore[import-not-found]  # noqa: PLC0415
        FlatTransformerV2,
        angular_distance_loss,
    )

    config = {THEIR_NAMES[name]: value for name, value in SIZES[size].items()}
    config |= {"max_pulses_per_dom": PULSES, "max_doms": doms, "dropout": dropout, "input_mode": "linear"}
    torch.manual_seed(1)
    model = FlatTransformerV2(config).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01)
    collate = make_collate_flat(GeometryLoader(geometry), PULSES, doms)
    made = [collate(single_events(events)) for events, _ in groups]
    if device != "cpu":  # as its script asks its loader to do
        made = [
            {name: value.pin_memory() if torch.is_tensor(value) else value for name, value in batch.items()}
            for batch in made
        ]
    steps = []
    for batch in made:

        def step(batch: Any = batch) -> None:
            optimizer.zero_grad()
            sent = {name: value for name, value in batch.items() if torch.is_tensor(value)}
            batch = {name: value.to(device, non_blocking=True) for name, value in sent.items()}
            loss = angular_distance_loss(model(batch["dom_vectors"], batch["padding_mask"]), batch["targets"])
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
            optimizer.step()
            loss.item()

        steps.append(step)
    real = sum(int(batch["padding_mask"].sum()) for batch in made)
    return model, steps, 1 - real / sum(batch["padding_mask"].numel() for batch in made)


def single_events(events: Events) -> list[dict[str, torch.Tensor]]:
    """Return events as iceaggr's data set does, one by one."""
    ends = events.offsets()
    truth = np.stack([events.columns["azimuth"], events.columns["zenith"]], axis=1).astype(np.float32)
    return [
        {
            "pulse_features": torch.from_numpy(events.items[low:high][:, [1, 2, 0, 3]]),
            "event_id": torch.tensor(row),
            "n_pulses": torch.tensor(high - low),
            "target": torch.from_numpy(truth[row]),
        }
        for row, (low, high) in enumerate(itertools.pairwise(ends))
    ]


def side(
    shards: str,
    geometry: str,
    size: str,
    *,
    batch: int = BATCH,
    dropout: float | None = None,
    device: str = "cpu",
    doms: int = DOMS,
    precision: Precision = "float32",
) -> Callable[[], dict[str, Any]]:
    """Prepare steps on four batches: of crpipe, or with a ``dropout`` of iceaggr."""
    groups = steppers.batches_of(Path(shards), batch, GROUPS)
    if dropout is not None:
        model, steps, share = theirs(Path(geometry), size, dropout, groups, device, doms)
        return steppers.in_turn(steps, {"weights": steppers.weights(model), "padding": share}, device)
    stepper = prepare(Path(geometry), size, batch, device=device, doms=doms, precision=precision)
    padding = [made["cut"][0].item() for group in groups for made, _ in stepper.collate_ahead(group, (1,))[2]]
    answer = {"weights": steppers.weights(stepper.state.model), "padding": statistics.mean(padding)}
    return steppers.in_turn(steppers.prepared_steps(stepper, groups), answer, device)
