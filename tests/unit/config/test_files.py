"""Which configuration files are read, and in which order."""

import os
from pathlib import Path

import pytest

from crpipe.config.files import config_files, relative
from crpipe.core.errors import ConfigError

DEFAULTS, OWN = Path("config/config.yaml"), Path("crpipe.yaml")


@pytest.fixture
def here(tmp_path):
    """A directory with config/config.yaml, crpipe.yaml, and two more files."""
    (tmp_path / "config").mkdir()
    for name in (DEFAULTS, OWN, "a.yaml", "b.yaml"):
        (tmp_path / name).touch()
    return tmp_path


@pytest.mark.parametrize(
    ("named", "variable", "read"),
    [
        ([], "", [DEFAULTS, OWN]),
        ([], f"b.yaml{os.pathsep}a.yaml{os.pathsep}", [DEFAULTS, Path("b.yaml"), Path("a.yaml")]),
        (["a.yaml"], "b.yaml", [DEFAULTS, Path("a.yaml")]),
        (["a.yaml", "missing.yaml"], "missing.yaml", [DEFAULTS, Path("a.yaml"), Path("missing.yaml")]),
        (["config/config.yaml"], "b.yaml", [DEFAULTS]),
        (["a.yaml", "b.yaml", "a.yaml"], "", [DEFAULTS, Path("a.yaml"), Path("b.yaml"), Path("a.yaml")]),
    ],
)
def test_named_files_win_over_the_variable_and_it_over_the_file_of_the_directory(here, named, variable, read):
    assert list(config_files(named, here=here, environ={"CRPIPE_CONFIG": variable})) == read


def test_the_defaults_are_read_once_however_they_are_named(here):
    read = config_files([here / DEFAULTS, "a.yaml"], here=here, environ={})
    assert read == (DEFAULTS, Path("a.yaml"))


def test_a_directory_without_defaults_uses_what_is_named_alone(tmp_path):
    assert config_files(here=tmp_path, environ={}) == ()
    (tmp_path / OWN).touch()
    assert config_files(here=tmp_path, environ={}) == (OWN,)
    assert config_files(["a.yaml"], here=tmp_path, environ={}) == (Path("a.yaml"),)


def test_a_missing_file_of_the_variable_is_an_error_that_names_it(here):
    with pytest.raises(
        ConfigError, match=r"^CRPIPE_CONFIG: lost\.yaml does not exist; .*unset CRPIPE_CONFIG"
    ):
        config_files(here=here, environ={"CRPIPE_CONFIG": f"a.yaml{os.pathsep}lost.yaml"})


def test_files_of_a_directory_are_named_relative_to_it(tmp_path):
    paths = [tmp_path / "a.yaml", Path("b.yaml"), Path("/elsewhere/c.yaml")]
    assert relative(paths, tmp_path) == [Path("a.yaml"), Path("b.yaml"), Path("/elsewhere/c.yaml")]
