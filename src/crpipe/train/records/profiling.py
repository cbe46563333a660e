"""A profile of some training steps: the slowest operators as a table, and a trace for a browser."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from torch.profiler import ProfilerActivity, profile, supported_activities

from crpipe.core.files import replacing

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

WARM_UP_STEPS = 3
ROWS = 25


class Profiler:
    """Profiles some steps after a short warm-up, reports once, and then does nothing; a context manager.

    When the block ends earlier, it reports the steps so far.
    """

    def __init__(self, steps: int, path: Path, say: Callable[[str], None]) -> None:
        self._steps = steps
        self._path = path
        self._say = say
        self._seen = -WARM_UP_STEPS
        self._profile: profile | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._profile is not None:
            self._report(self._profile)
        elif self._seen < 0 < self._steps:
            self._say(f"nothing profiled: fewer than {WARM_UP_STEPS} steps were left")

    def step(self) -> None:
        """Count one training step."""
        if not self._steps or self._seen >= self._steps:
            return
        self._seen += 1
        if self._seen == 0:
            chosen = {ProfilerActivity.CPU, ProfilerActivity.CUDA} & set(supported_activities())  # type: ignore[no-untyped-call]
            self._profile = profile(activities=sorted(chosen, key=str))
            self._profile.start()
        elif self._seen == self._steps and self._profile is not None:
            self._report(self._profile)

    def _report(self, found: profile) -> None:
        self._profile = None
        found.stop()
        with replacing(self._path) as part:
            found.export_chrome_trace(str(part))
        averages = found.key_averages()
        on_device = any(getattr(item, "self_device_time_total", 0) for item in averages)
        order = "self_device_time_total" if on_device else "self_cpu_time_total"
        self._say(averages.table(sort_by=order, row_limit=ROWS))
        self._say(f"{self._seen} steps; the trace for chrome://tracing or ui.perfetto.dev: {self._path}")
