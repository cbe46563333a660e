"""Points 1 and 2 of benchmarks/gpu.py: the device, the tests, and a campaign that is killed and resumed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import yaml
from gpu_campaign import Campaign
from gpu_rows import NO_GPU

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpu_rows import Given

ROOT = Path(__file__).parents[1]
GPU_TESTS = ("tests/unit/train/test_gpu.py", "tests/unit/workloads/muons/models/test_host_syncs.py")
SMALL_TESTS = ("tests/unit/events", "tests/unit/loading/test_microbatch.py")
LONG = {"device": "cuda", "epochs": 1000, "snapshot_steps": 50, "log_steps": 20, "threads": 1}


def device(given: Given) -> None:
    """Name the device, and measure what its memory and its matrix products reach."""
    place = torch.device(given.device)
    name = torch.cuda.get_device_name() if place.type == "cuda" else "CPU"
    given.note("device of torch", f"{name}, CUDA {torch.version.cuda}")
    size = 1 << (22 if given.small else 30)
    source = torch.zeros(size // 4, device=place)
    target = torch.empty_like(source)
    seconds = _seconds(lambda: target.copy_(source), place)
    given.note("copy within its memory, bytes read and written", 2 * size / seconds / 1e9, "GB/s")
    width = 512 if given.small else 8192
    for kind in (torch.float32, torch.bfloat16):
        square = torch.randn(width, width, device=place, dtype=kind)
        seconds = _seconds(lambda square=square: square @ square, place)  # type: ignore[misc]
        name = str(kind).removeprefix("torch.")
        given.note(f"product of matrices, {name}", 2 * width**3 / seconds / 1e12, "TFLOP/s")
    tiny = torch.zeros(16, device=place)
    seconds = _seconds(lambda: tiny.add_(1.0), place, repeat=1000)
    given.note("one launch of a tiny operation", 1e6 * seconds, "µs")


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


def gpu_tests(given: Given) -> None:
    """Run the tests that are skipped without a GPU."""
    _pytest(given, "tests of the GPU", *GPU_TESTS)


def unit_tests(given: Given) -> None:
    """Run the unit tests on all cores; small: a few of them."""
    tests = SMALL_TESTS if given.small else ("tests/unit",)
    processes = str(min(len(os.sched_getaffinity(0)), 16))
    _pytest(given, "unit tests", "-n", processes, "--dist", "loadfile", *tests)


def _pytest(given: Given, what: str, *words: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    print(done.stdout, done.stderr)
    lines = done.stdout.strip().splitlines() or [f"exit code {done.returncode}"]
    given.note(what, re.sub(r"^=+ *| *=+$", "", lines[-1]))
    for line in [line for line in lines if line.startswith(("FAILED", "ERROR"))][:15]:
        given.note(f"{what}, not passed", line[:200])


def campaign(given: Given) -> None:
    """Train a campaign on the device; kill it without warning, resume it; look at what it recorded."""
    train = LONG | {"device": given.device, "epochs": 60 if given.small else LONG["epochs"]}
    made = Campaign(given, "campaign", train=train)
    made.until("split")
    store = made.folder / "runs/default/store" / made.link
    command = made.command("train", made.link)
    child = subprocess.Popen(command, cwd=made.folder)
    while not list(store.glob("*snapshot*")) and child.poll() is None:
        time.sleep(0.05)
    child.send_signal(signal.SIGKILL)
    given.note("killed after its first snapshot", "yes" if child.wait() < 0 else "no: it had ended")
    begun = time.perf_counter()
    printed = made.verb("train", made.link)
    resumed = next((line for line in printed.splitlines() if "resumes at step" in line), "no")
    given.note("the same command resumes", resumed.partition("resumes ")[2] or resumed)
    given.note("time of the resumed job", time.perf_counter() - begun, "s")
    rows = [json.loads(line) for line in (store / "metrics.jsonl").read_text().splitlines()]
    steps = [row["step"] for row in rows]
    given.note("steps", steps[-1])
    given.note("each step was logged once, in order", "yes" if steps == sorted(set(steps)) else "no")
    made.verb("status", "--html", "status.html")
    name = torch.cuda.get_device_name() if given.device == "cuda" else "cpu"
    page = (made.folder / "status.html").read_text()
    given.note("the page of `crpipe status` names the device", "yes" if name in page else "no")
    if given.device != "cuda":
        given.note("averages of NVML in the log", NO_GPU)
        return
    for key, unit in (
        ("gpu/utilisation_percent", "%"),
        ("gpu/used_mib", "MiB"),
        ("memory/gpu_peak_mib", "MiB"),
    ):
        found = [row[key] for row in rows if key in row]
        given.note(f"{key}, mean of the log", sum(found) / len(found) if found else "missing", unit)


def workflow(given: Given) -> None:
    """Run the demo's whole workflow with train.device set, from simulated files to the evaluation."""
    demo = yaml.safe_load((ROOT / "config/demo.yaml").read_text())
    sections = {} if given.small else {key: demo[key] for key in demo if key not in {"run", "results"}}
    train = sections.get("train", {"threads": 1, "log_steps": 1}) | {"device": given.device}
    made = Campaign(given, "workflow", **sections | {"train": train, "model": {}})
    cores = str(min(len(os.sched_getaffinity(0)), 8))
    begun = time.perf_counter()
    done = made.ask([sys.executable, "-m", "snakemake", "--cores", cores, "--quiet", "all"])
    print(done.stdout)
    given.note("exit code of snakemake", done.returncode)
    given.note("the whole workflow", time.perf_counter() - begun, "s")
    made.verb("summary")
    rows = (made.folder / "runs/default/journal.jsonl").read_text().splitlines()
    machines = [json.loads(row)["device"] for row in rows if '"machine"' in row]
    given.note("its trainings ran on", ", ".join(sorted(set(machines))) or "none")
