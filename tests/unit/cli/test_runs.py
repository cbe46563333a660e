"""The verb `run`, up to the point where the workflow would start."""

import pytest
from typer.testing import CliRunner

from crpipe.cli.app import app
from crpipe.core.errors import ConfigError


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """Call `crpipe run` in a directory with a Snakefile; give the request that would be run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Snakefile").touch()
    requests = []
    monkeypatch.setattr(
        "crpipe.workflow.attempts.run_until_done", lambda request, _: requests.append(request)
    )

    def call(*words):
        done = CliRunner().invoke(app, ["run", *words])
        return requests.pop() if requests else done

    return call


def test_targets_and_options_of_snakemake_are_told_apart(asked):
    request = asked("train_all", "-j", "2", "--", "--retries", "3")
    assert (request.targets, request.cores, request.more) == (("train_all",), "2", ("--retries", "3"))
    request = asked("--profile", "slurm", "--", "--retries", "3", "-n")
    assert (request.targets, request.more, request.dry_run) == ((), ("--retries", "3"), True)


def test_the_configuration_is_that_of_every_verb(asked):
    (request) = asked("--config", "a.yaml", "--set", "run=b")
    assert [str(path) for path in request.files] == ["a.yaml"]
    assert request.overrides == ("run=b",)


def test_pauses_are_asked_for_by_name(asked):
    assert asked().pause_s == 0.0
    assert asked("--keep-trying").pause_s == 60.0
    assert asked("--keep-trying", "--pause-minutes", "5").pause_s == 300.0


def test_a_target_beside_links_is_refused(asked):
    assert asked("--links", "2").links == 2
    assert asked("train_all", "--links", "2").exit_code == 2


def test_another_directory_is_refused_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["run"])
    assert isinstance(done.exception, ConfigError)
    assert "no Snakefile here" in str(done.exception)
