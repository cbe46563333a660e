import os
import sys
from importlib import metadata

import pytest

from crpipe.core.lease import Mount
from crpipe.setup import machine
from crpipe.setup.machine import (
    Gpu,
    disk_found,
    gpu_found,
    gpus_here,
    memory_found,
    processors_found,
    python_found,
    read_gpus,
    torch_found,
)

A100 = Gpu("NVIDIA A100-SXM4-40GB", 40960, "550.54.15")


def test_the_answer_of_the_driver_is_read():
    assert read_gpus("NVIDIA A100-SXM4-40GB, 40960, 550.54.15\n") == (A100,)
    assert read_gpus("") == ()
    assert read_gpus("No devices were found\n\nGPU, old, [N/A], 1\nGPU, new, 40960, [N/A]\n") == (
        Gpu("GPU, new", 40960, "[N/A]"),
    )
    assert torch_found((Gpu("GPU", 40960, "[N/A]"),)).verdict in ("ok", "warn")


def test_gpus_are_those_of_the_driver(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpus_here() == ()
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho NVIDIA A100-SXM4-40GB, 40960, 550.54.15\n")
    program.chmod(0o755)
    assert gpus_here() == (A100,)
    program.write_text("#!/bin/sh\necho NVIDIA-SMI has failed\nexit 9\n")
    assert gpus_here() == ()


@pytest.mark.parametrize(
    ("gpus", "wanted", "verdict", "fix"),
    [
        ((), 1, "ok", ""),
        ((), 2, "warn", "set train.gpus: 0, or use a cluster"),
        ((A100,), 1, "ok", ""),
        ((A100,), 4, "warn", "set train.gpus: 1"),
    ],
)
def test_gpus_are_compared_with_those_that_training_asks_for(gpus, wanted, verdict, fix):
    found = gpu_found(gpus, wanted)
    assert (found.verdict, found.fix) == (verdict, fix)


@pytest.mark.parametrize(
    ("version", "verdict", "said"),
    [
        ((3, 10), "fail", "too old"),
        ((3, 11), "ok", ""),
        ((3, 12), "warn", "but with 3.11"),
    ],
)
def test_old_and_untried_pythons(monkeypatch, version, verdict, said):
    monkeypatch.setattr(sys, "version_info", version)
    found = python_found()
    assert found.verdict == verdict
    assert said in found.text
    assert bool(found.fix) == (verdict != "ok")


@pytest.mark.parametrize(
    ("build", "gpus", "verdict", "fix"),
    [
        ("", (), "ok", ""),
        ("", (A100,), "warn", "pip uninstall -y torch && pip install torch==2.13.0"),
        ("12.6", (A100,), "ok", ""),
        ("13.0", (A100,), "fail", "update the driver to 580"),
        ("13.0", (), "ok", ""),
    ],
)
def test_torch_is_compared_with_the_driver(monkeypatch, build, gpus, verdict, fix):
    monkeypatch.setattr(metadata, "version", lambda *_: "2.13.0+cpu")
    monkeypatch.setattr(machine, "_cuda_of_torch", lambda: build)
    found = torch_found(gpus)
    assert found.verdict == verdict
    assert fix in found.fix


def test_the_cuda_of_torch_is_read_without_importing_it(tmp_path, monkeypatch):
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError")
    (package / "version.py").write_text("__version__ = '2.13.0'\ncuda: Optional[str] = '13.0'\nhip = None\n")
    spec = type("Spec", (), {"origin": str(package / "__init__.py")})
    monkeypatch.setattr(machine, "find_spec", lambda *_: spec)
    assert machine._cuda_of_torch() == "13.0"
    (package / "version.py").write_text("cuda: Optional[str] = None\n")
    assert machine._cuda_of_torch() == ""


def test_a_missing_torch_fails(monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    assert torch_found(()).verdict == "fail"


def test_limits_of_a_container_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "_GROUP", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda *_: set(range(8)))
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    (tmp_path / "memory.max").write_text(f"{1 << 30}\n")
    assert "1.5 by the limit of this container" in processors_found().text
    found = memory_found()
    assert found.verdict == "warn"
    assert "1.0 GiB by the limit of this container" in found.text


def test_a_disk_that_is_ok(tmp_path):
    found = disk_found("results", tmp_path / "results" / "new")
    assert found.verdict == "ok"
    assert "GiB free" in found.text
    assert not (tmp_path / "results").exists()


def test_disks_that_are_not(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    assert disk_found("results", tmp_path / "file" / "results").verdict == "fail"
    found = disk_found("results", tmp_path, budget_gib=1e9)
    assert found.verdict == "warn"
    assert "set source.disk_budget_gib: " in found.fix
    monkeypatch.setattr(machine, "mount_of", lambda *_: Mount("/data", "lustre", ("rw",)))
    found = disk_found("runs", tmp_path)
    assert found.verdict == "warn"
    assert "lustre at /data: other hosts may not see its locks" in found.text
    monkeypatch.setattr(machine, "mount_of", lambda *_: Mount("/data", "nfs4", ("rw",)))
    assert disk_found("runs", tmp_path, cluster=True).text.endswith("nfs4 at /data, locks hold across hosts")
    monkeypatch.setattr(machine, "mount_of", lambda *_: Mount("/", "ext4", ("rw",)))
    assert disk_found("runs", tmp_path).verdict == "ok"
    assert disk_found("runs", tmp_path, cluster=True).verdict == "warn"
    monkeypatch.setattr(machine, "free_bytes", lambda *_: 1000)
    assert disk_found("runs", tmp_path).verdict == "fail"
