"""The changes to Snakemake's Slurm plug-in."""

from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest

from crpipe.core.errors import MissingExtra
from crpipe.workflow import node_job
from crpipe.workflow.slurm import DISTRIBUTION, MINOR, keep_to_squeue, last_known, run_without_snakemake
from slurm_stand_in import job_of_snakemake

REPOSITORY = Path(__file__).parents[3]


def test_an_answer_is_repeated_until_there_is_another():
    given = iter([None, 120, None, 60, None])
    plugin = SimpleNamespace(get_min_job_age=lambda: next(given))
    keep_to_squeue(plugin, f"{MINOR}.0")
    assert [plugin.get_min_job_age() for _ in range(5)] == [300, 120, 120, 60, 60]


@pytest.mark.parametrize("version_there", ["2.9.0", "3.0.0", "2.80.0"])
def test_another_minor_version_is_refused_with_the_command_that_helps(version_there):
    plugin = SimpleNamespace(get_min_job_age=lambda: 1)
    with pytest.raises(MissingExtra) as raised:
        keep_to_squeue(plugin, version_there)
    assert version_there in str(raised.value)
    assert f"pip install '{DISTRIBUTION}=={MINOR}.*'" in str(raised.value)
    assert plugin.get_min_job_age() == 1


def test_a_plugin_without_the_function_is_refused():
    with pytest.raises(MissingExtra):
        keep_to_squeue(SimpleNamespace(), f"{MINOR}.5")


def test_the_installed_plugin_the_constraints_and_the_extra_are_of_this_version():
    plugin = pytest.importorskip("snakemake_executor_plugin_slurm")
    assert callable(plugin.get_min_job_age)
    assert version(DISTRIBUTION).startswith(f"{MINOR}.")
    assert f"{DISTRIBUTION}=={MINOR}." in (REPOSITORY / "constraints.txt").read_text()
    assert f'"{DISTRIBUTION}=={MINOR}.*"' in (REPOSITORY / "pyproject.toml").read_text()


def test_the_last_answer_holds():
    answers = [300]
    assert last_known(lambda: 5, answers) == 5
    assert last_known(lambda: None, answers) == 5


@pytest.fixture
def plugin():
    class Executor:
        array_jobs = frozenset()
        workflow = SimpleNamespace(execution_settings=SimpleNamespace(latency_wait=30))

        def format_job_exec(self, job):
            return "a Snakemake"

        def get_python_executable(self):
            return "/venv/bin/python"

    return SimpleNamespace(Executor=Executor)


STEPS = SimpleNamespace(
    get_cpu_setting=lambda job, _: f"--cpus-per-task={job.threads}",
    get_gpu_setting=lambda _: "",
    get_node_setting=lambda _: "--nodes=1",
)


def test_a_job_is_submitted_as_its_bare_command(plugin):
    run_without_snakemake(plugin, STEPS, lambda: True)
    words = plugin.Executor().format_job_exec(job_of_snakemake()).split()
    assert words[:3] == ["/venv/bin/python", "-I", "-S"]
    assert words[3] == node_job.__file__
    described = node_job.unpack(words[4])
    assert described["command"] == "exec crpipe train 7 --set 'a=b' > log 2>&1"
    assert described["srun"] == "-n1 --cpu-bind=q --cpus-per-task=2 --nodes=1"
    assert (described["threads"], described["benchmark"], described["latency_wait"]) == (2, ["one.tsv"], 30)


@pytest.mark.parametrize(
    "changes",
    [
        {"is_group": lambda: True},
        {"is_shell": False},
        {"is_shadow": True},
        {"resources": {"mpi": "srun"}},
        {"resources": {"cpus_per_gpu": 2}},
        {"rule": SimpleNamespace(resources={"tmpdir": SimpleNamespace(raw="/scratch")})},
        {"input": [SimpleNamespace(is_storage=True)]},
        {"output": [SimpleNamespace(is_storage=False, is_directory=True)]},
        {"shellcmd": "crpipe " + " ".join(map(str, range(100_000)))},
    ],
)
def test_a_job_that_needs_more_goes_the_way_of_snakemake(plugin, changes):
    run_without_snakemake(plugin, STEPS, lambda: True)
    assert plugin.Executor().format_job_exec(job_of_snakemake(**changes)) == "a Snakemake"


def test_so_does_every_job_where_software_is_activated_or_jobs_are_arrays(plugin):
    run_without_snakemake(plugin, STEPS, lambda: False)
    assert plugin.Executor().format_job_exec(job_of_snakemake()) == "a Snakemake"
    run_without_snakemake(plugin, STEPS, lambda: True)
    plugin.Executor.array_jobs = {"split"}
    assert plugin.Executor().format_job_exec(job_of_snakemake()) == "a Snakemake"


def test_the_installed_plugins_have_what_is_called():
    plugin = pytest.importorskip("snakemake_executor_plugin_slurm")
    steps = pytest.importorskip("snakemake_executor_plugin_slurm_jobstep")
    assert callable(plugin.Executor.format_job_exec)
    assert callable(plugin.Executor.get_python_executable)
    assert all(callable(vars(steps)[f"get_{name}_setting"]) for name in ("cpu", "gpu", "node"))
