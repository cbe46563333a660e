"""docs/workload.md: its own code is run as a reader would run it."""

import json
import re
import shutil
import subprocess

import pyarrow.parquet as pq
import pytest

from runs import BIN, REPOSITORY, environment

PAGE = REPOSITORY / "docs" / "workload.md"
BLOCK = re.compile(r"^```(python|yaml|bash)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks():
    """Take the page apart: files by their names, and the commands."""
    files, commands = {}, []
    for kind, text in BLOCK.findall(PAGE.read_text()):
        named = re.match(r"# (\S+)\n", text)
        if named:
            files[named[1]] = text
        else:
            assert kind == "bash", text
            commands.append(text)
    return files, commands


def test_the_example_is_short():
    files, commands = blocks()
    assert set(files) == {
        "mylab/hits.py",
        "mylab/options.py",
        "mylab/model.py",
        "config/mylab.yaml",
        "make_files.py",
    }
    assert len(commands) == 1
    code = [line for name in files if name.startswith("mylab/") for line in files[name].splitlines()]
    assert len([line for line in code if line and not line.startswith(("import", "from", "#"))]) <= 90


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_code_of_the_page_runs(tmp_path):
    files, (commands,) = blocks()
    for name in ("Snakefile", "workflow", "profiles"):
        (tmp_path / name).symlink_to(REPOSITORY / name)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    shutil.copy(REPOSITORY / "config" / "config.yaml", tmp_path / "config")
    plain = environment({})
    done = subprocess.run(
        ["/bin/bash", "-e", "-u", "-c", commands],
        cwd=tmp_path,
        env={"PYTHONPATH": "", **plain, "PATH": f"{BIN}:{plain['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    predicted = pq.read_table(tmp_path / "predicted.parquet")
    assert len(predicted) == 500
    assert {"event_id", "energy_gev"} <= {*predicted.column_names}
    found = json.loads((tmp_path / "runs/mylab/evaluation/outliers/metrics.json").read_text())
    assert found["values"]["spread"] < 0.5
    assert "spread of log10(predicted / true energy)" in done.stdout
    assert not re.search("muon|bundle|shower", done.stdout)
