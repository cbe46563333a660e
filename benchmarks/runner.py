"""What all benchmarks share: sides that take turns, what a turn took, and how two sides compare."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import peers, table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

ROOT = Path(__file__).parents[1]
ONE_THREAD = {"POLARS_MAX_THREADS": "1", "OMP_NUM_THREADS": "1", "ARROW_IO_THREADS": "1"}
LEAST_ROUNDS = 5  # before an interval may end the turns


@dataclass(frozen=True)
class Turn:
    """What one turn took: seconds, MiB before it and at most; ``answer``: what the work returned."""

    wall: float
    user: float = 0.0
    system: float = 0.0
    before: float = 0.0
    peak: float = 0.0
    answer: Any = None

    @property
    def cpu(self) -> float:
        """CPU seconds, children included."""
        return self.user + self.system

    @property
    def mib(self) -> float:
        """Memory above that before the turn."""
        return self.peak - self.before


@dataclass
class Side:
    """One side of a comparison, in a process of its own that stays (``fresh``: in a new one each turn).

    work: MODULE:FUNCTION for worker.py, with its arguments. path: comes first on PYTHONPATH. root: the
    checkout of crpipe that works. ranks: so many processes take each turn together; the function also gets
    rank, ranks and a file to meet at.
    """

    name: str
    work: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    path: str = ""
    root: Path = ROOT
    environment: Mapping[str, str] = field(default_factory=dict)
    fresh: bool = False
    ranks: int = 0
    turns: list[Turn] = field(default_factory=list)
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    def turn(self) -> Turn:
        """Run the work once in all processes."""
        if not self.processes:
            self._start()
        for process in self.processes:
            assert process.stdin is not None
            print("go", file=process.stdin, flush=True)
        taken, *_ = [self._answer(process) for process in self.processes]
        if self.fresh:
            self.end()
        return taken

    def _start(self) -> None:
        source = "" if self.root == ROOT else str(self.root / "src")
        paths = [self.path, source, os.environ.get("PYTHONPATH", "")]
        environment = os.environ | dict(self.environment) | {"PYTHONPATH": ":".join(filter(None, paths))}
        meeting = {"ranks": self.ranks, "meeting": str(Path(tempfile.mkdtemp()) / "meeting")}
        for rank in range(max(self.ranks, 1)):
            given = dict(self.arguments) | ({"rank": rank, **meeting} if self.ranks else {})
            worker = self.root / "benchmarks" / "worker.py"
            if not worker.exists():
                raise SystemExit(f"{self.root}: it has other benchmarks than these; use its own")
            words = [sys.executable, str(worker), self.work, json.dumps(given, default=str)]
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            self.processes.append(subprocess.Popen(words, env=environment, **pipes))

    def _answer(self, process: subprocess.Popen[str]) -> Turn:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            self.end()
            raise SystemExit(f"{self.name}: the process ended with {process.returncode}")
        return Turn(**json.loads(line))

    def end(self) -> None:
        """End the processes."""
        for process in self.processes:
            process.communicate()
        self.processes.clear()

    def median(self, what: str = "wall") -> float:
        """Return the median over the turns."""
        return statistics.median(getattr(turn, what) for turn in self.turns)


@dataclass
class Command(Side):
    """A side that is a command in a folder; its wall time counts."""

    work: str = ""
    words: Sequence[str] = ()
    folder: Path = Path()

    def turn(self) -> Turn:
        """Run the command."""
        return Turn(timed(self.words, self.folder))


def timed(words: Sequence[str], folder: Path) -> float:
    """Run a command; return its wall time in seconds."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    started = time.perf_counter()
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return time.perf_counter() - started


def take_turns(
    sides: Sequence[Side], rounds: int, *, warm: bool = True, width: float = 0.0, what: str = "cpu"
) -> None:
    """Run all sides in turn, in every second round from last to first; the turns stay with the sides.

    warm: a first turn of each is not counted. width: the rounds end once the 95 % interval of the first
    side's median ratio to the second is as narrow.
    """
    with ExitStack() as stack:
        for side in sides:
            stack.callback(side.end)
        for number in range(-1 if warm else 0, rounds):
            for side in sides if number % 2 == 0 else sides[::-1]:
                taken = side.turn()
                if number >= 0:
                    side.turns.append(taken)
            if width and number + 1 >= LEAST_ROUNDS:
                low, high = table.interval(ratios(sides[0], sides[1], what))
                if high - low < width:
                    return


def once(work: str, arguments: Mapping[str, Any], **more: Any) -> Turn:
    """Run a work once in a process of its own."""
    return Side(work, work, arguments, fresh=True, **more).turn()


def ratios(one: Side, other: Side, what: str = "wall", scale: float = 1.0) -> list[float]:
    """Return what ``one`` took in each round compared with ``other``."""
    pairs = zip(one.turns, other.turns, strict=True)
    return [scale * getattr(first, what) / getattr(second, what) for first, second in pairs]


@contextmanager
def busy(load: int) -> Iterator[None]:
    """Run so many endless loops beside the block."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(load)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


@dataclass
class Run:
    """What a benchmark is given: peers by name, a folder to work in; and the comparisons that it makes."""

    folder: Path
    given: Mapping[str, str] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    noted: Path | None = None
    seconds: float = float(os.environ.get("BENCHMARK_SECONDS", "inf"))
    started: float = field(default_factory=time.monotonic)

    def known(self, only: Sequence[str], names: Sequence[str]) -> None:
        """Refuse names of parts that do not exist."""
        if unknown := set(only) - set(names):
            sys.exit(f"{', '.join(unknown)}: expected some of {', '.join(names)}")

    def left(self) -> float:
        """Return the seconds that are left."""
        return self.seconds - (time.monotonic() - self.started)

    def note(self, what: str, value: float | str, unit: str = "") -> None:
        """Keep a figure for the table."""
        print(f"{what}: {table.shown(value)} {unit}", flush=True)
        self._keep({"what": what, "value": value, "unit": unit})

    def _keep(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        if self.noted:
            with self.noted.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")

    def peer(self, name: str) -> Path | None:
        """Return the place of a peer; say so where it is missing."""
        if name in self.given:
            return Path(self.given[name])
        print(peers.missing(name), flush=True)
        return None

    def compared(self, what: str, peer: str, values: list[float], goal: float | None = None) -> str:
        """Show how many times faster crpipe is than ``peer``, one ratio a round, and keep it for the table.

        goal: what the median should reach.
        """
        self._keep({"what": what, "peer": peer, "ratios": values, "goal": goal})
        return table.spread(values)

    def faster(
        self, what: str, own: Side, other: Side, *, by: str = "wall", goal: float | None = None
    ) -> str:
        """Compare two sides that took turns."""
        return self.compared(what, other.name, ratios(other, own, by), goal)
