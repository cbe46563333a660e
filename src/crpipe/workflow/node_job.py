"""Runs one job of the workflow on a node of a cluster, in the place of a Snakemake there.

A program without the libraries of crpipe: they take longer to import than many a job runs. What the head
knows of the job comes in as one word; the command runs, and its benchmark is written. The head checks its
outputs, as after every job.
"""

from __future__ import annotations

import base64
import json
import os
import shlex
import signal
import sys
import tempfile
import time
import zlib
from pathlib import Path
from typing import Any

# Jobs keep of the variables of Slurm what names the allocation: its other ones would change what srun does.
KEPT = frozenset(
    f"SLURM_{name}" for name in ("JOB_ID", "JOBID", "CLUSTER_NAME", "SUBMIT_DIR", "SUBMIT_HOST", "CONF")
)
THREADS = ("OMP", "GOTO", "OPENBLAS", "MKL", "NUMEXPR")
TEMPORARY = ("TMPDIR", "TMP", "TEMPDIR", "TEMP")
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
_COLUMNS = (
    *("s", "h:m:s", "max_rss", "max_vms", "max_uss", "max_pss", "io_in", "io_out", "mean_load", "cpu_time"),
)
_MISSING = 66


def pack(job: dict[str, Any]) -> str:
    """Write a job as one word that no shell changes."""
    return base64.urlsafe_b64encode(zlib.compress(json.dumps(job).encode())).decode()


def unpack(word: str) -> dict[str, Any]:
    """Read what `pack` wrote."""
    job: dict[str, Any] = json.loads(zlib.decompress(base64.urlsafe_b64decode(word)))
    return job


def step_environment(environment: dict[str, str]) -> dict[str, str]:
    """Return the variables of a job step: a nested srun must not take over what the allocation asked for."""
    return {
        name: value
        for name, value in environment.items()
        if name in KEPT or not name.startswith(("SLURM_", "SRUN_", "SBATCH_"))
    }


def command_environment(environment: dict[str, str], threads: int) -> dict[str, str]:
    """Return the variables of the command itself: threads of libraries, and where temporary files go."""
    counts = {f"{name}_NUM_THREADS": str(threads) for name in THREADS}
    counts["VECLIB_MAXIMUM_THREADS"] = str(threads)
    return {**environment, **counts, **dict.fromkeys(TEMPORARY, tempfile.gettempdir())}


def prepare(job: dict[str, Any]) -> list[str]:
    """Wait for the inputs, remove outputs and log of an earlier attempt, make their folders.

    Return the inputs that are still missing: a network file system shows new files late.
    """
    for path in map(Path, (*job["output"], *job["log"])):
        path.unlink(missing_ok=True)
    for path in map(Path, (*job["output"], *job["log"], *job["benchmark"])):
        path.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + job["latency_wait"]
    while missing := [path for path in job["input"] if not Path(path).exists()]:
        if time.monotonic() > deadline:
            return missing
        time.sleep(1)
    return []


def run(job: dict[str, Any]) -> int:
    """Run the command; return the exit code that a shell would report."""
    missing = prepare(job)
    if missing:
        sys.stderr.write(f"missing after {job['latency_wait']} s: {', '.join(missing)}\n")
        return _MISSING
    os.write(1, f"{job['command']}\n".encode())  # into the log of the scheduler's job
    started = time.monotonic()
    words = ["bash", "-c", f"set -euo pipefail; {job['command']}"]
    environment = command_environment(dict(os.environ), job["threads"])
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # one that comes now waits until somebody can take it
    process = os.posix_spawnp("bash", words, environment, setsigmask=())

    def pass_on(number: int, _frame: object) -> None:
        """Do nothing where srun's signals reach the command, too, which is of the same group."""
        if job["srun"] is None:
            os.kill(process, number)

    for number in _SIGNALS:
        signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    _, status, used = os.wait4(process, 0)
    code = os.waitstatus_to_exitcode(status)
    for path in job["benchmark"]:
        write_benchmark(path, time.monotonic() - started, used)
    return 128 - code if code < 0 else code


def write_benchmark(path: str, seconds: float, used: Any) -> None:
    """Write the table that Snakemake writes, NA for what the kernel does not count."""
    cpu = used.ru_utime + used.ru_stime
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    block = 512 / 1024**2
    values = (
        f"{seconds:.4f}",
        f"{hours}:{minutes:02}:{rest:02}",
        f"{used.ru_maxrss / 1024:.2f}",
        *("NA", "NA", "NA"),
        f"{used.ru_inblock * block:.2f}",
        f"{used.ru_oublock * block:.2f}",
        f"{100 * cpu / max(seconds, 1e-9):.2f}",
        f"{cpu:.2f}",
    )
    Path(path).write_text("\t".join(_COLUMNS) + "\n" + "\t".join(values) + "\n")


def main(word: str, *, inside: bool) -> None:
    """Start the job's step with srun, if there is one; within it, run the command."""
    job = unpack(word)
    os.chdir(job["folder"])
    if inside or job["srun"] is None:
        sys.exit(run(job))
    words = ["srun", *shlex.split(job["srun"]), sys.executable, "-I", "-S", __file__, word, "inside"]
    os.execvpe(words[0], words, step_environment(dict(os.environ)))  # noqa: S606 - words of the head


if __name__ == "__main__":
    main(sys.argv[1], inside=len(sys.argv) > 2)  # noqa: PLR2004
