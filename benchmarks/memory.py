"""Whether training's memory stays flat over thousands of steps with outliers of 100,000 muons.

One command: ``python benchmarks/memory.py --steps 5000``. Among bulk batches come batches of three outliers,
under the same muon budget; every tenth part of the run one line is printed: on CPU the resident set, on a
GPU what the allocator gave out and what it reserved. ``--all-muons`` trains on whole bundles instead of
windows.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from steppers import stepper_of
from training import Setting, make_events

from crpipe.events.batch import Cursor, Events

OUTLIER_MUONS = 100_000


def make_outliers(count: int, seed: int) -> Events:
    """Draw events of about OUTLIER_MUONS muons each."""
    rng = np.random.default_rng(seed)
    events = make_events(Setting("outliers", count, 1.0, 1, "adam", 0, 0), seed)
    multiplicity = rng.integers(OUTLIER_MUONS // 2, 2 * OUTLIER_MUONS, count).astype(np.uint32)
    muons = rng.lognormal(2, 1, (int(multiplicity.sum()), 3)).astype(np.float32)
    return Events(events.columns, multiplicity, muons)


def resident_mib() -> float:
    """Give this process's resident set."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def memory_line(device: torch.device) -> str:
    """Describe the memory in use."""
    line = f"resident {resident_mib():8.0f} MiB"
    if device.type == "cuda":
        allocated, reserved = torch.cuda.max_memory_allocated(device), torch.cuda.memory_reserved(device)
        line += f"  allocated, peak {allocated / 2**20:8.0f} MiB  reserved {reserved / 2**20:8.0f} MiB"
        torch.cuda.reset_peak_memory_stats(device)
    return line


def main() -> None:
    """Train for the given number of steps and print memory ten times."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--events", type=int, default=512, help="events in a bulk batch")
    parser.add_argument("--budget", type=int, default=200_000, help="muons in a micro-batch")
    parser.add_argument("--every", type=int, default=2, help="one batch in so many holds outliers")
    parser.add_argument("--hidden", type=int, default=64, help="width of the networks")
    parser.add_argument("--all-muons", action="store_true")
    options = parser.parse_args()
    device = torch.device(options.device)
    model = {"hidden": options.hidden} | ({"max_muons": 0} if options.all_muons else {})
    _, stepper = stepper_of({"model": model, "load": {"budget_items": options.budget}}, device)
    for step in range(options.steps):
        if step % options.every == options.every - 1:
            events = make_outliers(3, step)
        else:
            events = make_events(Setting("bulk", options.events, 5.0, 1, "adam", 0, 0), step)
        stepper.step([(events, Cursor(0, step + 1))] * 3, (1,), 1.0)
        stepper.state.counters.step += 1
        if (step + 1) % 20 == 0:
            stepper.meter.read(stepper.world)
        if (step + 1) % max(1, options.steps // 10) == 0:
            print(f"step {step + 1:6d}  {memory_line(device)}", flush=True)


if __name__ == "__main__":
    main()
