import json

import pytest

from campaign_files import CampaignFiles
from crpipe.core.paths import OUTLIERS
from crpipe.report.jobs import attempts_of, log_addresses, machines, time_spent, usage_of


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
    work = attempts_of(files.paths)
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


def test_a_range_has_its_times_and_addresses_of_its_logs(files):
    files.claim()
    name = files.split(0)
    files.attempt("split", name)
    files.attempt("consolidate", "", 5.0)
    spent = time_spent(attempts_of(files.paths))
    assert spent == {(name, "list"): 2.0, (name, "split"): 120.0, (OUTLIERS, "consolidate"): 5.0}
    log = files.paths.results / "logs" / "split" / f"{name}.log"
    log.parent.mkdir(parents=True)
    log.touch()
    addresses = log_addresses(files.paths, name, files.root / "pages")
    assert addresses == [("split", f"../results/logs/split/{name}.log")]
    assert log_addresses(files.paths, name, None) == []


def test_benchmarks_are_summed_by_rule(files):
    for number, (seconds, memory) in enumerate([("2.0", "100"), ("4.0", "-"), ("9.0", "300")]):
        path = files.paths.results / "benchmarks" / "split" / f"{number}.tsv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"s\th:m:s\tmax_rss\n{seconds}\t0:00\t{memory}\n")
    (files.paths.run_dir() / "benchmarks").mkdir(parents=True)
    (files.paths.run_dir() / "benchmarks" / "figures.tsv").write_text("s\tmax_rss\ncut")
    (usage,) = usage_of(files.paths)
    assert usage.cells() == ["split", "3", "15 s", "4 s", "9 s", "300 MiB"]
