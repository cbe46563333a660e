import pytest

from campaign_files import CampaignFiles
from crpipe.report.jobs import work_of
from crpipe.report.page.timeline import timeline, usage_of


@pytest.fixture
def files(tmp_path):
    return CampaignFiles(tmp_path, ranges=2)


def test_the_chart_has_a_lane_for_each_verb_and_marks_failures(files):
    files.attempt("train", files.name(0), 7200.0)
    files.attempt("stage", files.name(0), 60.0)
    files.journal("stage", files.name(1), "start")
    files.journal("stage", files.name(1), "failed", error="x")
    chart = timeline(work_of(files.paths))
    assert [name for name, _ in chart.lanes] == ["stage", "train"]
    assert sorted(block.kind for block in chart.blocks) == ["c0", "c1", "failed"]
    assert all(92 <= block.x <= 708 for block in chart.blocks)
    assert chart.ticks[0][1] == "0 s"
    assert chart.ticks[1][1] == "30:00 min"
    assert timeline([]) is None


def test_benchmarks_are_summed_by_rule(files):
    for number, (seconds, memory) in enumerate([("2.0", "100"), ("4.0", "-"), ("9.0", "300")]):
        path = files.paths.results / "benchmarks" / "split" / f"{number}.tsv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"s\th:m:s\tmax_rss\n{seconds}\t0:00\t{memory}\n")
    (files.paths.run_dir() / "benchmarks").mkdir(parents=True)
    (files.paths.run_dir() / "benchmarks" / "figures.tsv").write_text("s\tmax_rss\ncut")
    (usage,) = usage_of(files.paths)
    assert usage.cells() == ["split", "3", "15 s", "4 s", "9 s", "300 MiB"]
