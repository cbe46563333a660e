"""The two changes that are made to Snakemake's Slurm plugin, for the minor version they were tried with."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crpipe.core.errors import MissingExtra
from crpipe.workflow import node_job

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

DISTRIBUTION = "snakemake-executor-plugin-slurm"
MINOR = "2.8"  # as in pyproject.toml
DEFAULT_MIN_JOB_AGE_S = 300
# Bytes of a job's command line; a longer one names many files, and goes the way of Snakemake.
LONGEST_CALL = 30_000
# What a job asks for that only a Snakemake on the node provides.
_SPECIAL = ("mpi", "cpus_per_gpu", "shell_exec")


def keep_to_squeue(plugin: ModuleType, version: str) -> None:
    """Make the plugin repeat its last answer about MinJobAge where Slurm does not answer for a while.

    Without an answer it changes from squeue to sacct; where Slurm keeps no accounts, sacct never answers.
    Raise MissingExtra for another minor version of the plugin.
    """
    if not version.startswith(f"{MINOR}.") or not hasattr(plugin, "get_min_job_age"):
        raise MissingExtra(
            f"{DISTRIBUTION} {version} is installed; crpipe changes how it asks Slurm for jobs, and knows "
            f"{MINOR} only: pip install '{DISTRIBUTION}=={MINOR}.*'"
        )
    vars(plugin)["get_min_job_age"] = partial(last_known, plugin.get_min_job_age, [DEFAULT_MIN_JOB_AGE_S])


def last_known(ask: Callable[[], int | None], answers: list[int]) -> int:
    """Ask, and repeat the last of ``answers`` when there is no answer now."""
    answer = ask()
    if answer is not None:
        answers[:] = [answer]
    return answers[-1]


def run_without_snakemake(plugin: ModuleType, steps: ModuleType, allowed: Callable[[], bool]) -> None:
    """Make the plugin submit a job's command itself, where it submits a Snakemake that starts another one.

    Both read the whole workflow before the command starts, and what they do after it the head does again.
    A job that needs more than its command goes the way of Snakemake, and every job where it is not
    ``allowed``. ``steps``: Snakemake's plugin for job steps, which spells what a step asks for.
    """
    executor: Any = plugin.Executor
    format_for_snakemake = executor.format_job_exec

    def format_job_exec(self: Any, job: Any) -> str:
        if self.array_jobs or not (allowed() and is_plain(job)):
            return str(format_for_snakemake(self, job))
        wait = self.workflow.execution_settings.latency_wait
        call = node_call(job, self.get_python_executable(), step_options(job, steps), wait)
        return call if len(call) < LONGEST_CALL else str(format_for_snakemake(self, job))

    executor.format_job_exec = format_job_exec


def is_plain(job: Any) -> bool:
    """Return whether a job is one shell command, and its files are files in this directory."""
    if job.is_group() or not job.is_shell or job.is_shadow:
        return False
    temporary = job.rule.resources.get("tmpdir")
    flagged = [*job.input, *job.output, *job.log]
    return (
        not any(name in job.resources.keys() for name in _SPECIAL)  # noqa: SIM118 - not a dict
        and (temporary is None or temporary.raw == "system_tmpdir")
        and not any(file.is_storage for file in flagged)
        and not any(file.is_directory for file in job.output)
    )


def step_options(job: Any, steps: ModuleType) -> str:
    """Format the options of srun, as a job of Snakemake does."""
    settings = (steps.get_cpu_setting(job, False), steps.get_gpu_setting(job), steps.get_node_setting(job))
    return " ".join(["-n1", "--cpu-bind=q", *filter(None, settings)])


def node_call(job: Any, python: str, srun: str, latency_wait: float) -> str:
    """Format the call that runs a job's command on a node."""
    return shlex.join(node_words(job, python, srun, latency_wait))


def node_words(job: Any, python: str, srun: str | None, latency_wait: float) -> list[str]:
    """Return the words of that call; srun: its options, or None where there is no srun."""
    job_plan = {
        "srun": srun,
        "folder": str(Path.cwd()),
        "command": job.shellcmd,
        "input": list(map(str, job.input)),
        "output": list(map(str, job.output)),
        "log": list(map(str, job.log)),
        "benchmark": [str(job.benchmark)] if job.benchmark else [],
        "threads": job.threads,
        "latency_wait": latency_wait,
    }
    return [python, "-I", "-S", str(Path(node_job.__file__)), node_job.pack(job_plan)]
