"""How fast a training step is, beside the earlier system's own step on the same batch.

Either system scores the same real muons and as many generated ones in each critic step, and takes a gradient
penalty on as many muons in the same critic steps. crpipe runs with its own networks, and so narrow that its
critic has no more parameters than the earlier system's; if asked, each in bfloat16, too. With several threads
each of these also trains in as many processes of one thread, which divide each batch among them and reduce
their gradients. The step in float32 is also compared with what the processor and its memory can do.
"""

from __future__ import annotations

import itertools
import math
import os
import sys
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist

from benchmarks.muons import roofline
from benchmarks.runner import Side, once, take_turns
from benchmarks.steppers import stepper_of
from benchmarks.table import show
from crpipe.core.waiting import SPINS, cores_are_free
from crpipe.events.batch import Cursor, Events
from crpipe.loading.microbatch import micro_batches
from crpipe.train.ranks import World, keep_freed_memory, use_large_pages
from crpipe.workloads.muons.layout import BUNDLES
from crpipe.workloads.muons.models import gan as muon_gan

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.runner import Run

    Step = Callable[[], None]


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
OURS, EQUAL, PEER = "crpipe", "crpipe, equal critic", "cr_muons"
# crpipe's critic has 34,763 parameters then, 54,321 by default; the earlier system's 34,945.
EQUAL_HIDDEN = 50
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


def tree_of(
    setting: Setting, world: World | torch.device, precision: str = "float32", **model: Any
) -> dict[str, Any]:
    """Return a setting as a configuration of crpipe."""
    device, size = (world.device, world.size) if isinstance(world, World) else (world, 1)
    budget = BUDGET[device.type]
    model |= {"critic_steps": setting.critic_steps, "optimizer": setting.optimizer, "max_muons": 0}
    model["penalty"] = "gradient" if setting.gp_every else "none"
    if setting.gp_every:
        # The earlier system pairs muons, crpipe events of a micro-batch: as many muons enter either penalty.
        groups = size * math.ceil(setting.events * setting.mean_muons / size / budget)
        pairs = round(setting.gp_max_pairs / setting.mean_muons / groups)
        model |= {"gp_every": setting.gp_every, "gp_max_pairs": pairs}
    load = {"batch_size": setting.events, "max_items": budget}
    return {"model": model, "load": load, "train": {"fresh_batches": False, "precision": precision}}


def ours(setting: Setting, precision: str, world: World, **model: Any) -> Step:
    """Prepare one step of crpipe: collate, all phases, optimizers, averaged weights."""
    # Batches differ in their numbers of events and muons: a step has to meet shapes that it has not seen.
    batches = [make_events(setting, seed) for seed in range(1, 2 + OTHERS)]
    batches = [events.take(np.arange(world.rank, len(events), world.size)) for events in batches]
    use_large_pages()  # as crpipe's training jobs do
    keep_freed_memory()
    config, stepper = stepper_of(tree_of(setting, world, precision, **model), world)
    losses = itertools.count()
    micro = len(micro_batches(stepper.workload.size(batches[0]), config.load.max_items))

    def one_in(every: int, _: torch.Generator) -> bool:
        """Take penalties in the first of every few critic steps, as the earlier system does."""
        return next(losses) // micro % setting.critic_steps % every == 0

    turns = itertools.cycle(batches)

    def step() -> None:
        muon_gan._one_in = one_in  # noqa: SLF001
        stepper.step([(next(turns), Cursor(0, 1))], (1,), 1.0)
        stepper.state.counters.step += 1
        if stepper.state.counters.step % 20 == 0:
            stepper.meter.read(world)

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
        """Return log10(multiplicity + 1): [N, 1]."""
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


def chosen(name: str, scale: float) -> Setting:
    """Find a setting by its name, with a share of its events."""
    setting = next(each for each in SETTINGS if each.name == name)
    return replace(setting, events=int(setting.events * scale))


def side(
    setting: str,
    scale: float,
    threads: int,
    *,
    clone: str = "",
    rank: int = 0,
    ranks: int = 1,
    meeting: str = "",
    precision: str = "float32",
    **model: Any,
) -> Step:
    """Prepare the step of one side on a CPU: of the earlier system's ``clone``, or of crpipe."""
    torch.set_num_threads(threads)
    world = World(rank, ranks, torch.device("cpu"))
    if clone:
        return theirs(chosen(setting, scale), Path(clone), world)
    if ranks > 1:
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks)
    return ours(chosen(setting, scale), precision, world, **model)


def measured_machine(threads: int) -> Callable[[], list[float]]:
    """Prepare the measurement of what the processor and its memory can do."""
    torch.set_num_threads(threads)
    return lambda: [*astuple(roofline.Machine.measured())]


def step_report(limits: list[float], seconds: float, **given: Any) -> Callable[[], str]:
    """Prepare a step that took so many seconds, and compare it with the limits."""
    step = side(**given)
    step()
    return lambda: roofline.describe(step, roofline.Machine(*limits), seconds)


def sides_of(given: dict[str, Any], clone: Path | None, precisions: tuple[str, ...]) -> list[Side]:
    """List crpipe in each of its ways, and the earlier system."""
    sides, threads = [], given["threads"]
    work = f"{__name__}:side"
    free = cores_are_free()  # as crpipe's commands choose
    waiting = {"GOMP_SPINCOUNT": SPINS} if free else {"OMP_WAIT_POLICY": "PASSIVE"}
    for precision in precisions:
        for name, narrow in ((OURS, {}), (EQUAL, {"hidden": EQUAL_HIDDEN})):
            more = {**given, **narrow, "precision": precision}
            end = "" if precision == "float32" else ", bfloat16"
            sides.append(Side(name + end, work, more, environment=waiting))
            if threads > 1:
                title = f"{name}{end}, {threads} processes"
                sides.append(Side(title, work, more | {"threads": 1}, ranks=threads))
    return [*sides, Side(PEER, work, given | {"clone": clone})] if clone else sides


def training(
    run: Run,
    *,
    rounds: int = 5,
    threads: int = torch.get_num_threads(),
    scale: float = 1.0,
    clock: str = "wall",
    bfloat16: bool = False,
) -> None:
    """Compare the steps of both settings.

    scale: share of the settings' batches. clock: cpu for a machine that others use, with one thread.
    bfloat16: in that precision, too, which only some processors have instructions for.
    """
    clone = run.peer(PEER)
    precisions = ("float32", "bfloat16") if bfloat16 else ("float32",)
    limits = once(f"{__name__}:measured_machine", {"threads": threads}).answer
    print(f"{threads} threads: {limits[0] / 1e9:.0f} GFLOP/s, {limits[1] / 1e9:.0f} GB/s")
    for name in (each.name for each in SETTINGS):
        setting = chosen(name, scale)
        events = make_events(setting)
        given = {"setting": name, "scale": scale, "threads": threads}
        sides = sides_of(given, clone, precisions)
        take_turns(sides, rounds)
        rows, peer = [], sides[-1]
        for each in sides:
            median = each.median(clock)
            faster = ""
            if clone and each is not peer:
                compared = Side(f"{PEER}; {each.name}", "", turns=peer.turns)
                what = f"training step, {name}"
                faster = run.faster(what, each, compared, by=clock, goal=setting.goal)
            cpu = 1e6 * each.median("cpu") / len(events)
            rows.append([each.name, median, len(events) / median, len(events.items) / median, cpu, faster])
        titles = ["", "s a step", "events/s", "muons/s", "CPU µs an event", f"faster than {PEER} by"]
        show(name, titles, rows)
        for each in sides:
            if each.name in (OURS, EQUAL):  # the machine's peak is that of float32
                more = {**each.arguments, "limits": limits, "seconds": each.median(clock)}
                print(f"{each.name}: {once(f'{__name__}:step_report', more).answer}", flush=True)
