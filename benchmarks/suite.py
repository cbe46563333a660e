"""Many benchmarks one after the other, each in a process of its own, and one table of all."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import peers, table
from benchmarks.catalogue import BENCHMARKS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from benchmarks.catalogue import Benchmark

ROOT = Path(__file__).parents[1]
PART_SECONDS = 570.0
END_SECONDS = 3.0  # kept for ending a benchmark
MACHINE = "machine.txt"


@dataclass
class Outcome:
    """What came of a benchmark: its rows, or why there are none."""

    name: str
    rows: list[dict[str, Any]] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    trouble: str = ""
    seconds: float = 0.0
    load: tuple[float, float] = (0.0, 0.0)


def gpus() -> list[str]:
    """Name the GPUs of NVIDIA, with their drivers."""
    from crpipe.setup.doctor import gpus_here  # noqa: PLC0415 - with a message where crpipe is missing

    return [f"{gpu.name}, {gpu.memory_mib} MiB, driver {gpu.driver}" for gpu in gpus_here()]


def machine(given: Mapping[str, str]) -> list[str]:
    """Describe what the numbers depend on."""
    cpu = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":")[1].strip() for line in cpu if line.startswith("model name")), "?")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1024**3
    cores = len(os.sched_getaffinity(0))
    found = []
    for library in peers.PACKAGES:
        try:
            found.append(f"{library} {version(library)}")
        except PackageNotFoundError:
            found.append(f"{library} missing")
    now = f"{time.strftime('%Y-%m-%d')}, load {os.getloadavg()[0]:.1f}"
    commits = [f"{name} {peers.commit_of(place)}" for name, place in {"crpipe": ROOT, **given}.items()]
    return [
        f"{now}; {model}, {cores} cores, {memory:.0f} GiB, {platform.platform()}",
        f"Python {platform.python_version()}, {', '.join(found)}",
        *gpus(),
        ", ".join(commits),
    ]


def words_of(options: Mapping[str, Any]) -> list[str]:
    """Return options as one types them."""
    words: list[str] = []
    for name, value in options.items():
        words.append(f"--{name.replace('_', '-')}")
        if value is not True:
            words += map(str, value) if isinstance(value, list) else [str(value)]
    return words


def obstacle(
    benchmark: Benchmark, given: Mapping[str, str], options: Mapping[str, Any], seconds: float
) -> str:
    """Return why a benchmark cannot run, if so."""
    lacking = [program for program in benchmark.programs if shutil.which(program) is None]
    lacking += [module for module in benchmark.needs if importlib.util.find_spec(module) is None]
    if lacking:
        return f"not run: needs {' and '.join(lacking)}"
    if benchmark.needs_peer and not set(benchmark.peers) & set(given):
        return "not run: all of its peers are missing"
    if seconds < (min(benchmark.least, 5.0) if options.get("small") else benchmark.least):
        return "not run: time"
    return ""


def run_apart(
    name: str,
    benchmark: Benchmark,
    given: Mapping[str, str],
    folder: Path,
    *,
    options: Mapping[str, Any],
    seconds: float,
) -> Outcome:
    """Run one benchmark in a process of its own; its output goes to ``folder``."""
    outcome = Outcome(name, missing=[peers.missing(peer) for peer in benchmark.peers if peer not in given])
    outcome.trouble = obstacle(benchmark, given, options, seconds)
    if not outcome.trouble:
        noted = folder.resolve() / f"{name}.rows"
        noted.unlink(missing_ok=True)
        own = [f"{peer}={given[peer]}" for peer in benchmark.peers if peer in given]
        words = [sys.executable, "-u", "-m", "benchmarks", benchmark.function, *words_of(options)]
        words += ["--noted", str(noted), *(["--peer", *own] if own else [])]
        begin, load = time.perf_counter(), os.getloadavg()[0]
        printed, code = folder / f"{name}.txt", None
        with printed.open("w", encoding="utf-8") as output:
            environment = os.environ | dict(benchmark.environment) | {"BENCHMARK_SECONDS": f"{seconds:.0f}"}
            environment["TORCHINDUCTOR_CACHE_DIR"] = str(folder.resolve() / "inductor")
            pipes = {"stdout": output, "stderr": subprocess.STDOUT}
            child = subprocess.Popen(words, env=environment, cwd=ROOT, start_new_session=True, **pipes)
            try:
                code = child.wait(seconds)
            except subprocess.TimeoutExpired:
                outcome.trouble = f"stopped after {seconds:.0f} s, see {printed}"
            finally:
                with contextlib.suppress(ProcessLookupError):  # what it started ends with it
                    os.killpg(child.pid, signal.SIGKILL)
                child.wait()
        if code:
            outcome.trouble = f"failed with {code}: {last_line(printed)}, see {printed}"
        outcome.seconds = time.perf_counter() - begin
        outcome.load = (load, os.getloadavg()[0])
        outcome.rows = read_rows(noted)
    (folder / f"{name}.json").write_text(json.dumps(asdict(outcome)), encoding="utf-8")
    return outcome


def last_line(printed: Path) -> str:
    """Return the last line that is not empty."""
    lines = printed.read_text(encoding="utf-8", errors="replace").splitlines()
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "no output")


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Read rows; one that a kill cut short ends the list."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows


def summary(outcomes: Iterable[Outcome]) -> list[str]:
    """Show what was compared and what was noted as Markdown tables, and below them what was not run."""
    ratios, notes, rest = [], [], []
    for outcome in outcomes:
        for row in outcome.rows:
            if "value" in row:
                notes.append([outcome.name, row["what"], row["value"], row["unit"]])
                continue
            median, goal = statistics.median(row["ratios"]), row["goal"]
            met = "" if goal is None else f"{goal:.3g}: {'yes' if median >= goal else 'no'}"
            ends = f"{min(row['ratios']):.2f} to {max(row['ratios']):.2f}"
            ratios.append([row["what"], row["peer"], f"{median:.2f}", ends, len(row["ratios"]), met])
        if outcome.trouble:
            rest.append(f"- {outcome.name}: {outcome.trouble}")
        rest += [f"- {text}" for text in outcome.missing]
        if outcome.seconds:
            minutes, (before, after) = outcome.seconds / 60, outcome.load
            rest.append(f"- {outcome.name}: {minutes:.1f} minutes, load {before:.1f}, {after:.1f}")
    head = ["", "compared with", "crpipe is faster by", "lowest to highest", "rounds", "goal"]
    compared = [*table.lines(head, ratios), ""] if ratios or not notes else []
    noted = [*table.lines(["", "what", "value", "unit"], notes), ""] if notes else []
    return [*compared, *noted, *dict.fromkeys(rest)]


def table_of(folder: Path) -> list[str]:
    """Show all that was run with a folder."""
    path = folder / MACHINE
    paths = [folder / f"{name}.json" for name in BENCHMARKS]
    outcomes = [Outcome(**json.loads(each.read_text(encoding="utf-8"))) for each in paths if each.exists()]
    above = path.read_text(encoding="utf-8") if path.exists() else "machine unknown: nothing has run\n"
    return [above, *summary(outcomes)]


def run_all(names: Iterable[str], given: Mapping[str, str], folder: Path, **more: Any) -> int:
    """Run benchmarks one after the other and print the table; return 1 if one failed.

    seconds: of all together. Further options go to each benchmark.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MACHINE).write_text("\n".join(machine(given)) + "\n", encoding="utf-8")
    seconds, begin, failed = more.pop("seconds", None), time.monotonic(), False
    for name in names:
        print(f"{time.strftime('%H:%M:%S')} {name}", flush=True)
        limit = 120.0 * BENCHMARKS[name].minutes
        if seconds:
            limit = min(limit / 2, seconds - (time.monotonic() - begin) - END_SECONDS)
        options = {**(BENCHMARKS[name].comparison or {}), **more}
        outcome = run_apart(name, BENCHMARKS[name], given, folder, options=options, seconds=limit)
        failed |= bool(outcome.trouble) and not outcome.trouble.startswith("not run")
    lines = table_of(folder)
    (folder / "table.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))
    return int(failed)
