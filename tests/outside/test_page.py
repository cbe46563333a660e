"""docs/workload.md: its reader, simulator and workload are run as a reader of the page would run them."""

import json
import re
import shutil

import pyarrow.parquet as pq
import pytest

from crpipe.author import Workload
from crpipe.inference.members import OPTIONAL, members_of
from crpipe.train.workload import WORKLOAD_MEMBERS
from runs import REPOSITORY, bash

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
    reader_and_workload = {"mylab/hits.py", "mylab/options.py", "mylab/model.py"}
    assert set(files) == reader_and_workload | {
        "mylab/maker.py",
        "config/hits.yaml",
        "config/simulated.yaml",
        "config/energy.yaml",
    }
    assert len(commands) == 4
    code = [line for name in reader_and_workload for line in files[name].splitlines()]
    assert len([line for line in code if line and not line.startswith(("import", "from", "#"))]) <= 75


def test_the_page_is_short_and_names_every_member():
    text = PAGE.read_text()
    assert len(text.split()) <= 2200
    members = {name for protocol in OPTIONAL for name in members_of(protocol)} | {*WORKLOAD_MEMBERS}
    written = {name for name in vars(Workload) if not name.startswith("_")} - {"on_device"}
    assert [
        name for name in sorted(members | written) if f"`{name}" not in text and f".{name}(" not in text
    ] == []


def run(commands, folder):
    """Run one block of commands in a shell of its own; return what it printed."""
    done = bash(commands, folder)
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_code_of_the_page_runs(tmp_path):
    files, (data, training, probe, contract) = blocks()
    for name in ("Snakefile", "workflow", "profiles"):
        (tmp_path / name).symlink_to(REPOSITORY / name)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    shutil.copy(REPOSITORY / "config" / "config.yaml", tmp_path / "config")

    printed = run(data, tmp_path)
    assert len(list((tmp_path / "data").glob("hits_*.csv"))) == 4
    ledger = json.loads((tmp_path / "results/mylab/ledgers/0000000-0000001.json").read_text())
    assert ledger["events"]["listed"] == 1000

    printed += run(training, tmp_path)
    predicted = pq.read_table(tmp_path / "predicted.parquet")
    assert len(predicted) == 500
    assert {"event_id", "energy_gev"} <= {*predicted.column_names}
    found = json.loads((tmp_path / "runs/mylab/evaluation/outliers/metrics.json").read_text())
    assert found["values"]["off"] < 0.4
    assert "mean of |log10(predicted / true energy)|" in printed
    assert not re.search("muon|bundle|shower", printed)

    probed = run(probe, tmp_path)
    assert re.search(r"workload mylab.model:HitEnergy: \d\d checks passed\n", probed)
    assert "verdict: " in probed

    tested = run(contract, tmp_path)
    assert re.search(r"\b\d\d passed", tested)
    assert "failed" not in tested
