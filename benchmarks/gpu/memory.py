"""Memory over many steps and its error when it is full; trained models on the device beside the CPU."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from benchmarks.gpu.campaign import DIRECTION, DeviceCampaign, final
from benchmarks.gpu.throughput import synchronise
from benchmarks.muons import training
from benchmarks.steppers import stepper_of
from benchmarks.worker import memory_mib
from crpipe.events.batch import Cursor, Events, concatenate
from crpipe.inference.generate import generate_events
from crpipe.inference.predict import predict_events
from crpipe.loading.loader import Loader

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.runner import Run
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


def varying(run: Run, *, device: str = "cuda", small: bool = False) -> None:
    """Train thousands of steps on whole events of 1 to a million items; memory of torch's allocator."""
    place = torch.device(device)
    most = 10_000 if small else LARGEST
    most_steps = 40 if small else STEPS
    pool = np.random.default_rng(1).lognormal(2, 1, (2 * most + 10_000, 3)).astype(np.float32)
    _, stepper = stepper_of(WHOLE, place)
    looks: list[tuple[float, float, float]] = []
    done = 0
    while done < most_steps and run.left() > 8.0:
        stepper.step([(varying_events(done, pool, most), Cursor(0, done + 1))], (1,), 1.0)
        stepper.state.counters.step += 1
        done += 1
        if done % 20 == 0:
            stepper.meter.read(stepper.world)
        if done % (most_steps // PARTS) == 0:
            looks.append(_look(place))
            print(
                f"step {done}: allocated, peak, reserved MiB: {looks[-1]}, resident {memory_mib('VmRSS'):.0f}"
            )
    synchronise(place)
    run.note(f"steps, whole events of 1 to {most} items", done)
    run.note("resident at the end", memory_mib("VmRSS"), "MiB")
    if place.type != "cuda":
        run.note("memory of the GPU", "not run: no NVIDIA GPU")
        return
    halves = looks[: len(looks) // 2], looks[len(looks) // 2 :]
    for column, what in enumerate(("given out between steps", "given out at most", "reserved")):
        values = [max(look[column] for look in half) for half in halves if half]
        run.note(f"{what}: most in the first half", values[0], "MiB")
        run.note(f"{what}: most in the second half", values[-1], "MiB")
    stats = torch.cuda.memory_stats(place)
    run.note("tries again after a full cache was emptied", stats["num_alloc_retries"])


def _look(device: torch.device) -> tuple[float, float, float]:
    """Return MiB that torch has given out, the most since the last look, and what it reserved."""
    if device.type != "cuda":
        return (0.0, 0.0, 0.0)
    values = (
        torch.cuda.memory_allocated(device),
        torch.cuda.max_memory_allocated(device),
        torch.cuda.memory_reserved(device),
    )
    torch.cuda.reset_peak_memory_stats(device)
    return tuple(value / 2**20 for value in values)  # type: ignore[return-value]


def out_of_memory(run: Run, *, device: str = "cuda", small: bool = False) -> None:  # noqa: ARG001 - as all
    """Train with little memory: the error names the key to change."""
    campaign = DeviceCampaign(run, "out-of-memory", train={"device": device}, model={"hidden": 1024})
    campaign.until("split")
    code = WITH_LITTLE.format(mib=LITTLE_MIB)
    done = campaign.ask([sys.executable, "-c", code, "train", campaign.link])
    run.note("exit code", done.returncode)
    run.note("message", final(done.stdout))


def generate(run: Run, *, device: str = "cuda", small: bool = False) -> None:
    """Generate with a trained MuonGan on the CPU and on the device; numbers agree within their errors."""
    campaign = DeviceCampaign(run, "generate")
    campaign.until("train")
    events = training.make_events(training.Setting("asked", 1000 if small else 50_000, 3.0, 1, "adam", 0, 0))

    def work(trained: LoadedModel, device: torch.device) -> np.ndarray[Any, Any]:
        """Return mean and error of the number of muons, and of their log10(E)."""
        asked = Events(dict(events.columns), np.zeros(len(events), np.uint32), np.empty((0, 3), np.float32))
        sizes = {"multiplicity": "predicted", "cap": 10**7, "budget_items": 10**6, "seed": 1}
        made = [made for _, made in generate_events(trained, _layout(trained), asked, device=device, **sizes)]  # type: ignore[arg-type]
        whole = concatenate(made)
        energy = np.log10(np.maximum(whole.items[:, 0], 1e-3)) if len(whole.items) else np.zeros(1)
        columns = whole.multiplicity.astype(float), energy
        return np.array([[each.mean(), each.std() / np.sqrt(len(each))] for each in columns])

    numbers = _both(run, device, campaign, work, len(events))
    for place, what in enumerate(("muons of an event", "log10(E / GeV)")):
        here, there = numbers[0][place], numbers[1][place]
        error = np.hypot(here[1], there[1])
        far = abs(here[0] - there[0]) / error if error else 0.0
        run.note(f"mean {what}: distance from the CPU's, in errors", far)


def predict(run: Run, *, device: str = "cuda", small: bool = False) -> None:
    """Predict directions on the CPU and on the device: the same numbers within a tolerance."""
    simulator = {"events_per_file": 200 if small else 1000}
    train = {"workload": "crpipe.workloads.direction:FlatTransformer", "device": device}
    sections = {**DIRECTION, "simulator": simulator, "train": train}
    campaign = DeviceCampaign(run, "predict", "0000001-0000001", **sections)
    campaign.until("train")
    folder = campaign.config().paths().shards(campaign.link)
    loader = Loader(folder, "train", batch_events=512, seed=(1,), epochs=1, prefetch=0)
    blocks = [events for events, _ in loader.batches()]

    def work(trained: LoadedModel, device: torch.device) -> np.ndarray[Any, Any]:
        found: list[Any] = [predict_events(trained, loader.layout, block, 1, device) for block in blocks]
        names = sorted(found[0]) if isinstance(found[0], dict) else []
        floats = [name for name in names if found[0][name].dtype.kind == "f"]
        return np.stack([np.concatenate([each[name] for each in found]) for name in floats])

    here, there = _both(run, device, campaign, work, sum(map(len, blocks)))
    run.note("most difference from the CPU's numbers", float(np.abs(here - there).max()))


def _layout(trained: LoadedModel) -> Any:
    from crpipe.inference.checkpoints import open_its_reader  # noqa: PLC0415

    return open_its_reader(trained).layout


def _both(
    run: Run,
    device: str,
    campaign: DeviceCampaign,
    work: Callable[[LoadedModel, torch.device], Any],
    count: int,
) -> list[Any]:
    """Run work with the model on the CPU and on the device, each once before it is timed."""
    results = []
    for name in ("cpu", device):
        place = torch.device(name)
        trained = campaign.trained(name)
        work(trained, place)
        begun = time.perf_counter()
        results.append(work(trained, place))
        synchronise(place)
        run.note(f"on {name}", count / (time.perf_counter() - begun), "events/s")
    return results
