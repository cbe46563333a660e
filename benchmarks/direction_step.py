"""A training step beside iceaggr's, and the memory that a very large event takes.

Run by benchmarks/direction.py in a process of its own; prints JSON. Both networks get the same events, as
many weights, AdamW and clipping. The batches are collated before: loading is measured apart.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import statistics
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from direction_peers import DOMS, PULSES
from peak import peak_mib
from side_by_side import prepared_steps

from crpipe.config.sections import LoadSection, TrainSection
from crpipe.loading.loader import Loader
from crpipe.train.meter import Meter
from crpipe.train.ranks import World
from crpipe.train.state import TrainState
from crpipe.train.step import Stepper
from crpipe.workloads.direction import FlatTransformer, FlatTransformerOptions

if TYPE_CHECKING:
    from typing import Literal

    from crpipe.events.batch import Cursor, Events

    Group = tuple[Events, Cursor]
    Precision = Literal["float32", "bfloat16"]

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
BATCH = 256


def weights(model: torch.nn.Module) -> int:
    """Count the trained numbers of a network."""
    return sum(parameter.numel() for parameter in model.parameters())


def prepare(
    geometry: Path,
    size: str,
    batch_events: int,
    budget: int = 2_000_000,
    *,
    device: str = "cpu",
    doms: int = DOMS,
    precision: Precision = "float32",
) -> tuple[FlatTransformer, Stepper]:
    """Build the workload and what trains it; budget: most sensors in a micro-batch, doms: in an event."""
    options = FlatTransformerOptions(pulses_per_dom=PULSES, max_doms=doms, learning_rate=RATE, **SIZES[size])
    workload = FlatTransformer(options)
    workload.use({"geometry": geometry})
    torch.manual_seed(1)
    place = torch.device(device)
    state = TrainState(workload.model(), workload.phases(), 1, place)
    load = LoadSection(batch_events=batch_events, budget_items=budget)
    train = TrainSection(precision=precision)
    return workload, Stepper(train, load, workload, state, World(0, 1, place), Meter(place))


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
        made = [{name: pinned(value) for name, value in batch.items()} for batch in made]
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


def pinned(value: Any) -> Any:
    """Put a tensor where a GPU copies it from beside other work."""
    return value.pin_memory() if torch.is_tensor(value) else value


def single_events(events: Events) -> list[dict[str, torch.Tensor]]:
    """Give events as iceaggr's data set does, one by one."""
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


def measure_steps(
    shards: Path,
    geometry: Path,
    size: str,
    rounds: int,
    *,
    device: str = "cpu",
    doms: int = DOMS,
    precision: Precision = "float32",
    peer: bool = True,
) -> dict[str, Any]:
    """Give the times (wall, CPU) of a step in each round, in turn, with numbers of weights and padding."""
    loader = Loader(shards, "train", batch_events=BATCH, seed=(2,), epochs=1, prefetch=0)
    with closing(loader.batches()) as stream:
        groups = [group for group, _ in zip(stream, range(4), strict=False)]
    _, stepper = prepare(geometry, size, BATCH, device=device, doms=doms, precision=precision)
    all_steps = {"crpipe": prepared_steps(stepper, groups)}
    padding = [
        batch["cut"][0].item() for group in groups for batch, _ in stepper.collate_ahead(group, (1,))[2]
    ]
    found: dict[str, Any] = {
        "crpipe": {"weights": weights(stepper.state.model), "padding": statistics.mean(padding)}
    }
    for dropout in (0.0, 0.1) if peer else ():
        name = f"iceaggr, dropout {dropout:g}"
        model, all_steps[name], share = theirs(geometry, size, dropout, groups, device, doms)
        found[name] = {"weights": weights(model), "padding": share}
    for each in found.values():
        each["times"] = []
    for number in range(rounds + 1):
        for name, steps in all_steps.items():
            wall, cpu = time.perf_counter(), time.process_time()
            for step in steps:
                step()
            if number:  # the first one fills caches
                seconds = time.perf_counter() - wall, time.process_time() - cpu
                found[name]["times"].append([each / len(steps) for each in seconds])
    return found


def measure_memory(shards: Path, geometry: Path, _: str, budget: int) -> dict[str, Any]:
    """Load an epoch that holds the largest event, and train a step on each batch; give the peak in MiB."""
    _, stepper = prepare(geometry, "0.5 M", BATCH, budget)
    resident = next(
        int(line.split()[1]) / 1024
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("VmRSS")
    )
    largest, peak_at = 0, 0.0
    loader = Loader(shards, "train", batch_events=BATCH, seed=(1,), epochs=1)
    with closing(loader.made(lambda group: stepper.collate_ahead(group, (1,)), workers=1)) as stream:
        for events, cursor, micro in stream:
            stepper.step([(events, cursor)], (1,), 1.0, ready={cursor: micro})
            largest = max(largest, int(events.multiplicity.max()))
            peak_at = max(peak_at, peak_mib())
    return {"before": resident, "peak": peak_at, "largest": largest}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["step", "memory"])
    parser.add_argument("shards", type=Path)
    parser.add_argument("geometry", type=Path)
    parser.add_argument("size", choices=SIZES)
    parser.add_argument("number", type=int, help="rounds of steps, or the budget of a micro-batch")
    parser.add_argument("--device", default="cpu", help="of the step")
    given = parser.parse_args()
    place = given.shards, given.geometry, given.size, given.number
    steps = functools.partial(measure_steps, device=given.device)
    found = (steps if given.what == "step" else measure_memory)(*place)
    print(json.dumps(found), file=sys.stdout)


if __name__ == "__main__":
    main()
