"""How fast a training step is, side by side with the earlier system's own step on the same batch.

One command: ``python benchmarks/training.py --cr-muons PATH`` (a clone of its public repository; without it
only crpipe is measured). Rounds of all in turn, medians, the same threads. Either system scores the same
real muons and as many generated ones in each critic step, and takes a gradient penalty on as many muons in
the same critic steps. crpipe runs with its own networks, and so narrow that its critic has no more parameters
than the earlier system's; each in float32 and in bfloat16. With several threads each of these also trains in
as many processes of one thread, which divide each batch among them and reduce their gradients. ``--extra
compile`` turns on what crpipe alone offers; ``--extra bfloat16`` leaves out the rows in float32. On a CPU the
step in float32 is also compared with what the processor and its memory can do.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import statistics
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from in_processes import in_processes
from roofline import Machine, describe, shares
from side_by_side import compared, print_facts

from crpipe.config.loading import validate
from crpipe.events.batch import Cursor, Events, offsets
from crpipe.loading.microbatch import micro_batches
from crpipe.train.meter import Meter
from crpipe.train.ranks import World, keep_freed_memory, use_large_pages
from crpipe.train.state import TrainState
from crpipe.train.step import Stepper
from crpipe.train.workload import build_workload
from crpipe.workloads.muons.layout import BUNDLES
from crpipe.workloads.muons.models import gan as muon_gan

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Setting:
    """One way to train, in the words of either system."""

    name: str
    events: int
    mean_muons: float
    critic_steps: int
    optimizer: str
    gp_every: int  # 0: no penalty
    gp_max_pairs: int
    least: int = 0  # muons of an event: the launcher drops empty ones
    goal: float | None = None  # times the earlier system's events/s


SETTINGS = (
    Setting("README: SGD, no penalty", 48_000, 0.36, 5, "sgd", 0, 0, goal=4.0),
    Setting("launcher: Adam, penalty every 2", 30_000, 3.0, 5, "adam", 2, 4096, least=1, goal=3.0),
)
OURS, EQUAL, THEIRS = "crpipe", "crpipe, equal critic", "cr_muons"
ROUGH = ", bfloat16"  # in the names of crpipe's rows in that precision
EQUAL_HIDDEN = (
    50  # crpipe's critic has 34,763 parameters then, 54,321 by default; the earlier system's 34,945
)
OTHERS = 11  # further batches that crpipe's steps take in turn
# A CPU works best on what its caches hold; on a GPU a batch is one micro-batch.
BUDGET = {"cpu": 30_000, "cuda": 50_000_000}


def make_events(setting: Setting, seed: int = 1) -> Events:
    """Draw a batch of the setting's size with a heavy tail; what stands in it does not change the speed."""
    rng = np.random.default_rng(seed)
    count = setting.events
    mean = (setting.mean_muons - setting.least) * rng.lognormal(-0.5, 1.0, count)
    multiplicity = (setting.least + rng.poisson(mean)).astype(np.uint32)
    spread = {
        "energy_gev": (1e3, 1e6),
        "zenith_rad": (0, 1.2),
        "mass_number": (1, 56),
        "depth_m": (1e3, 2.8e3),
    }
    columns = {field.name: np.arange(count, dtype=np.uint64) for field in BUNDLES.events}
    columns |= {name: rng.uniform(*ends, count).astype(np.float32) for name, ends in spread.items()}
    columns |= {"source_file": np.zeros(count, np.uint32), "source_row": np.arange(count, dtype=np.uint32)}
    muons = rng.lognormal(2, 1, (int(multiplicity.sum()), 3)).astype(np.float32)
    return Events(columns, multiplicity, muons)


def ours(setting: Setting, extra: list[str], world: World, **model_options: int) -> Callable[[], None]:
    """Prepare one step of crpipe: collate, all phases, optimizers, averaged weights."""
    device = world.device
    # Batches differ in their numbers of events and muons: a step has to meet shapes that it has not seen.
    made = [make_events(setting, seed) for seed in range(1, 2 + OTHERS)]
    made = [events.take(np.arange(world.rank, len(events), world.size)) for events in made]
    events = made[0]
    model: dict[str, Any] = {
        "critic_steps": setting.critic_steps,
        "optimizer": setting.optimizer,
        "max_muons": 0,
        "penalty": "gradient" if setting.gp_every else "none",
        **model_options,
    }
    use_large_pages()  # as crpipe's training jobs do
    keep_freed_memory()
    budget = BUDGET[device.type]
    if setting.gp_every:
        # The earlier system pairs muons, crpipe events of a micro-batch: as many muons enter either penalty.
        groups = world.size * math.ceil(len(events.items) / budget)
        pairs = setting.gp_max_pairs / setting.mean_muons / groups
        model |= {"gp_every": setting.gp_every, "gp_max_pairs": round(pairs)}
    train = {"fresh_batches": False, "compile": "compile" in extra}
    train["precision"] = "bfloat16" if "bfloat16" in extra else "float32"
    train["workload"] = "crpipe.workloads.muons:MuonGan"
    config = validate({"model": model, "train": train, "load": {"budget_items": budget}})
    workload = build_workload(config.train.workload, config.options())
    torch.manual_seed(1)
    state = TrainState(workload.model(), workload.phases(), 1, device)
    meter = Meter(device)
    stepper = Stepper(config.train, config.load, workload, state, world, meter)
    if config.train.compile:
        for child in state.model.children():
            child.compile(dynamic=True)

    losses = itertools.count()

    def one_in(every: int, _: torch.Generator) -> bool:
        """Take penalties in the first of every few critic steps, as the earlier system does."""
        return next(losses) // len(micro) % setting.critic_steps % every == 0

    micro = micro_batches(workload.size(events), budget)
    batches = itertools.cycle(made)

    def step() -> None:
        muon_gan._one_in = one_in  # noqa: SLF001
        stepper.step([(next(batches), Cursor(0, 1))], (1,), 1.0)
        state.counters.step += 1
        if state.counters.step % 20 == 0:
            meter.read(world)

    return step


class Told(torch.nn.Module):
    """The earlier system's multiplicity network, at its own cost, but with the true multiplicities as result.

    Untrained it predicts events without muons: nothing would be generated, scored or penalised.
    """

    def __init__(self, network: torch.nn.Module, multiplicity: torch.Tensor) -> None:
        super().__init__()
        self.network = network
        self.truth = torch.log10(multiplicity[:, None] + 1.0)

    def forward(self, conditions: torch.Tensor) -> torch.Tensor:
        """Give log10(multiplicity + 1): [N, 1]."""
        return self.truth + 0.0 * self.network(conditions)


def theirs(setting: Setting, clone: Path, world: World) -> Callable[[], None]:
    """Prepare one step of the earlier system, as its trainer calls it, with torch's own rules for memory."""
    os.environ.pop("THP_MEM_ALLOC_ENABLE", None)
    device, events = world.device, make_events(setting)
    sys.path.insert(0, str(clone / "training"))
    from model import (  # type: ignore[import-not-found]  # noqa: PLC0415 - found by the path just added
        ScalableCritic,
        ScalableGenerator,
        train_step_scalable,
    )

    name = str(device)
    generator = ScalableGenerator(device=name).to(device)
    critic = ScalableCritic(device=name).to(device)
    if setting.optimizer == "adam":
        optimizers = [
            torch.optim.Adam(net.parameters(), 5e-5, betas=(0.0, 0.9)) for net in (generator, critic)
        ]
    else:
        optimizers = [torch.optim.SGD(net.parameters(), 2e-5, momentum=0.5) for net in (generator, critic)]
    energy, zenith, mass, depth = (
        torch.from_numpy(events.columns[name])
        for name in ("energy_gev", "zenith_rad", "mass_number", "depth_m")
    )
    primaries = torch.stack([torch.log10(energy / 1e6), torch.cos(zenith), torch.log10(mass), depth / 1e3], 1)
    muons = torch.from_numpy(events.items).clone()
    owner = torch.from_numpy(np.repeat(np.arange(len(events)), events.multiplicity))
    counts = torch.from_numpy(events.multiplicity.astype(np.int64))
    generator.multiplicity_net = Told(generator.multiplicity_net, counts.to(device))
    made, _ = generator(primaries.to(device))
    if len(made) != len(muons):
        raise SystemExit(f"the earlier system generates {len(made)} muons instead of {len(muons)}")

    def step() -> None:
        train_step_scalable(
            generator,
            critic,
            *optimizers,
            muons.to(device),
            owner.to(device),
            primaries.to(device),
            counts.to(device),
            lambda_gp=10.0 if setting.gp_every else 0.0,
            critic_steps=setting.critic_steps,
            gp_max_pairs=setting.gp_max_pairs,
            gp_every=max(setting.gp_every, 1),
            grad_accum_steps=1,
            device=name,
        )

    return step


def precisions(extra: list[str]) -> list[list[str]]:
    """Give what each row of crpipe turns on."""
    rough = [*(name for name in extra if name != "bfloat16"), "bfloat16"]
    return [rough] if "bfloat16" in extra else [extra, rough]


def contestants(
    setting: Setting, device: torch.device, options: argparse.Namespace
) -> dict[str, Callable[[], None]]:
    """Prepare a step of each system in each of its ways."""
    several = options.threads > 1 and device.type == "cpu" and not options.cpu_time
    steps = {}
    for extra in precisions(options.extra):
        end = ROUGH if "bfloat16" in extra else ""
        for name, narrow in ((OURS, {}), (EQUAL, {"hidden": EQUAL_HIDDEN})):
            make = partial(ours, setting, extra, **narrow)
            steps[name + end] = make(world=World(0, 1, device))
            if several:
                steps[f"{name}{end}, {options.threads} processes"] = in_processes(make, options.threads)
    if options.cr_muons:
        make = partial(theirs, setting, options.cr_muons)
        own_process = device.type == "cpu" and not options.cpu_time
        steps[THEIRS] = (
            in_processes(make, 1, options.threads) if own_process else make(world=World(0, 1, device))
        )
    return steps


def measure(
    steps: dict[str, Callable[[], None]],
    rounds: int,
    repeat: int,
    device: torch.device,
    clock: Callable[[], float],
) -> dict[str, list[float]]:
    """Give the seconds of one step of each system, rounds of all in turn."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        step()
    for _ in range(rounds):
        for name, step in steps.items():
            started = clock()
            for _ in range(repeat):
                step()
            if device.type == "cuda":
                torch.cuda.synchronize()
            times[name].append((clock() - started) / repeat)
    return times


def report(setting: Setting, events: Events, times: dict[str, list[float]]) -> None:
    """Print a line for each system."""
    muons = int(offsets(events.multiplicity)[-1])
    for name, values in times.items():
        median = statistics.median(values)
        there = times.get(THEIRS, [])
        ratio = "not run"
        if there:
            ratios = [theirs / own for theirs, own in zip(there, values, strict=True)]
            noted = name != THEIRS
            what = f"training step, {setting.name}"
            ratio = compared(what, f"{THEIRS}; {name}", ratios, setting.goal) if noted else "1"
        rates = f"{len(events) / median:10.0f} {muons / median:10.0f}"
        print(f"{setting.name:34} {name:42} {median:8.3f} {rates}  {ratio}", flush=True)


def main() -> None:
    """Measure every setting and print one table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cr-muons", type=Path, help="clone of the earlier system")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeat", type=int, default=1, help="steps in one round")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the settings' batch sizes")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument(
        "--cpu-time", action="store_true", help="for a machine that others use, with --threads 1"
    )
    parser.add_argument("--extra", nargs="*", default=[], help="compile, bfloat16")
    parser.add_argument("--shares", action="store_true", help="also what crpipe's step spends its time on")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    clock = time.process_time if options.cpu_time else time.perf_counter
    print_facts(THEIRS, options.cr_muons)
    machine = Machine.measured() if device.type == "cpu" else None
    if machine:
        print(f"{options.threads} threads: {machine.flops / 1e9:.0f} GFLOP/s, {machine.bytes / 1e9:.0f} GB/s")
    print(f"{'setting':34} {'system':42} {'s/step':>8} {'events/s':>10} {'muons/s':>10}  ratio")
    for base in SETTINGS:
        setting = Setting(**{**vars(base), "events": int(base.events * options.scale)})
        events = make_events(setting)
        steps = contestants(setting, device, options)
        times = measure(steps, options.rounds, options.repeat, device, clock)
        report(setting, events, times)
        if machine and not options.cpu_time:
            for name in (
                name for name in (OURS, EQUAL) if name in steps
            ):  # the machine's peak is that of float32
                step = steps[name]
                print(f"  {name}: {describe(step, machine, statistics.median(times[name]))}", flush=True)
        if machine and options.shares:
            for name in sorted(steps.keys() & {OURS, OURS + ROUGH}):
                print(f"  {name}: {shares(steps[name])}", flush=True)


if __name__ == "__main__":
    main()
