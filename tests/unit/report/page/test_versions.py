import json

from crpipe import __version__
from crpipe.report.page.versions import machines, versions


def test_versions_name_crpipe_and_what_is_missing():
    found = dict(versions())
    assert found["crpipe"] == __version__
    assert set(found) >= {"Python", "torch", "numpy", "host"}


def test_machines_are_counted(tmp_path):
    row = {
        "what": "machine",
        "host": "node7",
        "device": "NVIDIA A100",
        "ranks": 4,
        "torch": "2",
        "python": "3",
    }
    (tmp_path / "journal.jsonl").write_text(2 * (json.dumps(row | {"crpipe": "1"}) + "\n"))
    expected = [("node7", "NVIDIA A100, 4 ranks; torch 2, Python 3, crpipe 1; 2 jobs")]
    assert machines(tmp_path / "journal.jsonl") == expected
    assert machines(tmp_path / "none") == []
