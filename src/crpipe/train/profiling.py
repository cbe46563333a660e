"""A look into the step: the hot operators as a table, and a trace for a browser."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.profiler import ProfilerActivity, profile, supported_activities

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

WARM_UP_STEPS = 3
ROWS = 25


class Profiler:
    """Profiles some steps after a short warm-up, reports once, and then costs nothing."""

    def __init__(self, steps: int, path: Path, say: Callable[[str], None]) -> None:
        self._left = WARM_UP_STEPS + steps if steps else 0
        self._steps = steps
        self._path = path
        self._say = say
        self._profile: profile | None = None

    def step(self) -> None:
        """Count one training step."""
        if not self._left:
            return
        self._left -= 1
        if self._left == self._steps:
            chosen = {ProfilerActivity.CPU, ProfilerActivity.CUDA} & set(supported_activities())  # type: ignore[no-untyped-call]
            self._profile = profile(activities=sorted(chosen, key=str))
            self._profile.start()
        elif self._left == 0 and self._profile is not None:
            self._profile.stop()
            self._report(self._profile)
            self._profile = None

    def _report(self, found: profile) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        found.export_chrome_trace(str(self._path))
        averages = found.key_averages()
        on_device = any(getattr(item, "self_device_time_total", 0) for item in averages)
        order = "self_device_time_total" if on_device else "self_cpu_time_total"
        self._say(averages.table(sort_by=order, row_limit=ROWS))
        self._say(f"{self._steps} steps; the trace for chrome://tracing or ui.perfetto.dev: {self._path}")
