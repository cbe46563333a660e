import importlib
import sys
from importlib import metadata

import pytest

from crpipe.setup import machine
from crpipe.setup.init import start_campaign
from crpipe.setup.machine import extras_found, requirements, slurm_found, workflow_found

LINES = [
    "numpy",
    'snakemake-executor-plugin-slurm==2.8.*; extra == "slurm"',
    'awkward; extra == "root"',
    'uproot; extra == "root"',
    'crpipe[slurm,export]; extra == "all"',
]
INSTALLED = {"snakemake-executor-plugin-slurm": "2.8.1", "awkward": "2", "snakemake": "9.1", "crpipe": "0.1"}


@pytest.fixture
def installed(monkeypatch):
    found = dict(INSTALLED)

    def version(name):
        if name not in found:
            raise metadata.PackageNotFoundError(name)
        return found[name]

    monkeypatch.setattr(metadata, "requires", lambda *_: LINES)
    monkeypatch.setattr(metadata, "version", version)
    return found


@pytest.fixture
def programs(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))

    def write(**texts):
        for name, text in texts.items():
            (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
            (tmp_path / name).chmod(0o755)

    return write


def test_requirements_of_an_extra(installed):
    assert requirements("root") == {"awkward": "", "uproot": ""}
    assert requirements("slurm") == {"snakemake-executor-plugin-slurm": "==2.8.*"}


def test_without_slurm_nothing_is_wrong(programs):
    assert slurm_found().verdict == "ok"


@pytest.mark.parametrize(
    ("squeue", "version", "verdict", "said", "fix"),
    [
        ("exit 0", "2.8.1", "ok", "sbatch and squeue answer", ""),
        ("exit 0", "2.9.0", "warn", "2.9.0", "pip install 'snakemake-executor-plugin-slurm==2.8.*'"),
        ("exit 0", "", "warn", "is missing", "pip install 'snakemake-executor-plugin-slurm==2.8.*'"),
        ("echo no controller >&2; exit 1", "2.8.1", "warn", "squeue fails: no controller", "squeue --me"),
    ],
)
def test_slurm_is_asked_and_its_plugin_compared(installed, programs, squeue, version, verdict, said, fix):
    programs(sbatch="exit 0", squeue=squeue)
    installed["snakemake-executor-plugin-slurm"] = version
    found = slurm_found()
    assert found.verdict == verdict
    assert said in found.text
    assert fix in found.fix


def test_sbatch_without_squeue(installed, programs):
    programs(sbatch="exit 0")
    assert "squeue is not" in slurm_found().text


def test_missing_extras_are_named_with_what_pip_installs(installed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = extras_found({"root": "for the reader RootFiles"})
    assert found.verdict == "fail"
    assert found.text == "missing: uproot for the reader RootFiles"
    assert found.fix == "pip install uproot"
    (tmp_path / "constraints.txt").touch()
    assert extras_found({"root": "x"}).fix == "pip install -c constraints.txt uproot"
    installed["uproot"] = "5"
    assert extras_found({"root": "x"}).verdict == "ok"
    assert "not installed: root" not in extras_found({}).text


@pytest.mark.parametrize(
    "text", [None, "raise ImportError('libhdf5.so: no such file')", "raise OSError('no')"]
)
def test_an_extra_that_cannot_be_imported_is_named(installed, tmp_path, monkeypatch, text):
    monkeypatch.setattr(
        metadata, "requires", lambda *_: [f'{name}; extra == "hdf5"' for name in ("numpy", "h5x")]
    )
    installed.update(numpy="2", h5x="3")
    monkeypatch.delitem(sys.modules, "h5x", raising=False)
    if text:
        (tmp_path / "h5x.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    found = extras_found({"hdf5": "for the reader"})
    assert (found.verdict, found.fix) == ("fail", "pip install --force-reinstall h5x")
    assert found.text.startswith("h5x is installed and cannot be imported (")
    (tmp_path / "h5x.py").write_text("")
    importlib.invalidate_caches()
    assert extras_found({"hdf5": "for the reader"}).verdict == "ok"


def test_a_snakemake_that_cannot_be_imported_is_named(installed, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "snakemake", None)
    found = workflow_found(tmp_path)
    assert (found.verdict, "cannot be imported" in found.text) == ("fail", True)
    assert "-m pip install --force-reinstall snakemake" in found.fix


def test_the_workflow_of_a_folder(installed, programs, tmp_path):
    folder = tmp_path / "trial"
    assert workflow_found(folder).fix == "crpipe init"
    start_campaign(folder, "run: x\n")
    found = workflow_found(folder)
    assert (found.verdict, "is not on the PATH" in found.text) == ("warn", True)
    programs(snakemake="exit 0")
    assert workflow_found(folder).verdict == "ok"
    (folder / "workflow" / "Snakefile").write_text("edited")
    found = workflow_found(folder)
    assert (found.verdict, "workflow/Snakefile" in found.text) == ("warn", True)


def test_a_queue_that_hangs(installed, programs, monkeypatch):
    monkeypatch.setattr(machine, "_PATIENCE_S", 0.2)
    programs(sbatch="exit 0", squeue="exec /bin/sleep 5")
    assert "does not answer within 0.2 s" in slurm_found().text
