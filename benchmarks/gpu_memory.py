"""Points 5, 6 and 10 of benchmarks/gpu.py: memory over many steps, several processes, and trained models."""

from __future__ import annotations

import itertools
import os
import socket
import statistics
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
import training
from gpu_campaign import DIRECTION, Campaign, final
from gpu_rows import NO_GPU
from gpu_throughput import setting_of, synchronise, tree_of
from memory import resident_mib
from steppers import stepper_of
from torch.multiprocessing.spawn import spawn

from crpipe.events.batch import Cursor, Events, concatenate
from crpipe.inference.checkpoints import Predictor, open_its_reader
from crpipe.inference.generate import generate_events
from crpipe.inference.predict import predict_events
from crpipe.loading.loader import Loader
from crpipe.train.ranks import World

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpu_rows import Given

    from crpipe.inference.checkpoints import LoadedModel

LARGEST = 1_000_000  # items of an event
STEPS = 5000
PARTS = 10  # the run is looked at so often
WHOLE = {"model": {"max_muons": 0}, "load": {"budget_items": 2_000_000}}
LITTLE_MIB = 48  # of GPU memory, for an error
WITH_LITTLE = """
import torch
total = torch.cuda.get_device_properties(0).total_memory
torch.cuda.set_per_process_memory_fraction({mib} * 2**20 / total)
from crpipe.__main__ import main
main()
"""


def varying_events(number: int, pool: np.ndarray[Any, Any], most: int) -> Events:
    """Draw a batch: 256 small events, and in every second batch one of 1 to ``most`` items besides."""
    rng = np.random.default_rng(number)
    small = training.make_events(training.Setting("bulk", 256, 5.0, 1, "adam", 0, 0), number)
    multiplicity = small.multiplicity.copy()
    if number % 2:
        multiplicity[0] = round(float(np.exp(rng.uniform(0, np.log(most)))))
    count = int(multiplicity.sum())
    start = int(rng.integers(0, len(pool) - count))
    return Events(small.columns, multiplicity, pool[start : start + count])


def varying(given: Given) -> None:
    """Train thousands of steps on whole events of 1 to a million items; memory of torch's allocator."""
    device = torch.device(given.device)
    most = 10_000 if given.small else LARGEST
    most_steps = 40 if given.small else STEPS
    pool = np.random.default_rng(1).lognormal(2, 1, (2 * most + 10_000, 3)).astype(np.float32)
    _, stepper = stepper_of(WHOLE, device)
    looks: list[tuple[float, float, float]] = []
    done = 0
    while done < most_steps and given.left() > 8.0:
        stepper.step([(varying_events(done, pool, most), Cursor(0, done + 1))], (1,), 1.0)
        stepper.state.counters.step += 1
        done += 1
        if done % 20 == 0:
            stepper.meter.read(stepper.world)
        if done % (most_steps // PARTS) == 0:
            looks.append(_look(device))
            print(f"step {done}: allocated, peak, reserved MiB: {looks[-1]}, resident {resident_mib():.0f}")
    synchronise(device)
    given.note(f"steps, whole events of 1 to {most} items", done)
    given.note("resident at the end", resident_mib(), "MiB")
    if device.type != "cuda":
        given.note("memory of the GPU", NO_GPU)
        return
    halves = looks[: len(looks) // 2], looks[len(looks) // 2 :]
    for place, what in enumerate(("given out between steps", "given out at most", "reserved")):
        values = [max(look[place] for look in half) for half in halves if half]
        given.note(f"{what}: most in the first half", values[0], "MiB")
        given.note(f"{what}: most in the second half", values[-1], "MiB")
    stats = torch.cuda.memory_stats(device)
    given.note("tries again after a full cache was emptied", stats["num_alloc_retries"])


def _look(device: torch.device) -> tuple[float, float, float]:
    """Give MiB that torch has given out, the most since the last look, and what it reserved."""
    if device.type != "cuda":
        return (0.0, 0.0, 0.0)
    values = (
        torch.cuda.memory_allocated(device),
        torch.cuda.max_memory_allocated(device),
        torch.cuda.memory_reserved(device),
    )
    torch.cuda.reset_peak_memory_stats(device)
    return tuple(value / 2**20 for value in values)  # type: ignore[return-value]


def out_of_memory(given: Given) -> None:
    """Train with little memory: the error names the key to change."""
    campaign = Campaign(given, "out-of-memory", train={"device": given.device}, model={"hidden": 1024})
    campaign.until("split")
    code = WITH_LITTLE.format(mib=LITTLE_MIB)
    done = campaign.ask([sys.executable, "-c", code, "train", campaign.link])
    given.note("exit code", done.returncode)
    given.note("message", final(done.stdout))


def two_gpus(given: Given) -> None:
    """Start a process for each of two GPUs: it trains where there are two, else it says what to change."""
    campaign = Campaign(given, "two-gpus", train={"device": given.device, "gpus": 2})
    campaign.until("split")
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = campaign.ask([*start, "-m", "crpipe", "train", campaign.link])
    print(done.stdout)
    given.note("GPUs of this machine", torch.cuda.device_count())
    given.note("exit code of two processes", done.returncode)
    given.note("message", final(done.stdout))


def two_processes(given: Given) -> None:
    """Two processes share one device and reduce their gradients with gloo: their weights stay the same."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    spawn(_rank, args=(given.as_json(), port), nprocs=2)  # type: ignore[no-untyped-call]


def _rank(rank: int, text: str, port: int) -> None:
    from gpu_rows import Given  # noqa: PLC0415 - a process of its own

    given = Given.of_json(text)
    device = torch.device(given.device)
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=2)
    setting = setting_of(given, "launcher")
    _, stepper = stepper_of(tree_of(setting, device), World(rank, 2, device))
    batches = itertools.cycle([training.make_events(setting, 2 * seed + rank) for seed in range(4)])
    count = 3 if given.small else 40
    times = []
    for number in range(count + 2):
        begun = time.perf_counter()
        stepper.step([(next(batches), Cursor(0, number + 1))], (1,), 1.0)
        stepper.state.counters.step += 1
        synchronise(device)
        times.append(time.perf_counter() - begun)
    weights = [value.cpu() for value in stepper.state.model.state_dict().values()]
    both: list[Any] = [None, None]
    dist.all_gather_object(both, weights)
    if rank == 0:
        same = all(torch.equal(one, other) for one, other in zip(*both, strict=True))
        given.note("weights of two processes, gloo, one device", "bit-identical" if same else "differ")
        speed = 2 * setting.events / statistics.median(times[2:])
        given.note("both together, launcher setting, float32", speed, "events/s")
    dist.destroy_process_group()


def generate(given: Given) -> None:
    """Generate with a trained MuonGan on the CPU and on the device; numbers agree within their errors."""
    campaign = Campaign(given, "generate")
    campaign.until("train")
    events = training.make_events(
        training.Setting("asked", 1000 if given.small else 50_000, 3.0, 1, "adam", 0, 0)
    )

    def work(trained: LoadedModel, device: torch.device) -> np.ndarray[Any, Any]:
        """Give mean and error of the number of muons, and of their log10(E)."""
        asked = Events(dict(events.columns), np.zeros(len(events), np.uint32), np.empty((0, 3), np.float32))
        sizes = {"multiplicity": "predicted", "cap": 10**7, "budget_items": 10**6, "seed": 1}
        made = [made for _, made in generate_events(_predictor(trained, device), asked, **sizes)]  # type: ignore[arg-type]
        whole = concatenate(made)
        energy = np.log10(np.maximum(whole.items[:, 0], 1e-3)) if len(whole.items) else np.zeros(1)
        columns = whole.multiplicity.astype(float), energy
        return np.array([[each.mean(), each.std() / np.sqrt(len(each))] for each in columns])

    numbers = _both(given, campaign, work, len(events))
    for place, what in enumerate(("muons of an event", "log10(E / GeV)")):
        here, there = numbers[0][place], numbers[1][place]
        error = np.hypot(here[1], there[1])
        far = abs(here[0] - there[0]) / error if error else 0.0
        given.note(f"mean {what}: distance from the CPU's, in errors", far)


def predict(given: Given) -> None:
    """Predict directions on the CPU and on the device: the same numbers within a tolerance."""
    simulator = {"events_per_file": 200 if given.small else 1000}
    train = {"workload": "crpipe.workloads.direction:FlatTransformer", "device": given.device}
    sections = {**DIRECTION, "simulator": simulator, "train": train}
    campaign = Campaign(given, "predict", "0000001-0000001", **sections)
    campaign.until("train")
    folder = campaign.config().paths().shards(campaign.link)
    loader = Loader(folder, "train", batch_events=512, seed=(1,), epochs=1, prefetch=0)
    blocks = [events for events, _ in loader.batches()]

    def work(trained: LoadedModel, device: torch.device) -> np.ndarray[Any, Any]:
        predictor = _predictor(trained, device)
        found: list[Any] = [predict_events(predictor, block, 1) for block in blocks]
        names = sorted(found[0]) if isinstance(found[0], dict) else []
        floats = [name for name in names if found[0][name].dtype.kind == "f"]
        return np.stack([np.concatenate([each[name] for each in found]) for name in floats])

    here, there = _both(given, campaign, work, sum(map(len, blocks)))
    given.note("most difference from the CPU's numbers", float(np.abs(here - there).max()))


def _predictor(trained: LoadedModel, device: torch.device) -> Predictor:
    return Predictor(trained, open_its_reader(trained), device)


def _both(
    given: Given, campaign: Campaign, work: Callable[[LoadedModel, torch.device], Any], count: int
) -> list[Any]:
    """Run work with the model on the CPU and on the device, each once before it is timed."""
    results = []
    for name in ("cpu", given.device):
        device = torch.device(name)
        trained = campaign.trained(name)
        work(trained, device)
        begun = time.perf_counter()
        results.append(work(trained, device))
        synchronise(device)
        given.note(
            f"{given.point.partition(' ')[2]} on {name}", count / (time.perf_counter() - begun), "events/s"
        )
    return results
