"""The one change to Snakemake's Slurm plugin."""

from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest

from crpipe.core.errors import MissingExtra
from crpipe.workflow.slurm_plugin import DISTRIBUTION, MINOR, keep_to_squeue, last_known

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
