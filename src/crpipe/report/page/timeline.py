"""A chart of when each job of a campaign ran; what the jobs needed, from Snakemake's benchmarks."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from crpipe.core.text import duration, moment, number, size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from crpipe.core.paths import Paths
    from crpipe.report.jobs import JobAttempt

MOST_BARS = 3000
_VERBS = ("count", "list", "stage", "tables", "threshold", "split", "consolidate", "train", "evaluate")
# The chart, in user units.
WIDTH, LEFT, RIGHT, LANE, TOP, BOTTOM = 720, 92, 708, 24, 6, 26
_TICKS = 5
_MEBI = 1 << 20


@dataclass(frozen=True, slots=True)
class Usage:
    """What the finished jobs of one rule needed: their number, wall time and largest memory."""

    rule: str
    jobs: int
    total_s: float
    median_s: float
    longest_s: float
    memory: float

    def cells(self) -> list[str]:
        """Write it as cells of a table."""
        memory = size(self.memory * _MEBI) if self.memory else ""
        times = [duration(each) for each in (self.total_s, self.median_s, self.longest_s)]
        return [self.rule, number(self.jobs), *times, memory]


@dataclass(frozen=True, slots=True)
class JobBar:
    """A bar of the chart: its corner, its size, its class and what it says when pointed at."""

    x: float
    y: float
    width: float
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """The chart: lanes (name and height), bars, ticks (place and text), and its height."""

    lanes: tuple[tuple[str, float], ...]
    blocks: tuple[JobBar, ...]
    ticks: tuple[tuple[float, str], ...]
    height: float


def timeline(work: Sequence[JobAttempt]) -> Timeline | None:
    """Arrange the newest attempts as a chart, a lane for each verb; None without any."""
    shown = [each for each in work if each.end is not None][-MOST_BARS:]
    if not shown:
        return None
    first = min(each.start for each in shown)
    last = max(first + 1.0, *(each.end or first for each in shown))
    present = {each.verb for each in shown}
    verbs = [verb for verb in (*_VERBS, *sorted(present.difference(_VERBS))) if verb in present]
    scale = (RIGHT - LEFT) / (last - first)
    blocks = []
    for each in shown:
        end = each.end or each.start
        text = f"{each.verb} {each.name}: {moment(each.start)}, {duration(end - each.start)} on {each.host}"
        x = LEFT + (each.start - first) * scale
        y = TOP + verbs.index(each.verb) * LANE
        kind = "failed" if each.error else f"c{verbs.index(each.verb) % 6}"
        blocks.append(
            JobBar(x, y, max((end - each.start) * scale, 1.5), kind, f"{text}. {each.error}".strip())
        )
    lanes = tuple((verb, TOP + place * LANE) for place, verb in enumerate(verbs))
    return Timeline(lanes, tuple(blocks), _ticks(first, last, scale), TOP + LANE * len(verbs) + BOTTOM)


def _ticks(first: float, last: float, scale: float) -> tuple[tuple[float, str], ...]:
    """Mark the time since the first job at round numbers of seconds, minutes, hours or days."""
    steps = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 28_800, 86_400)
    rough = (last - first) / _TICKS
    step = next((each for each in steps if each >= rough), math.ceil(rough / 86_400) * 86_400)
    count = int((last - first) // step)
    return tuple((LEFT + place * step * scale, _clock(place * step)) for place in range(count + 1))


def _clock(seconds: int) -> str:
    """Write the time since the first job: 40 s, 1:20 min, 3:30 h, 2 d."""
    if seconds < 60:  # noqa: PLR2004 - a minute
        return f"{seconds} s"
    for larger, smaller, unit in ((60, 1, "min"), (3600, 60, "h")):
        if seconds < 60 * larger or (unit == "h" and seconds < 172_800):  # noqa: PLR2004 - two days
            return f"{seconds // larger}:{seconds % larger // smaller:02d} {unit}"
    return f"{seconds / 86_400:.3g} d"


def usage_of(paths: Paths) -> list[Usage]:
    """Summarise the benchmark files of a campaign and of its run, rule by rule."""
    found: dict[str, list[tuple[float, float]]] = {}
    for top in (paths.results / "benchmarks", paths.run_dir() / "benchmarks"):
        for path in sorted(top.rglob("*.tsv")):
            rule = path.parent.name if path.parent != top else path.stem
            found.setdefault(rule, []).extend(_measured(path))
    usage = []
    for rule, pairs in found.items():
        if pairs:
            times = sorted(seconds for seconds, _ in pairs)
            memory = max(each for _, each in pairs)
            total, median = sum(times), times[len(times) // 2]
            usage.append(Usage(rule, len(times), total, median, times[-1], memory))
    return usage


def _measured(path: Path) -> Iterator[tuple[float, float]]:
    """Yield seconds and largest memory in MiB of each row; a short job has no memory: 0."""
    with path.open(newline="", errors="replace") as handle:
        for row in csv.DictReader(handle, delimiter="\t"):
            seconds = _number(row.get("s"))
            if seconds is not None:
                yield seconds, _number(row.get("max_rss")) or 0.0


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) else None
