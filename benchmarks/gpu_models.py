"""Points 8 and 9 of benchmarks/gpu.py: the physics of MuonGan after minutes on a GPU; directions and xec.

The measurements are those of benchmarks/physics.py, direction_step.py and xec_step.py.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import statistics
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import direction_data
import numpy as np
import torch
from gpu_rows import NO_GPU
from gpu_throughput import timed
from side_by_side import spread

from crpipe.loading.loader import Loader

if TYPE_CHECKING:
    from gpu_rows import Given

HERE = Path(__file__).parent
PRECISIONS: tuple[Literal["float32", "bfloat16"], ...] = ("float32", "bfloat16")
JUDGING_S = 75.0  # what physics.py takes besides training: simulation and classifiers
# What physics.py prints of a system, with the units.
COLUMNS = {
    "steps": "",
    "trained on": "muons/s",
    "generated": "muons/s",
    "W1(log E)": "",
    "error of W1(log E)": "",
    "W1(r)": "m",
    "AUC of events": "",
    "AUC of multiplicities": "",
    "full AUC": "",
}
SYSTEM = re.compile(r"^MuonGan, seed 0 (.*)$", re.MULTILINE)
FLOOR = re.compile(r"^floor: simulated again (.*)$", re.MULTILINE)


def direction(given: Given) -> None:
    """Events/s of a step: both sizes of the flat transformer, at most 128 and 256 sensors, two precisions."""
    import direction_step as steps  # noqa: PLC0415 - after the path of its peer

    peer = given.iceaggr is not None
    if given.iceaggr:
        sys.path.insert(0, str(given.iceaggr / "src"))
    else:
        given.note("beside iceaggr", "not run: give its clone with --iceaggr PATH")
    raw = direction_data.kaggle(given.folder, 400 if given.small else 4096)
    folder, geometry = direction_data.shards(raw), raw / "sensor_geometry.csv"
    steps.BATCH = 16 if given.small else 1024
    rounds = 1 if given.small else 5
    sizes = list(steps.SIZES)[: 1 if given.small else 2]
    for doms in (128, 256):
        attention(given, folder, doms)
    for size, doms in itertools.product(sizes, (128, 256)):
        for precision in PRECISIONS:
            options: dict[str, Any] = {
                "device": given.device,
                "doms": doms,
                "peer": peer and precision == "float32",
            }
            found = steps.measure_steps(folder, geometry, size, rounds, precision=precision, **options)
            _note_steps(given, f"{size} weights, at most {doms} sensors, {precision}", found, steps.BATCH)


def _note_steps(given: Given, what: str, found: dict[str, Any], batch: int) -> None:
    """Note the speed of each system, and how much faster crpipe is."""
    for name, each in found.items():
        given.note(
            f"{what}: {name}", batch / statistics.median(wall for wall, _ in each["times"]), "events/s"
        )
        if name != "crpipe":
            pairs = zip(each["times"], found["crpipe"]["times"], strict=True)
            ratios = [theirs[0] / own[0] for theirs, own in pairs]
            given.note(f"{what}: crpipe is faster than {name} by", spread(ratios))


def attention(given: Given, folder: Path, doms: int) -> None:
    """Attention alone, forward and backward, 8 heads of 32: padded to the longest event, and jagged."""
    device = torch.device(given.device)
    size = 100 if given.small else 1024
    loader = Loader(folder, "train", batch_events=size, seed=(1,), epochs=1, prefetch=0)
    with closing(loader.batches()) as stream:
        events, _ = next(stream)
    lengths = np.minimum(events.multiplicity, doms).astype(int).tolist()
    kind = torch.float32 if device.type == "cpu" else torch.bfloat16
    parts = [torch.randn(length, 8, 32, device=device, dtype=kind) for length in lengths]
    jagged = torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True)
    padded = torch.nn.utils.rnn.pad_sequence(parts, batch_first=True).requires_grad_()
    places = torch.arange(padded.shape[1], device=device)
    real = places < torch.tensor(lengths, device=device)[:, None]
    for name, source, mask in (("padded", padded, real[:, None, None]), ("jagged", jagged, None)):

        def work(source: Any = source, mask: Any = mask) -> None:
            turned = source.transpose(1, 2)
            found = torch.nn.functional.scaled_dot_product_attention(turned, turned, turned, attn_mask=mask)
            loss = (found.values() if found.is_nested else found).float().square().sum()
            torch.autograd.grad(loss, source)  # gradients of jagged tensors cannot be added up

        repeat = 2 if given.small else 20
        try:
            seconds = timed(work, device, repeat)
        except RuntimeError as error:  # not every build of torch has kernels for jagged tensors
            given.note(
                f"attention, at most {doms} rows, {name}", f"failed: {str(error).splitlines()[0][:200]}"
            )
            continue
        given.note(f"attention of {len(lengths)} events, at most {doms} rows, {name}", 1000 * seconds, "ms")


def xec(given: Given) -> None:
    """Events/s and memory of a step of the network of 29 million weights, at a batch of 2,048 events."""
    import xec_data  # noqa: PLC0415 - it needs an extra

    events = 128 if given.small else 4096
    raw = xec_data.root_files(given.folder, events, events if given.small else 512)
    xec_data.shards(raw)
    batch = 32 if given.small else 2048
    words = ["step", str(raw), "--batch", str(batch), "--steps", "2", "--rounds", "2" if given.small else "5"]
    words += ["--size", "0.65 M" if given.small else "29 M", "--device", given.device]
    path = [str(given.xec_ml_wl)] if given.xec_ml_wl else []
    if not path:
        given.note("beside xec-ml-wl", "not run: give its clone with --xec-ml-wl PATH")
    for precision in ("float32", "bfloat16"):
        peer = ["--peer"] if path and precision == "float32" else []
        done = subprocess.run(
            [sys.executable, str(HERE / "xec_step.py"), *words, "--precision", precision, *peer],
            env=os.environ | {"PYTHONPATH": ":".join([*path, os.environ.get("PYTHONPATH", "")])},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        for name, each in json.loads(done.stdout).items():
            what = f"{each['weights'] / 1e6:.3g} M weights, batch of {batch}, {precision}: {name}"
            speed = batch / statistics.median(wall for wall, _ in each["times"])
            given.note(what, speed, "events/s")
            given.note(f"{what}, a step beside weights and optimizers", each.get("mib", NO_GPU), "MiB")


def physics(given: Given) -> None:
    """Train MuonGan in what time is left, with two sizes of a batch at the same time; judge both."""
    budget = 4.0 if given.small else max(min(600.0, given.left() - JUDGING_S), 30.0)
    rows = ["--rows", "20000"] if given.small else []
    running = []
    for batch in (640, 5120):
        words = [sys.executable, str(HERE / "physics.py"), "--workloads", "MuonGan", *rows]
        words += ["--device", given.device, "--budget", f"{budget:.0f}", "--batch", str(batch)]
        path = given.folder / f"physics-{batch}.txt"
        with path.open("w") as output:
            running.append((batch, path, subprocess.Popen(words, stdout=output, stderr=subprocess.STDOUT)))
    given.note("training of each, both at the same time", budget, "s")
    for batch, path, child in running:
        code, printed = child.wait(), path.read_text()
        print(printed)
        if code:
            given.note(f"batch of {batch}", f"failed: {printed.strip().splitlines()[-1][:200]}")
            continue
        found = SYSTEM.search(printed)
        assert found, printed
        values = found[1].replace("±", " ").split()
        for (name, unit), value in zip(COLUMNS.items(), values, strict=True):
            given.note(f"batch of {batch}: {name}", float(value), unit)
    if floor := FLOOR.search(printed):  # the same for both
        values = floor[1].replace("±", " ").split()
        given.note("floor, simulated again: W1(log E)", float(values[0]))
        given.note("floor, simulated again: full AUC", float(values[-1]))
