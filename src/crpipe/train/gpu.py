"""How busy the GPU is, sampled in the background through NVML; silent where there is no GPU or no NVML."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    import torch

PERIOD_S = 0.5


class GpuSampler:
    """Averages utilisation and used memory of one GPU between readings; a context manager around a thread."""

    def __init__(self, device: torch.device) -> None:
        self._nvml, self._handle = _open(device)
        self._samples: list[tuple[float, float]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="gpu-sampler", daemon=True)

    def __enter__(self) -> Self:
        if self._nvml is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def read(self) -> dict[str, float]:
        """Give the means since the last reading; empty when nothing was sampled."""
        samples, self._samples = self._samples, []
        if not samples:
            return {}
        busy, used = (sum(column) / len(samples) for column in zip(*samples, strict=True))
        return {"gpu/utilisation_percent": busy, "gpu/used_mib": used}

    def _sample(self) -> None:
        while not self._stop.wait(PERIOD_S):
            rates = self._nvml.nvmlDeviceGetUtilizationRates(self._handle)
            used = self._nvml.nvmlDeviceGetMemoryInfo(self._handle).used / 2**20
            self._samples.append((float(rates.gpu), used))


def _open(device: torch.device) -> tuple[Any, Any]:
    """Open NVML for a CUDA device; (None, None) elsewhere."""
    if device.type != "cuda":
        return None, None
    try:
        import pynvml  # noqa: PLC0415 - an extra: pip install crpipe[gpu]
    except ImportError:
        return None, None
    try:
        pynvml.nvmlInit()
        return pynvml, pynvml.nvmlDeviceGetHandleByIndex(device.index or 0)
    except pynvml.NVMLError:
        return None, None
