from pathlib import Path

from crpipe.setup import doctor
from crpipe.setup.doctor import examine
from crpipe.setup.machine import Diagnosis, Gpu

CONFIG = Path(__file__).parents[3] / "config" / "demo.yaml"
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


def test_the_first_range_that_is_not_skipped_is_looked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("0000002-0000003", "0000004-0000005"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.parquet").write_text("abc")
    ranges = ("ranges.first=0", "ranges.last=5", "ranges.step=2", "ranges.skip=[0000000-0000001]")
    own = tmp_path / "crpipe.yaml"
    own.write_text("run: x\n")
    looked = found(f"source.uri={tmp_path}/{{range}}/*.parquet", *ranges, files=(own,))["source"]
    assert (looked.verdict, looked.text) == ("ok", "1 file, 3 B (range 0000002-0000003)")
