"""What crpipe does on an NVIDIA GPU: the whole checklist in four commands of ten minutes, and one table.

``python benchmarks/gpu.py PART --folder DIR`` with the parts basics, throughput, memory and models, and then
``python benchmarks/gpu.py table --folder DIR`` (``make gpu``: all of it). Each part ends by its own clock;
each point runs in a process of its own, which is stopped when its time is over. What does not fit, fails, or
needs what is not installed is a row of the table that says so, and the next point runs. Rows go to
DIR/gpu.jsonl, what the points print to DIR/NAME.txt; a point that runs again replaces its rows.

Other systems are given by their place: ``--cr-muons``, ``--iceaggr`` and ``--xec-ml-wl PATH``. Without a GPU
``--device cpu --small`` rehearses everything in a few minutes. Any torch will do; its version is in the
table. crpipe is installed, or its src is on PYTHONPATH.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib.util
import json
import os
import platform
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_rows import MACHINE, NO_GPU, Given, forget, read_rows, table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

HERE = Path(__file__).parent
PART_SECONDS, SMALL_SECONDS = 570.0, 170.0
END_SECONDS = 3.0  # kept for ending a point


@dataclass(frozen=True)
class Point:
    """One point: its name begins with the number in the checklist; ``place``: MODULE:FUNCTION.

    seconds: it is stopped after these. least: with less it is not started. needs: modules to import.
    on_gpu: it makes sense on a GPU alone.
    """

    name: str
    place: str
    seconds: float
    least: float = 20.0
    options: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    needs: Sequence[str] = ()
    on_gpu: bool = False


GROWING = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
FIXED = {"PYTORCH_ALLOC_CONF": "expandable_segments:False"}
REPEATING = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}  # cuBLAS asks for it where runs have to repeat
README, LAUNCHER = {"setting": "README"}, {"setting": "launcher"}
AUTOTUNE = {"mode": "max-autotune-no-cudagraphs"}
PARTS: dict[str, tuple[Point, ...]] = {
    "basics": (
        Point("1 device", "gpu_basics:device", 60),
        Point("1 GPU tests", "gpu_basics:gpu_tests", 90, needs=("pytest",)),
        Point("2 campaign", "gpu_basics:campaign", 120),
        Point("2 workflow", "gpu_basics:workflow", 150, needs=("snakemake",)),
        Point("1 unit tests", "gpu_basics:unit_tests", 300, 60, needs=("pytest", "xdist")),
    ),
    "throughput": (
        Point("3 steps", "gpu_throughput:steps", 120),
        Point("3 loader, README", "gpu_throughput:loader", 100, options=README),
        Point("3 loader, launcher", "gpu_throughput:loader", 60, options=LAUNCHER),
        Point("7 determinism", "gpu_compiling:determinism", 60, environment=REPEATING),
        Point("4 CUDA graph", "gpu_graphs:graph", 40),
        Point("4 CUDA graph, fixed budget", "gpu_graphs:graph", 40, options={"split": 4}),
        Point("4 pooling", "gpu_graphs:pooling", 40),
        Point("4 compile, README", "gpu_compiling:compiled", 100, 30, options=README),
        Point("4 compile, launcher", "gpu_compiling:compiled", 120, 30, options=LAUNCHER),
        Point("4 autotune, README", "gpu_compiling:compiled", 120, 40, options=README | AUTOTUNE),
        Point("4 autotune, launcher", "gpu_compiling:compiled", 150, 60, options=LAUNCHER | AUTOTUNE),
    ),
    "memory": (
        Point("5 out of memory", "gpu_memory:out_of_memory", 60, on_gpu=True),
        Point("6 two GPUs asked", "gpu_memory:two_gpus", 60, on_gpu=True),
        Point("6 two processes", "gpu_memory:two_processes", 60),
        Point("10 generate", "gpu_memory:generate", 70),
        Point("10 predict", "gpu_memory:predict", 70),
        Point("5 expandable segments", "gpu_memory:varying", 170, environment=GROWING),
        Point("5 fixed segments", "gpu_memory:varying", 170, environment=FIXED),
    ),
    "models": (
        Point("9 direction", "gpu_models:direction", 140),
        Point("9 xec", "gpu_models:xec", 110, needs=("uproot",)),
        Point("8 physics", "gpu_models:physics", 570, 60, needs=("sklearn",)),
    ),
}


def run_part(points: Iterable[Point], given: Given) -> None:
    """Run points one after the other until ``given.seconds`` are over."""
    note_machine(dataclasses.replace(given, point=MACHINE))
    for point in points:
        seconds = min(point.seconds, given.left() - END_SECONDS)
        mine = dataclasses.replace(
            given, point=point.name, seconds=seconds, command=_command(given, point), started=time.monotonic()
        )
        forget(given.folder, point.name)
        missing = [name for name in point.needs if importlib.util.find_spec(name) is None]
        if point.on_gpu and given.device == "cpu":
            mine.note("all", NO_GPU)
        elif missing:
            mine.note("all", f"not run: {' and '.join(missing)} is not installed")
        elif seconds < (min(point.least, 5.0) if given.small else point.least):
            mine.note("all", "not run: time")
        else:
            run_point(point, mine)


def run_point(point: Point, given: Given) -> None:
    """Run one point in a process of its own; a row says what stopped it."""
    printed = given.folder / f"{point.name.replace(',', '').replace(' ', '-')}.txt"
    words = [sys.executable, str(HERE / "gpu_point.py"), point.place]
    words += [given.as_json(), json.dumps(dict(point.options))]
    modules = [str(Path(entry).absolute()) for entry in os.environ.get("PYTHONPATH", "").split(":") if entry]
    own = {"TORCHINDUCTOR_CACHE_DIR": str(given.folder / "inductor"), "PYTHONPATH": ":".join(modules)}
    if given.small and given.device == "cpu":
        own["OMP_NUM_THREADS"] = "1"  # on cores that others use, threads wait for each other
    with printed.open("w", encoding="utf-8") as output:
        child = subprocess.Popen(
            words,
            env=os.environ | own | dict(point.environment),
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = child.wait(given.seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with contextlib.suppress(ProcessLookupError):  # what it started ends with it
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    if code is None:
        given.note("all" if not _rows_of(given) else "rest", f"stopped after {given.seconds:.0f} s")
    elif code:
        given.note("all" if not _rows_of(given) else "rest", f"failed: {last_line(printed, code)}")


def last_line(printed: Path, code: int) -> str:
    """Give the last line that says something, or the exit code."""
    lines = [line.strip() for line in printed.read_text(encoding="utf-8", errors="replace").splitlines()]
    return next((line[:300] for line in reversed(lines) if line), f"exit code {code}")


def _rows_of(given: Given) -> list[dict[str, Any]]:
    return [row for row in read_rows(given.folder) if row["point"] == given.point]


def _command(given: Given, point: Point) -> str:
    """Spell what repeats a point, without the places of other systems."""
    part = next((name for name, points in PARTS.items() if point in points), "")
    small = ["--small"] if given.small else []
    words = [part, "--folder", "DIR", "--device", given.device, *small, "--only", point.name]
    return shlex.join(["python", "benchmarks/gpu.py", *words])


def note_machine(given: Given) -> None:
    """Note what the figures depend on."""
    from crpipe.setup.doctor import gpus_here  # noqa: PLC0415 - with a message where crpipe is missing

    forget(given.folder, MACHINE)
    gpus = gpus_here() if given.device != "cpu" else ()
    for gpu in gpus or (None,):
        name = f"{gpu.name}, {gpu.memory_mib} MiB" if gpu else f"no GPU ({given.device})"
        given.note("device", name + (f", driver {gpu.driver}" if gpu else ""))
    git = ["git", "-C", str(HERE), "describe", "--always", "--dirty"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False)
    given.note("commit", commit.stdout.strip() or "unknown")
    given.note("torch", version("torch"))
    given.note("Python", platform.python_version())
    given.note("cores", len(os.sched_getaffinity(0)))
    given.note("date", time.strftime("%Y-%m-%d"))
    if given.small:
        given.note("sizes", "small: a rehearsal, no figure of it counts")


def read_command_line(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=[*PARTS, "table"])
    parser.add_argument("--folder", type=Path, required=True, help="for rows, output and temporary files")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--small", action="store_true", help="sizes of a rehearsal")
    parser.add_argument("--seconds", type=float, help="time of the part")
    parser.add_argument("--only", nargs="+", default=[], help="points whose names begin like this")
    parser.add_argument("--cr-muons", type=Path, help="clone of the earlier system")
    parser.add_argument("--iceaggr", type=Path, help="clone")
    parser.add_argument("--xec-ml-wl", type=Path, help="clone")
    return parser.parse_args(words)


def main() -> None:
    """Run a part, or print the table."""
    options = read_command_line()
    folder: Path = options.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    if options.part != "table":
        if importlib.util.find_spec("crpipe") is None:
            sys.exit("crpipe cannot be imported: pip install -e ., or PYTHONPATH=src")
        seconds = options.seconds or (SMALL_SECONDS if options.small else PART_SECONDS)
        peers = {"cr_muons": options.cr_muons, "iceaggr": options.iceaggr, "xec_ml_wl": options.xec_ml_wl}
        places = {name: path and path.absolute() for name, path in peers.items()}
        given = Given("", folder, options.device, options.small, seconds, **places)
        chosen = [
            point
            for point in PARTS[options.part]
            if not options.only or point.name.startswith(tuple(options.only))
        ]
        run_part(chosen, given)
    lines = table(read_rows(folder))
    (folder / "table.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    if options.part == "table":
        print("\n".join(lines))


if __name__ == "__main__":
    main()
