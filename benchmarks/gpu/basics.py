"""What the device reaches, and a training on it that is killed and resumed."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from typing import TYPE_CHECKING

import torch

from benchmarks.gpu.campaign import DeviceCampaign

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.runner import Run

LONG = {"device": "cuda", "epochs": 1000, "snapshot_steps": 50, "log_steps": 20, "threads": 1}


def device(run: Run, *, device: str = "cuda", small: bool = False) -> None:
    """Name the device, and measure what its memory and its matrix products reach."""
    place = torch.device(device)
    name = torch.cuda.get_device_name() if place.type == "cuda" else "CPU"
    run.note("device of torch", f"{name}, CUDA {torch.version.cuda}")
    size = 1 << (22 if small else 30)
    source = torch.zeros(size // 4, device=place)
    target = torch.empty_like(source)
    seconds = _seconds(lambda: target.copy_(source), place)
    run.note("copy within its memory, bytes read and written", 2 * size / seconds / 1e9, "GB/s")
    width = 512 if small else 8192
    for kind in (torch.float32, torch.bfloat16):
        square = torch.randn(width, width, device=place, dtype=kind)
        seconds = _seconds(lambda square=square: square @ square, place)  # type: ignore[misc]
        name = str(kind).removeprefix("torch.")
        run.note(f"product of matrices, {name}", 2 * width**3 / seconds / 1e12, "TFLOP/s")
    tiny = torch.zeros(16, device=place)
    seconds = _seconds(lambda: tiny.add_(1.0), place, repeat=1000)
    run.note("one launch of a tiny operation", 1e6 * seconds, "µs")


def _seconds(work: Callable[[], object], place: torch.device, repeat: int = 10) -> float:
    work()
    for _ in range(2):  # the first turn warms up
        if place.type == "cuda":
            torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(repeat):
            work()
        if place.type == "cuda":
            torch.cuda.synchronize()
    return (time.perf_counter() - begun) / repeat


def campaign(run: Run, *, device: str = "cuda", small: bool = False) -> None:
    """Train a campaign on the device; kill it without warning, resume it; look at what it recorded."""
    train = LONG | {"device": device, "epochs": 60 if small else LONG["epochs"]}
    made = DeviceCampaign(run, "campaign", train=train)
    made.until("split")
    store = made.folder / "runs/default/store" / made.link
    command = made.command("train", made.link)
    child = subprocess.Popen(command, cwd=made.folder)
    while not list(store.glob("*snapshot*")) and child.poll() is None:
        time.sleep(0.05)
    child.send_signal(signal.SIGKILL)
    run.note("killed after its first snapshot", "yes" if child.wait() < 0 else "no: it had ended")
    begun = time.perf_counter()
    printed = made.verb("train", made.link)
    resumed = next((line for line in printed.splitlines() if "resumes at step" in line), "no")
    run.note("the same command resumes", resumed.partition("resumes ")[2] or resumed)
    run.note("time of the resumed job", time.perf_counter() - begun, "s")
    rows = [json.loads(line) for line in (store / "metrics.jsonl").read_text().splitlines()]
    steps = [row["step"] for row in rows]
    run.note("steps", steps[-1])
    run.note("each step was logged once, in order", "yes" if steps == sorted(set(steps)) else "no")
    made.verb("status", "--html", "status.html")
    name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    page = (made.folder / "status.html").read_text()
    run.note("the page of `crpipe status` names the device", "yes" if name in page else "no")
    if device != "cuda":
        run.note("averages of NVML in the log", "not run: no NVIDIA GPU")
        return
    for key, unit in (
        ("gpu/utilisation_percent", "%"),
        ("gpu/used_mib", "MiB"),
        ("memory/gpu_peak_mib", "MiB"),
    ):
        found = [row[key] for row in rows if key in row]
        run.note(f"{key}, mean of the log", sum(found) / len(found) if found else "missing", unit)
