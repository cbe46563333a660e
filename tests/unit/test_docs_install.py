import os
import re
import subprocess
import sys
from pathlib import Path

import yaml

REPOSITORY = Path(__file__).parents[2]
PAGE = (REPOSITORY / "docs" / "install.md").read_text()


def test_the_commands_of_the_page_run_in_an_empty_folder(tmp_path):
    (block,) = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "crpipe").write_text(f'#!/bin/sh\nexec {sys.executable} -m crpipe "$@"\n')
    (tmp_path / "crpipe").chmod(0o755)
    variables = {
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(REPOSITORY / "src"),
        "HOME": str(tmp_path),
    }
    (tmp_path / "empty").mkdir()
    done = subprocess.run(
        ["bash", "-euc", block],
        cwd=tmp_path / "empty",
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "empty" / "trial" / "workflow" / "Snakefile").exists()


def test_what_ci_does_not_run_says_why_and_when_it_was_tried():
    for rest in PAGE.split("```sh\n")[1:]:
        text = " ".join(rest.partition("```")[2].split())
        said = re.search(r"Not run in CI: .*?last tried \d{4}-\d\d-\d\d|`make test-clean-install` runs", text)
        assert said is not None, rest[:60]
        assert said.start() < 400


def test_the_conda_files_and_the_images_use_the_tested_versions():
    for path in ("environment.yml", "workflow/envs/crpipe.yaml"):
        tree = yaml.safe_load((REPOSITORY / path).read_text())
        assert "constraints.txt" in tree["dependencies"][-1]["pip"][0]
        assert tree["dependencies"][0] == "python=3.11"
    for name in ("Containerfile", "crpipe.def"):
        text = (REPOSITORY / "container" / name).read_text()
        assert "/build/install /build" in text
        assert "bookworm-slim" in text


def test_the_catalog_of_workflows_finds_what_it_needs():
    tree = yaml.safe_load((REPOSITORY / ".snakemake-workflow-catalog.yml").read_text())
    assert {"mandatory-flags", "software-stack-deployment", "report"} == {*tree["usage"]}
    for path in ("workflow/Snakefile", "config/README.md", "LICENSE"):
        assert (REPOSITORY / path).exists()


def test_the_page_names_every_extra():
    metadata = (REPOSITORY / "pyproject.toml").read_text()
    section = metadata.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    extras = {*re.findall(r"^(\w+) = ", section, re.MULTILINE)} - {"bench", "test", "check"}
    rows = PAGE.partition("## Extras")[2].partition("##")[0]
    assert {
        *re.findall(r"`(\w+)`", "".join(line.split("|")[1] for line in rows.splitlines() if "|" in line))
    } == extras
