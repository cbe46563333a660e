"""Runs each job in an empty folder below $NODES, as executors of Kubernetes and of clouds do on a machine.

Nothing reaches a job but its command, the storage and the sources, which the command gets from there.
"""

import os
import subprocess
import tempfile
from pathlib import Path

from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor
from snakemake_interface_executor_plugins.settings import CommonSettings

common_settings = CommonSettings(
    non_local_exec=True,
    implies_no_shared_fs=True,
    job_deploy_sources=True,
    pass_default_storage_provider_args=True,
    pass_default_resources_args=True,
    pass_envvar_declarations_to_cmd=False,
    auto_deploy_default_storage_provider=False,
    init_seconds_before_status_checks=0,
)


class Executor(RemoteExecutor):
    """Starts processes; beside a job's folder, FOLDER.pid has its process group, FOLDER.log its words."""

    def __post_init__(self):
        self._processes = {}

    def run_job(self, job):
        folder = tempfile.mkdtemp(dir=os.environ["NODES"])
        with Path(f"{folder}.log").open("w") as log:
            process = subprocess.Popen(
                ["sh", "-c", self.format_job_exec(job)],
                cwd=folder,
                env={**os.environ, **self.envvars()},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        Path(f"{folder}.pid").write_text(str(process.pid))
        self._processes[str(process.pid)] = process
        self.report_job_submission(SubmittedJobInfo(job, external_jobid=str(process.pid)))

    async def check_active_jobs(self, active_jobs):
        for info in active_jobs:
            code = self._processes[info.external_jobid].poll()
            if code is None:
                yield info
            elif code:
                self.report_job_error(info)
            else:
                self.report_job_success(info)

    def cancel_jobs(self, active_jobs):
        for info in active_jobs:
            os.killpg(int(info.external_jobid), 15)
