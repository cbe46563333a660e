"""The tutorial notebook and the page on Python, on a campaign of three tiny ranges that ran to its end."""

import re
import shutil
import subprocess
import sys

import nbformat
import pytest
from nbclient import NotebookClient

from runs import REPOSITORY, environment

sys.path.insert(0, str(REPOSITORY / "docs"))
import demo_numbers

pytestmark = pytest.mark.timeout(600)
DOCS = REPOSITORY / "docs"
BLOCKS = re.findall(r"^```python\n(.*?)^```", (DOCS / "api.md").read_text(), re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def demo(finished, tmp_path_factory):
    """A folder in which the tiny campaign, with the demo's model, has the place of the demo."""
    folder = tmp_path_factory.mktemp("tutorial")
    campaign = finished.copy(folder / "campaign")
    shutil.rmtree(campaign.run)
    campaign.change(train={"workload": "crpipe.workloads.muons:MuonVae"})
    campaign.snakemake()
    (folder / "runs").mkdir()
    (folder / "runs" / "demo").symlink_to(campaign.run)
    (folder / "results").symlink_to(campaign.results)
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


def test_the_tables_of_the_demos_are_written_and_compared_by_their_script(demo, tmp_path):
    for name in ("demo_numbers.py", "evaluation.md"):
        shutil.copy(DOCS / name, tmp_path)
    page, script = tmp_path / "evaluation.md", [sys.executable, tmp_path / "demo_numbers.py"]
    variables = environment({"PYTHONPATH": str(REPOSITORY / "src")})

    def run(*words):
        return subprocess.run(
            [*script, *words, "runs/demo"],
            cwd=demo,
            env=variables,
            capture_output=True,
            text=True,
            check=False,
        )

    assert run().returncode == 1  # the page has the numbers of the demo, this run is a small one
    assert run("--write").returncode == 0
    assert run().returncode == 0
    page.write_text(page.read_text().replace("(100 events", "(101 events"))
    done = run()
    assert (done.returncode, done.stderr.count("\n  page |"), "101 events" in done.stderr) == (1, 1, True)


def test_numbers_of_a_demo_agree_where_their_errors_allow_it():
    assert demo_numbers.near(" 0.65 ± 0.04 ", " 0.55 ± 0.03 ")
    assert not demo_numbers.near(" 0.65 ± 0.02 ", " 0.55 ± 0.02 ")
    assert not demo_numbers.near(" 0.65 ± 0.02 ", "  ")
