"""The changes to Snakemake's HTCondor plug-in."""

import asyncio
import re
from enum import Enum
from types import SimpleNamespace

import pytest

from crpipe.core.errors import MissingExtra, QueueError
from crpipe.workflow import htcondor, node_job
from crpipe.workflow.htcondor import adapt_plugin, check_bindings, check_plugin, quoted, requests
from slurm_stand_in import job_of_snakemake, put_programs

VERSION = f"{htcondor.MINOR}.0"


class JobStatus(Enum):
    RUNNING = 1
    HELD = 2


@pytest.fixture
def plugin():
    """A plugin as far as it is changed; what it is asked to do is kept in ``done``."""
    done = []

    class Executor:
        logger = SimpleNamespace(warning=done.append)
        workflow = SimpleNamespace(execution_settings=SimpleNamespace(latency_wait=30))

        def get_python_executable(self):
            return "/venv/bin/python"

        def _get_base_exec_and_args(self, job):
            return "python", "a Snakemake"

        def run_job(self, job):
            done.append(dict(job.resources))

        def _report_and_resolve_job_state(self, submitted, state):
            return submitted if state.active else None

        async def check_active_jobs(self, active_jobs):
            for job in active_jobs:
                yield self._unified_log_file, job

    class Schedd:
        def act(self, what, jobs):
            done.append((what, jobs))

    bindings = SimpleNamespace(
        Schedd=Schedd, HTCondorException=OSError, JobAction=SimpleNamespace(Remove="remove")
    )
    return SimpleNamespace(Executor=Executor, JobStatus=JobStatus, htcondor=bindings, done=done)


def test_a_job_is_submitted_as_its_bare_command(plugin):
    adapt_plugin(plugin, VERSION, lambda: True)
    program, words = plugin.Executor()._get_base_exec_and_args(job_of_snakemake())
    assert program == "/venv/bin/python"
    *options, script, described = re.fullmatch('"(.*)"', words)[1].replace("'", "").split()
    assert (options, script) == (["-I", "-S"], node_job.__file__)
    described = node_job.unpack(described)
    assert described["command"] == "exec crpipe train 7 --set 'a=b' > log 2>&1"
    assert (described["srun"], described["threads"]) == (None, 2)


@pytest.mark.parametrize(
    "changes",
    [
        {"is_shell": False},
        {"resources": {"job_wrapper": "mine.sh"}},
        {"shellcmd": "crpipe " + " ".join(map(str, range(100_000)))},
    ],
)
def test_a_job_that_needs_more_goes_the_way_of_snakemake(plugin, changes):
    adapt_plugin(plugin, VERSION, lambda: True)
    assert plugin.Executor()._get_base_exec_and_args(job_of_snakemake(**changes))[1] == "a Snakemake"


def test_so_does_every_job_where_nothing_is_shared(plugin):
    adapt_plugin(plugin, VERSION, lambda: False)
    assert plugin.Executor()._get_base_exec_and_args(job_of_snakemake())[1] == "a Snakemake"


def test_words_are_quoted_as_in_a_submit_file():
    assert quoted(["a b", "it's", 'say "x"']) == "\"'a b' 'it''s' 'say \"\"x\"\"'\""


@pytest.mark.parametrize(
    ("resources", "asked"),
    [
        ({"mem_mb": 1700, "gres": "gpu:a100:2"}, {"htcondor_request_mem_mb": 1700, "request_gpus": 2}),
        ({"mem_mb": 1700, "gres": "gpu:1"}, {"htcondor_request_mem_mb": 1700, "request_gpus": 1}),
        ({"mem_mb": 1700, "gres": ""}, {"htcondor_request_mem_mb": 1700}),
        ({"mem_mb": 1700, "gres": "gpu:1", "request_gpus": 4, "htcondor_request_mem_mb": 9}, {}),
    ],
)
def test_jobs_ask_for_what_the_rules_say_unless_the_profile_does(plugin, resources, asked):
    assert requests(resources) == asked
    adapt_plugin(plugin, VERSION, lambda: True)
    plugin.Executor().run_job(job_of_snakemake(resources=dict(resources)))
    assert plugin.done == [("remove", "false"), resources | asked]


def test_a_job_waits_until_the_schedd_is_back(plugin, monkeypatch):
    """The plugin ends the workflow where a job is not taken."""
    answers = iter([OSError("no\nschedd"), None])

    class Schedd:
        def act(self, what, jobs):
            if (error := next(answers)) is not None:
                raise error

    monkeypatch.setattr(htcondor, "ASK_AGAIN_S", 0.0)
    plugin.htcondor.Schedd = Schedd
    adapt_plugin(plugin, VERSION, lambda: True)
    plugin.Executor().run_job(job_of_snakemake(resources={}))
    assert plugin.done == ["HTCondor takes no job now (no schedd); asking again in 0 s", {}]


@pytest.mark.parametrize(("status", "active"), [(JobStatus.HELD, True), (JobStatus.RUNNING, False)])
def test_a_job_is_left_alone_that_is_not_given_up_or_not_held(plugin, status, active):
    adapt_plugin(plugin, VERSION, lambda: True)
    submitted, state = SimpleNamespace(external_jobid=7), SimpleNamespace(status=status, active=active)
    plugin.Executor()._report_and_resolve_job_state(submitted, state)
    assert plugin.done == []


def test_a_job_that_was_held_for_too_long_is_removed(plugin):
    adapt_plugin(plugin, VERSION, lambda: True)
    submitted, state = SimpleNamespace(external_jobid=7), SimpleNamespace(status=JobStatus.HELD, active=False)
    assert plugin.Executor()._report_and_resolve_job_state(submitted, state) is None
    assert plugin.done == [("remove", ["7.0"])]


def test_nobody_looks_for_jobs_before_the_executor_is_complete(plugin):
    adapt_plugin(plugin, VERSION, lambda: True)
    executor = plugin.Executor()

    async def look():
        async def first():
            return [each async for each in executor.check_active_jobs([7])]

        task = asyncio.create_task(first())
        await asyncio.sleep(0.05)
        assert not task.done()
        executor._unified_log_file = "log"
        return await task

    assert asyncio.run(look()) == [("log", 7)]


def test_another_version_is_not_changed_and_refused_where_it_is_used(plugin):
    before = vars(plugin.Executor).copy()
    adapt_plugin(plugin, "0.4.0", lambda: True)
    assert vars(plugin.Executor) == before
    with pytest.raises(MissingExtra, match=r"0\.4\.0 is installed.*pip install '.*==0\.3\.\*'"):
        check_plugin(plugin, "0.4.0")
    check_plugin(plugin, VERSION)


def refusing(version):
    """Bindings of a version that the schedd does not let in."""

    class Schedd:
        def act(self, what, jobs):
            raise RuntimeError("Error when performing action\n on the schedd.")

    return SimpleNamespace(
        Schedd=Schedd,
        HTCondorException=OSError,
        JobAction=SimpleNamespace(Remove="remove"),
        version=lambda: f"$CondorVersion: {version} x $",
    )


def test_bindings_of_another_series_are_named_with_what_to_install(tmp_path, monkeypatch):
    put_programs(tmp_path / "bin", monkeypatch, condor_version="echo '$CondorVersion: 23.9.6 2026-07-12 $'\n")
    with pytest.raises(MissingExtra) as raised:
        check_bindings(refusing("24.0.24"))
    assert str(raised.value) == (
        "the Python package htcondor 24.0.24 is not of the series of this pool, HTCondor 23.9.6, and is "
        "refused (Error when performing action on the schedd): pip install --no-deps 'htcondor==23.*'"
    )


@pytest.mark.parametrize("programs", [{"condor_version": "echo '$CondorVersion: 23.9.6 $'\n"}, {}])
def test_a_schedd_that_refuses_fitting_bindings_is_asked_again_later(tmp_path, monkeypatch, programs):
    put_programs(tmp_path / "bin", monkeypatch, **programs)
    with pytest.raises(QueueError, match=r"refuses the Python package htcondor 23\.10\.29: Error when"):
        check_bindings(refusing("23.10.29"))


def test_bindings_that_act_are_not_asked_for_their_version(plugin):
    check_bindings(plugin.htcondor)
    assert plugin.done == [("remove", "false")]
