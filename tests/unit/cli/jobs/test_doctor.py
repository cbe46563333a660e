from pathlib import Path

from crpipe.cli.jobs import doctor
from crpipe.cli.jobs.doctor import examine
from crpipe.start.diagnoses import Diagnosis
from crpipe.start.machine import Gpu

CONFIG = Path(__file__).parents[4] / "config" / "demo.yaml"
NEEDED = [
    "source.reader=crpipe.workloads.muons.reading.parquet:Bundles",
    "train.workload=crpipe.workloads.muons:MuonGan",
]


def found(*changes, files=(CONFIG,)):
    return {one.name: one for one in examine(files, [*NEEDED, *changes])}


def test_a_campaign_and_its_machine_are_looked_at(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = ["configuration", "workflow", "python", "torch", "gpu", "processors", "memory", "slurm", "extras"]
    assert [*found()] == [*names, "results", "runs", "token", "source"]
    assert [*found(files=())] == [*names[:-1], "folder", "extras"]


def test_gpus_are_those_of_training_only_without_a_cluster(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(doctor, "gpus_here", lambda: (Gpu("NVIDIA A100", 40960, "580.1"),))
    monkeypatch.setattr(doctor, "has_slurm", lambda: True)
    for verdict, expected in (("ok", "ok"), ("warn", "warn")):
        monkeypatch.setattr(doctor, "slurm_found", lambda: Diagnosis("slurm", verdict, ""))  # noqa: B023
        assert found("train.gpus=4")["gpu"].verdict == expected


def test_a_source_that_cannot_be_one_is_a_line_and_no_traceback(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    looked = found("source.uri=/data/{rnge}/*.x")
    assert looked["source"].verdict == "fail"
    assert "did you mean {range}" in looked["source"].text
