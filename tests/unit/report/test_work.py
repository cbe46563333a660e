import json

import pytest

from campaign_files import CampaignFiles
from crpipe.report.jobs import machines, range_rows, work_of
from crpipe.report.state import collect


@pytest.fixture
def files(tmp_path):
    return CampaignFiles(tmp_path, ranges=2)


def test_attempts_are_read_with_their_times_and_errors(files):
    first, second = files.name(0), files.name(1)
    files.attempt("stage", first, 60.0)
    files.journal("split", first, "start")
    files.journal("split", first, "failed", error="DiskError: full")
    files.journal("train", second, "start")
    files.journal("train", second, "start")
    work = work_of(files.paths)
    assert [(each.verb, each.name, each.error) for each in work] == [
        ("stage", first, ""),
        ("split", first, "DiskError: full"),
        ("train", second, "no end recorded"),
        ("train", second, ""),
    ]
    assert work[0].end - work[0].start == 60.0
    assert work[2].end is work[3].end is None


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


def test_a_range_has_its_times_and_links_to_its_logs(files):
    files.claim()
    files.trained(files.split(0))
    log = files.paths.results / "logs" / "split" / f"{files.name(0)}.log"
    log.parent.mkdir(parents=True)
    log.touch()
    status, work = collect(files.campaign), work_of(files.paths)
    first, second, _ = range_rows(files.campaign, status, work, files.root / "pages")
    assert first.events == "40,000"
    assert first.times.startswith("split 1 min, train ")
    assert first.logs == (("split", f"../results/logs/split/{files.name(0)}.log"),)
    assert second.times == second.events == ""
    assert range_rows(files.campaign, status, work)[0].logs == ()
