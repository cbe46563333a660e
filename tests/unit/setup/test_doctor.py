"""Each thing that is looked at is ok, warn or fail, with what to type."""

import importlib
import json
import re
import sys
from importlib import metadata
from pathlib import Path

import pytest

from crpipe.config.loading import validate
from crpipe.core.errors import AccessError
from crpipe.core.lease import Mount
from crpipe.core.ranges import Range
from crpipe.setup import doctor
from crpipe.setup.doctor import (
    Diagnosis,
    Gpu,
    as_table,
    diagnose_disk,
    diagnose_extras,
    diagnose_gpus,
    diagnose_python,
    diagnose_slurm,
    diagnose_source,
    diagnose_token,
    diagnose_torch,
    diagnose_workflow,
    examine,
    failed_names,
    gpus_here,
    read_gpus,
    requirements,
    to_json,
)
from crpipe.setup.init import start_campaign
from crpipe.source.pelican.login import Access
from tokens_needed import needing

CONFIG = Path(__file__).parents[3] / "config" / "demo.yaml"
NEEDED = [
    "source.reader=crpipe.workloads.muons.reading.parquet:Bundles",
    "train.workload=crpipe.workloads.muons:MuonGan",
]
A100 = Gpu("NVIDIA A100-SXM4-40GB", 40960, "550.54.15")
FIRST = Range(0, 3)
REMOTE = "pelican://host/data/{range}/*.x"
PLUGIN = "snakemake-executor-plugin-slurm"
LINES = [
    "numpy",
    f'{PLUGIN}==2.8.*; extra == "slurm"',
    'awkward; extra == "root"',
    'uproot; extra == "root"',
    'numpy; extra == "hdf5"',
    'h5x; extra == "hdf5"',
    'crpipe[slurm,export]; extra == "all"',
]


@pytest.fixture
def installed(monkeypatch):
    """The versions of distributions by name, to change."""
    versions = {PLUGIN: "2.8.1", "awkward": "2", "snakemake": "9.1", "crpipe": "0.1", "numpy": "2"}

    def version(name):
        if name not in versions:
            raise metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(metadata, "requires", lambda *_: LINES)
    monkeypatch.setattr(metadata, "version", version)
    return versions


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Write shell scripts that are all that is on the PATH: programs(name=text)."""
    monkeypatch.setenv("PATH", str(tmp_path))

    def write(**texts):
        for name, text in texts.items():
            program = tmp_path / name.replace("_", "-")
            program.write_text(f"#!/bin/sh\n{text}\n")
            program.chmod(0o755)

    return write


def examined(*changes, files=(CONFIG,)):
    return {one.name: one for one in examine(files, [*NEEDED, *changes])}


def test_a_campaign_and_its_machine_are_looked_at(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = ["configuration", "workflow", "python", "torch", "gpu", "slurm", "extras"]
    assert [*examined()] == [*names, "fit", "results", "runs", "token", "source"]
    assert [*examined(files=())] == [*names[:-1], "folder", "extras"]
    wrong = examined("source.uri=/data/{rnge}/*.x")["source"]
    assert (wrong.verdict, "did you mean {range}" in wrong.text) == ("fail", True)


def test_gpus_are_those_of_training_only_without_a_cluster(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(doctor, "gpus_here", lambda: (A100,))
    monkeypatch.setattr(doctor, "has_slurm", lambda: True)
    for verdict in ("ok", "warn"):
        monkeypatch.setattr(doctor, "diagnose_slurm", lambda: Diagnosis("slurm", verdict, ""))  # noqa: B023
        assert examined("train.gpus=4")["gpu"].verdict == verdict


def test_a_line_has_its_verdict_and_the_fix_below_it():
    findings = [Diagnosis("python", "ok", "3.11.7"), Diagnosis("runs", "fail", "word " * 40, "set runs: x")]
    lines = as_table(findings).splitlines()
    assert lines[0] == "ok    python          3.11.7"
    assert lines[1].startswith("fail  runs            word word")
    assert lines[2].startswith(" " * 22 + "word")
    assert lines[-1].strip() == "-> set runs: x"
    assert max(map(len, lines)) <= 110
    fields = {"name": "python", "verdict": "ok", "text": "3.11.7", "fix": ""}
    assert json.loads(to_json(findings))["findings"][0] == fields
    assert failed_names(findings) == ["runs"]


def test_gpus_are_those_of_the_driver(programs):
    assert gpus_here() == ()
    programs(nvidia_smi="echo NVIDIA A100-SXM4-40GB, 40960, 550.54.15")
    assert gpus_here() == (A100,)
    programs(nvidia_smi="echo NVIDIA A100-SXM4-40GB, 40960, 550.54.15; exit 9")
    assert gpus_here() == ()
    assert read_gpus("No devices were found\n\nGPU, old, [N/A], 1\nGPU, new, 40960, [N/A]\n") == (
        Gpu("GPU, new", 40960, "[N/A]"),
    )


@pytest.mark.parametrize(
    ("gpus", "asked", "verdict", "fix"),
    [
        ((), 1, "ok", ""),
        ((), 2, "warn", "set train.gpus: 0, or use a cluster"),
        ((A100,), 1, "ok", ""),
        ((A100,), 4, "warn", "set train.gpus: 1"),
    ],
)
def test_gpus_are_compared_with_those_that_training_asks_for(gpus, asked, verdict, fix):
    found = diagnose_gpus(gpus, asked)
    assert (found.verdict, found.fix) == (verdict, fix)


def test_without_a_gpu_that_the_configuration_insists_on_nothing_can_be_trained():
    assert diagnose_gpus((), 1, "cuda").verdict == "fail"
    assert diagnose_gpus((A100,), 1, "cuda").verdict == "ok"
    assert "not looked at" in diagnose_gpus((), 1, "mps").text


@pytest.mark.parametrize(
    ("version", "verdict", "text"),
    [((3, 10), "fail", "too old"), ((3, 11), "ok", ""), ((3, 12), "warn", "but with 3.11")],
)
def test_old_and_untried_pythons(monkeypatch, version, verdict, text):
    monkeypatch.setattr(sys, "version_info", version)
    found = diagnose_python()
    assert found.verdict == verdict
    assert text in found.text
    assert bool(found.fix) == (verdict != "ok")


@pytest.mark.parametrize(
    ("build", "gpus", "verdict", "fix"),
    [
        ("", (), "ok", ""),
        ("", (A100,), "warn", "pip uninstall -y torch && pip install torch==2.13.0"),
        ("12.6", (A100,), "ok", ""),
        ("13.0", (A100,), "fail", "update the driver to 580"),
        ("13.0", (Gpu("GPU", 40960, "[N/A]"),), "ok", ""),
        ("13.0", (), "ok", ""),
    ],
)
def test_torch_is_compared_with_the_driver(installed, monkeypatch, build, gpus, verdict, fix):
    assert diagnose_torch(gpus).verdict == "fail"  # it is not installed
    installed["torch"] = "2.13.0+cpu"
    monkeypatch.setattr(doctor, "_cuda_of_torch", lambda platform="cuda": build if platform == "cuda" else "")
    found = diagnose_torch(gpus)
    assert found.verdict == verdict
    assert fix in found.fix


def test_the_cuda_of_torch_is_read_without_importing_it(tmp_path, monkeypatch):
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError")
    (package / "version.py").write_text("__version__ = '2.13.0'\ncuda: Optional[str] = '13.0'\nhip = None\n")
    spec = type("Spec", (), {"origin": str(package / "__init__.py")})
    monkeypatch.setattr(doctor, "find_spec", lambda *_: spec)
    assert doctor._cuda_of_torch() == "13.0"
    assert doctor._cuda_of_torch("hip") == ""
    (package / "version.py").write_text("cuda: Optional[str] = None\nhip: Optional[str] = '6.4.4-123eb5'\n")
    assert diagnose_torch(()).text.endswith("for ROCm 6.4.4-123eb5 (never tried)")
    assert diagnose_gpus((), 1, "cuda").verdict == "ok"
    (package / "version.py").write_text("cuda: Optional[str] = None\n")
    assert doctor._cuda_of_torch() == ""


def test_a_disk_that_is_ok(tmp_path):
    found = diagnose_disk("results", tmp_path / "results" / "new")
    assert found.verdict == "ok"
    assert "GiB free" in found.text
    assert not (tmp_path / "results").exists()


def test_a_disk_without_permission_or_space(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    assert diagnose_disk("results", tmp_path / "file" / "results").verdict == "fail"
    found = diagnose_disk("results", tmp_path, budget_gib=1e9)
    assert (found.verdict, "set source.disk_budget_gib: " in found.fix) == ("warn", True)
    monkeypatch.setattr(doctor, "free_bytes", lambda *_: 1000)
    assert diagnose_disk("runs", tmp_path).verdict == "fail"


@pytest.mark.parametrize(
    ("mount", "cluster", "verdict", "text"),
    [
        (
            Mount("/data", "lustre", ("rw",)),
            False,
            "warn",
            "lustre at /data: other hosts may not see its locks",
        ),
        (Mount("/data", "nfs4", ("rw",)), True, "ok", "nfs4 at /data, locks hold across hosts"),
        (Mount("/", "ext4", ("rw",)), False, "ok", "ext4 at /"),
        (Mount("/", "ext4", ("rw",)), True, "warn", "a disk of this host, and jobs of Slurm run on others"),
    ],
)
def test_the_locks_of_a_disk(tmp_path, monkeypatch, mount, cluster, verdict, text):
    monkeypatch.setattr(doctor, "mount_of", lambda *_: mount)
    found = diagnose_disk("runs", tmp_path, cluster=cluster)
    assert (found.verdict, found.text.endswith(text)) == (verdict, True)


@pytest.mark.parametrize(
    ("squeue", "version", "verdict", "text", "fix"),
    [
        ("exit 0", "2.8.1", "ok", "sbatch and squeue answer", ""),
        ("exit 0", "2.9.0", "warn", "2.9.0", f"pip install '{PLUGIN}==2.8.*'"),
        ("exit 0", "", "warn", "is missing", f"pip install '{PLUGIN}==2.8.*'"),
        ("echo no controller >&2; exit 1", "2.8.1", "warn", "squeue fails: no controller", "squeue --me"),
        ("exec /bin/sleep 5", "2.8.1", "warn", "does not answer within 0.2 s", "squeue --me"),
    ],
)
def test_slurm_is_asked_and_its_plugin_compared(
    installed, programs, monkeypatch, squeue, version, verdict, text, fix
):
    assert diagnose_slurm().verdict == "ok"  # no sbatch: jobs run here
    programs(sbatch="exit 0")
    assert "squeue is not" in diagnose_slurm().text
    programs(squeue=squeue)
    installed[PLUGIN] = version
    if "sleep" in squeue:
        monkeypatch.setattr(doctor, "_PATIENCE_S", 0.2)
    found = diagnose_slurm()
    assert found.verdict == verdict
    assert text in found.text
    assert fix in found.fix


def test_missing_extras_are_named_with_what_pip_installs(installed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert requirements("root") == {"awkward": "", "uproot": ""}
    found = diagnose_extras({"root": "for the reader RootFiles"})
    assert (found.verdict, found.text) == ("fail", "missing: uproot for the reader RootFiles")
    assert found.fix == "pip install uproot"
    (tmp_path / "constraints.txt").touch()
    assert diagnose_extras({"root": "x"}).fix == "pip install -c constraints.txt uproot"
    assert "not installed: root" in diagnose_extras({}).text
    installed["uproot"] = "5"
    assert "not installed: hdf5" in diagnose_extras({"root": "x"}).text


@pytest.mark.parametrize(
    "text", [None, "raise ImportError('libhdf5.so: no such file')", "raise OSError('no')"]
)
def test_an_extra_that_cannot_be_imported_is_named(installed, tmp_path, monkeypatch, text):
    installed["h5x"] = "3"
    monkeypatch.delitem(sys.modules, "h5x", raising=False)
    if text:
        (tmp_path / "h5x.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    found = diagnose_extras({"hdf5": "for the reader"})
    assert (found.verdict, found.fix) == ("fail", "pip install --force-reinstall h5x")
    assert found.text.startswith("h5x is installed and cannot be imported (")
    (tmp_path / "h5x.py").write_text("")
    importlib.invalidate_caches()
    assert diagnose_extras({"hdf5": "for the reader"}).verdict == "ok"


def test_a_snakemake_that_cannot_be_imported_is_named(installed, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "snakemake", None)
    found = diagnose_workflow(tmp_path)
    assert (found.verdict, "cannot be imported" in found.text) == ("fail", True)
    assert "-m pip install --force-reinstall snakemake" in found.fix


def test_the_workflow_of_a_folder(installed, programs, tmp_path):
    folder = tmp_path / "trial"
    assert diagnose_workflow(folder).fix == "crpipe init"
    start_campaign(folder, "run: x\n")
    found = diagnose_workflow(folder)
    assert (found.verdict, "is not on the PATH" in found.text) == ("warn", True)
    programs(snakemake="exit 0")
    assert diagnose_workflow(folder).verdict == "ok"
    (folder / "workflow" / "Snakefile").write_text("edited")
    found = diagnose_workflow(folder)
    assert (found.verdict, "workflow/Snakefile" in found.text) == ("warn", True)


def of_source(uri, first=FIRST, **more):
    ranges = {"first": first.first, "last": first.last, "size": first.last - first.first + 1, **more}
    return diagnose_source(validate({"source": {"uri": str(uri)}, "ranges": ranges}))


def test_the_first_range_that_is_not_skipped_is_listed(tmp_path):
    for name in ("0000004-0000007", "0000008-0000011"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.x").write_text("abc")
    found = of_source(f"{tmp_path}/{{range}}/*.x", last=11, skip=[str(FIRST)])
    assert (found.verdict, found.text) == ("ok", "1 file, 3 B (range 0000004-0000007)")
    folder, one = tmp_path / "0000004-0000007", Range(0, 0)
    assert of_source(f"{folder}/*.x", last="auto").text == f"1 file, 3 B (range {one})"
    found = of_source(f"{tmp_path}/{{range}}/*.x")
    assert (found.verdict, found.fix) == ("fail", "correct section source or ranges, then: crpipe doctor")
    assert "set ranges.first, ranges.last and ranges.size to what is there" in found.text


def test_a_simulator_is_named_and_a_list_that_is_not_there():
    simulated = {"source": {"uri": "synthetic://", "simulator": "simulators:Tiny"}}
    found = diagnose_source(validate(simulated))
    assert (found.verdict, found.text) == ("ok", "synthetic://: Tiny makes the files")
    found = diagnose_source(validate({"source": {"files": "/nowhere.txt"}}))
    assert (found.verdict, "/nowhere.txt cannot be read" in found.text) == ("fail", True)


@pytest.mark.parametrize(
    ("access", "verdict", "text", "fix"),
    [
        (Access("pelican://host: open to everyone", ""), "ok", "pelican://host: open to everyone", ""),
        (Access("ends        tomorrow", ""), "ok", "covers the campaign; ends tomorrow", ""),
        (Access("needs x", "no token found"), "fail", "no token found", "crpipe token --login"),
        (Access("", "out of reach", answered=False), "warn", "not compared: out of reach", "crpipe doctor"),
        (AccessError("bt_u0: empty; renew it"), "fail", "bt_u0: empty; renew it", "crpipe token --login"),
    ],
)
def test_the_token_is_compared_with_what_the_source_asks_for(monkeypatch, access, verdict, text, fix):
    def check_reading(*_):
        if isinstance(access, AccessError):
            raise access
        return access

    monkeypatch.setattr(doctor, "check_reading", check_reading)
    assert diagnose_token(needing("/data/*.x"), ("/data/*.x", "")).text == "the source needs none"
    host = diagnose_token(needing("https://h/*.x"), ("https://h/*.x",))
    assert (host.verdict, host.text) == ("ok", "its server asks for one where it needs one")
    found = diagnose_token(needing(REMOTE), (REMOTE,))
    assert (found.verdict, found.text) == (verdict, text)
    assert re.search(fix, found.fix)
