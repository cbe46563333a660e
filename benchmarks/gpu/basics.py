"""What the device reaches: its memory, its matrix products, and a launch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from benchmarks.gpu.throughput import timed

if TYPE_CHECKING:
    from benchmarks.runner import Run


def device(run: Run, *, device: str = "cuda", small: bool = False) -> None:
    """Name the device, and measure what its memory and its matrix products reach."""
    place = torch.device(device)
    name = torch.cuda.get_device_name() if place.type == "cuda" else "CPU"
    run.note("device of torch", f"{name}, CUDA {torch.version.cuda}")
    size = 1 << (22 if small else 30)
    source = torch.zeros(size // 4, device=place)
    target = torch.empty_like(source)
    seconds = timed(lambda: target.copy_(source), place, 10)
    run.note("copy within its memory, bytes read and written", 2 * size / seconds / 1e9, "GB/s")
    width = 512 if small else 8192
    for kind in (torch.float32, torch.bfloat16):
        square = torch.randn(width, width, device=place, dtype=kind)
        seconds = timed(lambda square=square: square @ square, place, 10)  # type: ignore[misc]
        name = str(kind).removeprefix("torch.")
        run.note(f"product of matrices, {name}", 2 * width**3 / seconds / 1e12, "TFLOP/s")
    tiny = torch.zeros(16, device=place)
    seconds = timed(lambda: tiny.add_(1.0), place, 1000)
    run.note("one launch of a tiny operation", 1e6 * seconds, "µs")
