from dataclasses import replace

import pytest

from campaign_files import CampaignFiles
from crpipe.core.files import write_json
from crpipe.core.paths import OUTLIERS
from crpipe.events.layout import Metric
from crpipe.report.state import CampaignState
from crpipe.report.summary import WIDTH, render_summary


@pytest.fixture
def files(tmp_path):
    made = CampaignFiles(tmp_path, ranges=2)
    made.claim()
    for index in range(2):
        made.trained(made.split(index, quarantined=index, rejected=3 * index))
    made.consolidated(events=201)
    return made


def is_a_clean_box(text):
    lines = text.splitlines()
    return {len(line) for line in lines} == {WIDTH} and lines[0][0] + lines[-1][-1] == "╭╯"


def test_the_box_holds_the_sums_and_their_check(files):
    text = render_summary(files.state)
    assert is_a_clean_box(text)
    assert text.count("✓") == 3
    assert "80,000" in text
    assert "consolidated 201 = 201 in the ranges" in text
    assert f"{files.name(1)}/0000009.parquet: 12 bytes short of 41943040" in text


def test_events_without_items_are_counted(files):
    assert "empty" not in render_summary(files.state)
    files.split(1, empty=20_000)
    text = render_summary(files.state)
    assert is_a_clean_box(text)
    assert "empty         20,000 events without" in text
    assert "(25%)" in text


def test_an_unbalanced_sum_and_lost_outliers_are_marked(files):
    with files.changed_ledger(files.name(0)) as ledger:
        ledger["events"]["train"] -= 1
    files.consolidated(events=200)
    text = render_summary(files.state)
    assert text.count("✗") == 2
    assert f"not {files.name(0)}" in text
    assert "consolidated 200 ≠ 201" in text


def test_metrics_are_judged_in_words(files):
    files.trained(OUTLIERS)
    values = {"w1_time": 0.022, "w1_time_error": 0.001, "auc_event": 0.9, "auc_event_error": 0.01}
    floor = {"w1_time": 0.022, "w1_time_error": 0.001, "auc_event": 0.51, "auc_event_error": 0.01}
    files.evaluated(
        OUTLIERS, values | {"efficiency": 0.9}, again=floor, baseline={"efficiency": 0.7}, groups=375
    )
    text = render_summary(files.state)
    words = " ".join(text.replace("│", " ").split())
    assert is_a_clean_box(text)
    assert "verdict differs: AUC of events, 0.390 ± 0.014 from the floor, tolerance 0.02;" in words
    assert "≠ differs: AUC of events (0.390 ± 0.014 from the floor, tolerance 0.02)" in words
    assert "? cannot tell, with the groups needed: W1 of the time (ns) (2,400)" in words
    assert "baseline Share of events found: cannot tell from the baseline: its error is not known" in words
    assert not any(word in words for word in ("good", "reaches"))
    assert "meaning W1 (Wasserstein distance)" in words


def test_the_last_link_gives_checkpoint_and_evaluation(files):
    files.evaluated(files.name(1), {"w1_time": 9.0})
    files.trained(OUTLIERS)
    values = {"w1_time": 0.0312, "w1_time_error": 0.002, "auc_event": 0.53, "bins": 100.0}
    files.evaluated(OUTLIERS, values, again={"w1_time": 0.022}, baseline={"w1_time": 123456.7})
    text = render_summary(files.state)
    words = " ".join(text.replace("│", " ").split())
    assert is_a_clean_box(text)
    assert "store/outliers" in "".join(line.strip("│ ") for line in text.splitlines())
    assert "metric model simulated again baseline" in words
    assert "W1 of the time (ns) ? 0.0312 ± 0.0020 0.022 123,457 (lower is better, ideal 0)" in words
    assert "AUC of events ? 0.53 - - (best near 0.5)" in words
    assert "not enough for Share of events found" in words
    assert "more numbers 1 in" in words


def test_a_workload_without_declarations_and_figures_has_its_numbers_shown(files):
    files.evaluated(OUTLIERS, {f"number_{index:02}": float(index) for index in range(30)}, ())
    text = render_summary(files.state)
    assert is_a_clean_box(text)
    assert "number_19" in text
    assert "number_20" not in text
    assert "10 in" in text
    assert "figures" not in text
    (files.paths.evaluation(OUTLIERS) / "any.svg").touch()
    assert "figures" in render_summary(files.state)


@pytest.mark.parametrize("columns", [{"values": {}}, {"values": {"x": None}}, {}])
def test_missing_values_leave_the_box_whole(files, columns):
    write_json(files.paths.evaluation(OUTLIERS) / "metrics.json", {"checkpoint": "0", "step": 1, **columns})
    text = render_summary(files.state)
    assert is_a_clean_box(text)
    assert "no numbers: too few held-out events for any metric" in text


def test_numbers_that_are_missing_are_named_with_what_they_need(files):
    metrics = (
        Metric("w1_time", "W1 of the time", groups=10),
        Metric("auc_event", "AUC", groups=20, needs="20 showers"),
        Metric("auc_hit", "AUC of hits", groups=20, needs="20 showers"),
    )
    files.evaluated(OUTLIERS, {"bins": 1.0}, metrics, events=1000, groups=1)
    text = render_summary(files.state)
    words = " ".join(text.replace("│", " ").split())
    assert is_a_clean_box(text)
    assert (
        "not enough 1,000 held-out events of 1 group: W1 of the time needs 10 groups; "
        "AUC, AUC of hits need 20 showers"
    ) in words
    files.evaluated(OUTLIERS, {"bins": 1.0}, metrics, events=1000, groups=15)
    words = " ".join(render_summary(files.state).replace("│", " ").split())
    assert "no number score gave none that is finite: W1 of the time not enough" in words
    assert "of 15 groups: AUC, AUC of hits need 20 showers" in words
    files.evaluated(OUTLIERS, {}, metrics, events=0, groups=0)
    text = render_summary(files.state)
    assert "not enough: no event is held out, so there are no numbers" in text
    assert "AUC" not in text


def test_long_titles_and_numbers_keep_the_box(files):
    long = {"w1_time": 123456789.0, "w1_time_error": 1.234e-05}
    metric = Metric("w1_time", "a title of many words " * 6 + "x" * 90, "unit")
    files.evaluated(OUTLIERS, long, (metric,), again=long, baseline=long)
    assert is_a_clean_box(render_summary(files.state))


def test_the_item_word_comes_from_the_layout(files):
    assert "events and hits" in render_summary(files.state)
    files.laid_out(item="photomultiplier_hits_of_all_strings")
    text = render_summary(files.state)
    assert is_a_clean_box(text)
    assert "photomultipl…" in text
    unknown = CampaignState.read(replace(files.campaign, known_layout=None))
    assert "events and items" in render_summary(unknown)


def test_events_of_one_size_have_no_outliers_link(files):
    files.laid_out(fixed=4)
    files.evaluated(files.name(1), {"auc_event": 0.5})
    files.evaluated(OUTLIERS, {"auc_event": 0.9})
    text = render_summary(files.state)
    assert is_a_clean_box(text)
    assert "consolidated" not in text
    assert f"store/{files.name(1)}" in "".join(line.strip("│ ") for line in text.splitlines())
    assert "AUC of events" in text
    assert "0.9" not in text


def test_huge_sums_and_an_empty_campaign_keep_the_box(files, tmp_path):
    with files.changed_ledger(files.name(0)) as ledger:
        ledger["items"]["listed"] += 10**15
        ledger["items"]["train"] += 10**15
    assert is_a_clean_box(render_summary(files.state))
    assert "1,000,000,018,800,000" in render_summary(files.state)
    text = render_summary(CampaignFiles(tmp_path / "empty", ranges=2).state)
    assert is_a_clean_box(text)
    assert "none yet" in text
    assert "not evaluated yet" in text
