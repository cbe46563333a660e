"""The changes that are made to Snakemake's HTCondor plugin, for the minor version they were tried with."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
import subprocess
import time
from typing import TYPE_CHECKING, Any

from crpipe.core.errors import MissingExtra, QueueError
from crpipe.workflow.slurm import LONGEST_CALL, is_plain, node_words

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence
    from types import ModuleType

DISTRIBUTION = "snakemake-executor-plugin-htcondor"
PLUGIN = DISTRIBUTION.replace("-", "_")
MINOR = "0.3"
ASK_AGAIN_S = 20.0
_VERSION = re.compile(r"\d+\.\d+\.\d+")
_CHANGED = ("_get_base_exec_and_args", "run_job", "_report_and_resolve_job_state", "check_active_jobs")
_SET_LAST = "_unified_log_file"  # by the executor's __post_init__


def check_plugin(plugin: ModuleType, version: str) -> None:
    """Raise MissingExtra for a minor version of the plugin that `adapt_plugin` does not know."""
    if not _is_known(plugin, version):
        raise MissingExtra(
            f"{DISTRIBUTION} {version} is installed; crpipe changes what it submits, and knows {MINOR} only: "
            f"pip install '{DISTRIBUTION}=={MINOR}.*'"
        )


def _is_known(plugin: ModuleType, version: str) -> bool:
    return version.startswith(f"{MINOR}.") and all(hasattr(plugin.Executor, name) for name in _CHANGED)


def adapt_plugin(plugin: ModuleType, version: str, allowed: Callable[[], bool]) -> None:
    """Make the plugin submit bare commands that ask for what the rules say, and remove jobs that it gives up.

    ``allowed``: whether jobs are nothing but their commands. Nothing changes in an unknown version.
    """
    if not _is_known(plugin, version):
        return
    executor: Any = plugin.Executor
    command, submit, report, check = (getattr(executor, name) for name in _CHANGED)
    changed = _bare(command, allowed), _asking(submit, plugin), _removing(report, plugin), _complete(check)
    for name, function in zip(_CHANGED, changed, strict=True):
        setattr(executor, name, function)


def _bare(
    before: Callable[..., tuple[str, str]], allowed: Callable[[], bool]
) -> Callable[..., tuple[str, str]]:
    """Replace the Snakemake on the node: it keeps signals to itself, and an eviction takes no snapshot."""

    def command(self: Any, job: Any) -> tuple[str, str]:
        if job.resources.get("job_wrapper") is None and allowed() and is_plain(job):
            wait = self.workflow.execution_settings.latency_wait
            python, *words = node_words(job, self.get_python_executable(), None, wait)
            if len(words[-1]) < LONGEST_CALL:
                return python, quoted(words)
        return before(self, job)

    return command


def quoted(words: Sequence[str]) -> str:
    """Quote words as HTCondor's submit files do: 'a b' in one pair of double quotes around all."""
    return '"' + " ".join("'" + word.replace("'", "''").replace('"', '""') + "'" for word in words) + '"'


def _asking(before: Callable[..., None], plugin: Any) -> Callable[..., None]:
    def run_job(self: Any, job: Any) -> None:
        wait_for_schedd(plugin.htcondor, self.logger.warning)
        if not job.is_group():
            job.resources.update(requests(job.resources))
        before(self, job)

    return run_job


def wait_for_schedd(bindings: Any, say: Callable[[str], None]) -> None:
    """Return when the schedd lets these bindings act: a job that it does not take would end the workflow."""
    while True:
        try:
            bindings.Schedd().act(bindings.JobAction.Remove, "false")
        except (bindings.HTCondorException, OSError, RuntimeError) as error:
            cause = " ".join(str(error).split())
            say(f"HTCondor takes no job now ({cause}); asking again in {ASK_AGAIN_S:g} s")
            time.sleep(ASK_AGAIN_S)
        else:
            return


def requests(resources: Any) -> dict[str, int]:
    """Return in HTCondor's names what a job asks for in Snakemake's and Slurm's; what a profile sets wins."""
    gpus = str(resources.get("gres") or "").rpartition(":")[2]
    asked = {"htcondor_request_mem_mb": resources.get("mem_mb"), "request_gpus": gpus}
    return {name: int(value) for name, value in asked.items() if value and resources.get(name) is None}


def _removing(before: Callable[..., Any], plugin: Any) -> Callable[..., Any]:
    """Remove a job that is held for too long: released later it would work beside its successor."""

    def report(self: Any, submitted: Any, state: Any) -> Any:
        active = before(self, submitted, state)
        if active is None and state.status is plugin.JobStatus.HELD:
            bindings = plugin.htcondor
            with contextlib.suppress(
                bindings.HTCondorException, OSError, RuntimeError
            ):  # the next head removes it
                bindings.Schedd().act(bindings.JobAction.Remove, [f"{submitted.external_jobid}.0"])
        return active

    return report


def _complete(before: Callable[..., AsyncGenerator[Any]]) -> Callable[..., AsyncGenerator[Any]]:
    """Look for jobs with a complete executor only.

    The thread that looks begins before. In a directory with a log of earlier jobs it would end with an
    AttributeError, and the workflow would wait for ever.
    """

    async def check_active_jobs(self: Any, active_jobs: list[Any]) -> AsyncGenerator[Any]:
        while not hasattr(self, _SET_LAST):  # noqa: ASYNC110 - nobody says when
            await asyncio.sleep(0.1)
        async for job in before(self, active_jobs):
            yield job

    return check_active_jobs


# Whether the Python package htcondor gets on with the pool: the plugin's own range of versions fits few.


def check_bindings(bindings: ModuleType) -> None:
    """Raise MissingExtra or QueueError where the schedd does not let these bindings act (here on no job)."""
    try:
        bindings.Schedd().act(bindings.JobAction.Remove, "false")
    except (bindings.HTCondorException, OSError, RuntimeError) as error:
        raise _refused(_number(bindings.version()), _pool_version(), error) from error


def _refused(ours: str, pool: str, error: Exception) -> MissingExtra | QueueError:
    cause = " ".join(str(error).split()).rstrip(".")
    series = pool.partition(".")[0]
    if pool and series != ours.partition(".")[0]:
        return MissingExtra(
            f"the Python package htcondor {ours} is not of the series of this pool, HTCondor {pool}, and is "
            f"refused ({cause}): pip install --no-deps 'htcondor=={series}.*'"
        )
    return QueueError(
        f"HTCondor {pool or 'of unknown version'} refuses the Python package htcondor {ours}: {cause}; see "
        "whether condor_q answers here"
    )


def _pool_version() -> str:
    """Ask for the version of HTCondor's programs on this machine; "" without any."""
    program = shutil.which("condor_version")
    if program is None:
        return ""
    done = subprocess.run([program], capture_output=True, text=True, check=False)  # noqa: S603 - fixed
    return _number(done.stdout)


def _number(text: str) -> str:
    match = _VERSION.search(text)
    return match[0] if match else ""
