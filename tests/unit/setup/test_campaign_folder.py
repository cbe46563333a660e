import errno
import os
import re
from pathlib import Path

import pytest

import crpipe
from crpipe.core.errors import ConfigError, DiskError
from crpipe.setup import init
from crpipe.setup.init import changed_files, start_campaign, workflow_files, workflow_home

REPOSITORY = Path(__file__).parents[3]


def test_a_checkout_has_the_files_at_its_root():
    assert workflow_home() == REPOSITORY


def test_a_wheel_has_them_beside_its_modules(tmp_path, monkeypatch):
    package = tmp_path / "site-packages" / "crpipe"
    rules = package / "setup" / "folder" / "workflow" / "rules"
    monkeypatch.setattr(crpipe, "__file__", str(package / "__init__.py"))
    with pytest.raises(ConfigError, match="this installation has no workflow"):
        workflow_home()
    rules.mkdir(parents=True)
    (rules / "common.smk").touch()
    assert workflow_home() == package / "setup" / "folder"


def test_every_file_that_the_workflow_names_is_among_them():
    paths = {str(file.path) for file in workflow_files()}
    workflow = REPOSITORY / "workflow"
    assert {str(path.relative_to(REPOSITORY)) for path in workflow.rglob("*.smk")} <= paths
    for rules in workflow.rglob("*.smk"):
        for name in re.findall(r'SCRIPTS / "([^"]+)"|report/(\w+\.rst)', rules.read_text()):
            assert any(path.endswith("".join(name)) for path in paths), name
    assert {"config/config.yaml", "profiles/default/config.yaml", "slurm/config.yaml"} <= paths
    assert not {path for path in paths if "test-clean-install" in path or "__pycache__" in path}


def test_a_new_folder_gets_all_and_a_second_call_changes_nothing(tmp_path):
    folder = tmp_path / "a b"
    lines = start_campaign(folder, "run: x\n")
    assert {str(file.path) for file in workflow_files()} <= {
        str(path.relative_to(folder)) for path in folder.rglob("*")
    }
    assert "  cd " in "\n".join(lines)
    assert f"'{folder}'" in "\n".join(lines)
    assert changed_files(folder) == []
    assert start_campaign(folder, "run: x\n")[0] == f"{folder}: nothing to change"


def test_a_file_with_other_content_stops_all_of_it(tmp_path):
    (tmp_path / "Snakefile").write_text("mine")
    with pytest.raises(ConfigError) as error:
        start_campaign(tmp_path, "run: x\n")
    assert f"{tmp_path}/Snakefile: already there, with other content" in str(error.value)
    assert "--force" in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["Snakefile"]


def test_force_keeps_the_old_files(tmp_path):
    start_campaign(tmp_path, "run: x\n")
    start_campaign(tmp_path, "run: y\n", force=True)
    start_campaign(tmp_path, "run: z\n", force=True)
    texts = [(tmp_path / f"crpipe.yaml{end}").read_text() for end in ("", ".old", ".old2")]
    assert texts == ["run: z\n", "run: x\n", "run: y\n"]


def test_an_edited_profile_stays_where_the_workflow_is_there(tmp_path):
    start_campaign(tmp_path, "run: x\n")
    (tmp_path / "crpipe.yaml").unlink()
    (tmp_path / "slurm" / "config.yaml").write_text("jobs: 3\n")
    start_campaign(tmp_path, "run: x\n")
    assert (tmp_path / "slurm" / "config.yaml").read_text() == "jobs: 3\n"
    (tmp_path / "workflow" / "Snakefile").write_text("edited")
    assert changed_files(tmp_path) == [Path("workflow/Snakefile")]


def test_the_list_of_files_names_only_what_exists_or_may():
    patterns = init._PATTERNS.read_text().splitlines()
    for pattern in patterns:
        assert pattern.startswith("#") or list(REPOSITORY.glob(pattern)), pattern


def test_a_link_to_nowhere_is_in_the_way_and_force_keeps_it(tmp_path):
    (tmp_path / "crpipe.yaml").symlink_to(tmp_path / "mounted later")
    with pytest.raises(ConfigError, match="already there, with other content; nothing was written"):
        start_campaign(tmp_path, "run: x\n")
    start_campaign(tmp_path, "run: x\n", force=True)
    assert (tmp_path / "crpipe.yaml.old").is_symlink()
    assert not (tmp_path / "crpipe.yaml").is_symlink()


def test_a_start_that_failed_in_the_middle_is_finished_by_the_next(tmp_path, monkeypatch):
    """Whichever file it failed at: the folder was taken for one that has the workflow."""
    whole = tmp_path / "whole"
    start_campaign(whole, "run: a\n")
    names = {path.relative_to(whole) for path in whole.rglob("*") if path.is_file()}
    for number in range(len(names)):
        folder, left = tmp_path / str(number), iter(range(number))

        def publish(part, path, left=left):
            if next(left, None) is None:
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
            part.replace(path)

        with monkeypatch.context() as failing:
            failing.setattr("crpipe.core.files.publish", publish)
            with pytest.raises(DiskError):
                start_campaign(folder, "run: a\n")
        start_campaign(folder, "run: a\n")
        assert {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()} == names
