import pytest

from campaign_files import STEPS, CampaignFiles, with_validation
from crpipe.campaign.records import MultiplicityHistogram
from crpipe.report.series import (
    MultiplicityCounts,
    Series,
    add_histograms,
    chain_rows,
    is_loss,
    multiplicities,
    pick,
    pick_validation,
    pick_watched,
    smoothed,
    threshold_of,
    window_of,
)


@pytest.fixture
def files(tmp_path):
    made = CampaignFiles(tmp_path, ranges=3)
    for index in range(2):
        made.trained(made.split(index))
    return made


def test_rows_come_in_the_order_of_the_chain_and_can_be_thinned(files):
    rows = chain_rows(files.campaign)
    assert [row["step"] for row in rows] == list(range(20, 2 * STEPS + 1, 20))
    assert len(chain_rows(files.campaign, most=10)) == 10


def test_a_row_cut_by_a_crash_is_left_out(files):
    path = files.paths.store(files.name(1)) / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    assert chain_rows(files.campaign)[-1]["step"] == 2 * STEPS - 20


def test_metrics_are_picked_by_name_and_a_missing_value_is_no_point(files):
    rows = chain_rows(files.campaign)
    assert [item.name for item in pick(rows, is_loss)] == [
        "critic/loss",
        "generator/loss",
        "multiplicity/loss",
    ]
    assert [item.name for item in pick_watched(rows)] == ["critic/wasserstein"]
    del rows[0]["critic/wasserstein"]
    rows[1]["critic/wasserstein"] = float("nan")
    assert pick_watched(rows)[0].steps[0] == 60
    assert pick([{"step": 1, "a/loss": float("inf")}], is_loss) == []


def test_the_mean_runs_over_steps_not_over_rows():
    series = Series("a", (100, 200, 500, 650), (1.0, 3.0, 5.0, 9.0))
    assert smoothed(series, window=500).values == (1.0, 2.0, 3.0, pytest.approx((3 + 5 + 9) / 3))
    assert smoothed(series, window=400).values[2] == 4.0  # the value 400 steps before is out


def test_histograms_add_up_even_when_one_reaches_further():
    first = MultiplicityHistogram(edges=(0, 1, 10), events=(5, 7))
    second = MultiplicityHistogram(edges=(0, 1, 10, 100), events=(1, 1, 2))
    total = add_histograms([first, second])
    assert (total.edges, total.events) == ((0, 1, 10, 100), (6, 8, 2))
    assert all(isinstance(edge, float) for edge in total.edges)
    assert add_histograms([]) is None


def test_empty_bins_beyond_the_threshold_are_left_out():
    histogram = MultiplicityCounts((0.0, 1.0, 10.0, 100.0, 1000.0), (1, 2, 0, 0))
    assert histogram.visible(5).edges == (0.0, 1.0, 10.0)
    assert histogram.visible(40).edges == (0.0, 1.0, 10.0, 100.0)
    assert histogram.visible(5000) == histogram


def test_the_campaigns_histogram_holds_the_events_of_all_ranges(files):
    one = CampaignFiles(files.root / "one", ranges=3)
    one.split(0)
    assert sum(multiplicities(files.campaign).events) == 2 * sum(multiplicities(one.campaign).events)


def test_the_threshold_is_the_one_that_split_used(files):
    again = CampaignFiles(files.root, ranges=3, overrides=("split.outlier_above=7",))
    assert threshold_of(again.campaign) == 50_000
    assert (
        threshold_of(
            CampaignFiles(files.root / "new", ranges=3, overrides=("split.outlier_above=7",)).campaign
        )
        == 7
    )


def test_weights_add_up_where_there_are_any():
    found = add_histograms([MultiplicityHistogram(edges=(0, 1, 10), events=(1, 2), weights=(0.5, 2.5))] * 2)
    assert (found.events, found.weights) == ((2, 4), (1.0, 5.0))
    assert found.visible(None).weights == (1.0, 5.0)
    assert add_histograms([MultiplicityHistogram(edges=(0, 1), events=(1,))]).weights == ()


def test_the_histogram_has_an_edge_at_the_threshold():
    counts = MultiplicityCounts((0, 1, 10, 100), (5, 50, 20))
    assert counts.cut_at(29, 12) == MultiplicityCounts((0, 1, 10, 30, 100), (5, 50, 8, 12))
    assert counts.cut_at(4, 60) == MultiplicityCounts((0, 1, 5, 10, 100), (5, 10, 40, 20))
    assert counts.cut_at(9, 20) == counts  # already an edge
    assert counts.cut_at(500, 0) == counts
    weighed = MultiplicityCounts((1, 10, 100), (4, 2), (2.0, 1.0)).cut_at(19, 1, 0.25)
    assert weighed.weights == (2.0, 0.75, 0.25)


def test_validation_has_curves_of_its_own_and_thinned_rows_keep_them_all(tmp_path):
    campaign = with_validation(tmp_path).campaign
    for rows in (chain_rows(campaign), chain_rows(campaign, most=3)):
        assert not [series.name for series in pick(rows, is_loss) if "validation" in series.name]
        panels = pick_validation(rows)
        assert list(panels) == ["validation: loss", "validation: score"]
        assert panels["validation: score"][0].steps == (200, 400, 600, 800)


def test_a_short_training_is_averaged_over_few_steps():
    assert [window_of([{"step": last}]) for last in (10, 400, 9_000, 50_000)] == [1, 20, 450, 500]
    assert window_of([]) == 1
