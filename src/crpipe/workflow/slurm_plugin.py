"""The one change that is made to Snakemake's Slurm plugin, for the one minor version it was tried with."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from crpipe.core.errors import MissingExtra

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

DISTRIBUTION = "snakemake-executor-plugin-slurm"
MINOR = "2.8"  # as in pyproject.toml
DEFAULT_MIN_JOB_AGE_S = 300


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
