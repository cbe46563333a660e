"""The tutorial notebook and the page on Python, on a campaign of three tiny ranges that ran to its end."""

import re
import subprocess
import sys

import nbformat
import pytest
from nbclient import NotebookClient

from runs import REPOSITORY, environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
DOCS = REPOSITORY / "docs"
BLOCKS = re.findall(r"^```python\n(.*?)^```", (DOCS / "api.md").read_text(), re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def demo(finished, tmp_path_factory):
    """A folder in which the tiny campaign has the place of the demo."""
    folder = tmp_path_factory.mktemp("tutorial")
    (folder / "runs").mkdir()
    (folder / "runs" / "demo").symlink_to(finished.run)
    (folder / "results").symlink_to(finished.results)
    return folder


# The kernel is another process: what its libraries warn of belongs to them.
@pytest.mark.filterwarnings("default")
def test_the_tutorial_runs_as_it_stands(demo, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY / "src"))
    monkeypatch.setenv("IPYTHONDIR", str(demo / "ipython"))
    notebook = nbformat.read(DOCS / "tutorial.ipynb", 4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(demo)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 2
    assert [output for output in outputs if output.get("name") == "stderr"] == []


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_of_the_page_runs_as_it_stands(demo, block):
    variables = environment({"PYTHONPATH": str(REPOSITORY / "src")})
    done = subprocess.run(
        [sys.executable, "-c", block], cwd=demo, env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "shape: (" in done.stdout


def test_the_pictures_of_the_first_pages_are_made_by_their_command(demo, tmp_path):
    command = [sys.executable, DOCS / "figures" / "make.py", "runs/demo", tmp_path]
    variables = environment({"PYTHONPATH": str(REPOSITORY / "src")})
    done = subprocess.run(command, cwd=demo, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {
        "pipeline.svg",
        "demo-losses.svg",
        "demo-bundles.svg",
    }
