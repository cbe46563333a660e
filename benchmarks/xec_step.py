"""A training step beside xec-ml-wl's, and the cost of a split.

Run by benchmarks/xec.py in a process of its own; prints JSON. Both networks get the same events and learn
energy and position, with clipping, AdamW and averaged weights; theirs gets them normalised, ours has its
codec in the network. The batches are ready before: loading is measured apart.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xec_data as data
from peak import peak_mib
from side_by_side import prepared_steps

from crpipe.config.sections import LoadSection, TrainSection
from crpipe.loading.loader import Loader
from crpipe.train.meter import Meter
from crpipe.train.ranks import World
from crpipe.train.state import TrainState
from crpipe.train.step import Stepper
from crpipe.workloads.xec import Regressor, RegressorOptions

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Literal

    from crpipe.events.batch import Cursor, Events

    Group = tuple[Events, Cursor]
    Precision = Literal["float32", "bfloat16"]

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


def weights(model: torch.nn.Module, used: tuple[str, ...] = ("",)) -> int:
    """Count the trained numbers of a network; of its heads only those that are used."""
    return sum(
        parameter.numel()
        for name, parameter in model.named_parameters()
        if not name.startswith("heads.") or name.split(".")[1] in used or used == ("",)
    )


def ours(
    raw: Path, size: str, groups: list[Group], place: str = "cpu", precision: Precision = "float32"
) -> tuple[torch.nn.Module, list[Callable[[], object]]]:
    """Prepare a step of crpipe for each batch: all that training does but collating."""
    options = RegressorOptions(learning_rate=RATE, weight_decay=DECAY, **SIZES[size])
    workload = Regressor(options)
    workload.use({"sensors": data.sensors(raw)})
    torch.manual_seed(1)
    device = torch.device(place)
    state = TrainState(workload.model(), workload.phases(), 1, device)
    train = TrainSection(clip_norm=CLIP, ema=AVERAGE, precision=precision)
    load = LoadSection(batch_events=len(groups[0][0]))
    stepper = Stepper(train, load, workload, state, World(0, 1, device), Meter(device))
    return state.model, prepared_steps(stepper, groups)


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
    """Give events as their loader does: photons and times, -1 where not valid, [B, 4760, 2]; truth."""
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


def measure_steps(given: argparse.Namespace) -> dict[str, Any]:
    """Give the times (wall, CPU) of a step in each round, in turn, with the weights in use."""
    folders = data.shards(given.raw)
    loader = Loader(folders, "train", batch_events=given.batch, seed=(2,), epochs=1, prefetch=0)
    with closing(loader.batches()) as stream:
        groups = [group for group, _ in zip(stream, range(given.steps), strict=False)]
    model, steps = ours(given.raw, given.size, groups, given.device, given.precision)
    all_steps = {"crpipe": steps}
    found: dict[str, Any] = {"crpipe": {"weights": weights(model)}}
    for name, dropout in (("xec-ml-wl", True), ("xec-ml-wl, no dropout", False)) if given.peer else ():
        model, all_steps[name] = theirs(given.size, groups, dropout=dropout, device=given.device)
        found[name] = {"weights": weights(model, tuple(THEIR_TASKS)), "built": weights(model)}
    on_gpu = given.device != "cpu"
    for each in found.values():
        each["times"] = []
    for number in range(given.rounds + 1):
        for name, steps in all_steps.items():
            if on_gpu:
                torch.cuda.reset_peak_memory_stats()
                before = torch.cuda.memory_allocated()  # weights and optimizers of all of them
            wall, cpu = time.perf_counter(), time.process_time()
            for step in steps[: 1 if not number else None]:  # the first one fills caches
                step()
            if on_gpu:
                torch.cuda.synchronize()
                step_mib = (torch.cuda.max_memory_allocated() - before) / 2**20
                found[name]["mib"] = max(step_mib, found[name].get("mib", 0.0))
            if number:
                seconds = time.perf_counter() - wall, time.process_time() - cpu
                found[name]["times"].append([each / len(steps) for each in seconds])
    return found


def measure_split(given: argparse.Namespace) -> dict[str, Any]:
    """Split all ranges of a folder, and read an epoch; give the times and the largest resident set."""
    data.forget(given.raw)
    names = data.staged(given.raw)
    before = resident_mib()
    wall, cpu = time.perf_counter(), _cpu()
    folders = data.split(given.raw, names)
    found: dict[str, Any] = {"before": before, "peak": peak_mib()}
    found["split"] = time.perf_counter() - wall, _cpu() - cpu
    wall, cpu, events, total = time.perf_counter(), _cpu(), 0, 0
    loader = Loader(folders, "train", batch_events=given.batch, seed=(1,), epochs=1)
    with closing(loader.batches()) as stream:
        for batch, _ in stream:
            events += len(batch)
            total += int((batch.columns["run"] * data.RUN + batch.columns["event"]).sum())
    found |= {"events": events, "ids": total, "load": (time.perf_counter() - wall, _cpu() - cpu)}
    found["bytes"] = sum(path.stat().st_size for folder in folders for path in folder.iterdir())
    if given.forget:
        data.forget(given.raw)
        shutil.rmtree(given.raw / "runs", ignore_errors=True)
    return found


def resident_mib() -> float:
    """Give this process's resident set."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def _cpu() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def main() -> None:
    """Measure and print; whatever others print goes to standard error."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["step", "split"])
    parser.add_argument("raw", type=Path)
    parser.add_argument("--size", choices=SIZES, default="0.65 M")
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=4, help="batches of a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer", action="store_true", help="also steps of xec-ml-wl")
    parser.add_argument("--device", default="cpu", help="of the step")
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="float32", help="of ours")
    parser.add_argument("--forget", action="store_true", help="delete the shards at the end")
    given = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    found = measure_steps(given) if given.what == "step" else measure_split(given)
    print(json.dumps(found), file=answers, flush=True)


if __name__ == "__main__":
    main()
