from pathlib import Path

import pytest

from campaign_files import CampaignFiles
from crpipe.campaign.records import EvaluationRecord
from crpipe.core.errors import DataError
from crpipe.core.files import read_json, write_json
from crpipe.core.paths import OUTLIERS
from crpipe.events.layout import Metric
from crpipe.report.evaluations import (
    RULE,
    WORDS,
    Evaluation,
    compared_with,
    evaluations,
    mark,
    score_table,
    terms_of,
)


@pytest.fixture
def files(tmp_path):
    return CampaignFiles(tmp_path, ranges=2)


def only(files):
    (found,) = evaluations(files.campaign)
    return found


@pytest.mark.parametrize(
    ("metric", "title", "direction"),
    [
        (Metric("a", "Angle", "deg", "low", 0.0), "Angle (deg)", "lower is better, ideal 0"),
        (Metric("a", "Angle", better="low"), "Angle", "lower is better"),
        (Metric("a", "Share", better="high", ideal=1.0), "Share", "higher is better, ideal 1"),
        (Metric("a", "AUC", better="near", ideal=0.5), "AUC", "best near 0.5"),
    ],
)
def test_a_declared_metric_says_which_direction_is_better(files, metric, title, direction):
    files.evaluated(files.name(0), {"a": 1.0}, (metric,))
    (row,) = only(files).shown()
    assert (row.title, row.direction) == (title, direction)


def test_without_a_declaration_every_number_is_shown_under_its_own_name(files):
    files.evaluated(files.name(0), {"b": 2.0, "b_error": 0.1, "a": 1.0}, (), baseline={"c": 3.0})
    found = only(files)
    assert [row.title for row in found.shown()] == ["a", "b", "c"]
    assert (found.rows["b"].text("values"), found.rows["c"].text("baseline")) == ("2.00 ± 0.10", "3")
    assert found.rows["a"].text("again") == "-"
    assert found.others() == []


def test_declared_metrics_come_first_and_the_others_are_counted_apart(files):
    files.evaluated(files.name(0), {"bins": 12.0, "auc_event": 0.5})
    found = only(files)
    assert [row.name for row in found.shown()] == ["w1_time", "auc_event", "efficiency"]
    assert [row.name for row in found.others()] == ["bins"]


def test_the_newest_link_comes_first_and_outliers_are_the_last_link(files):
    for name in (files.name(0), OUTLIERS):
        files.evaluated(name, {"auc_event": 0.5})
    assert [(found.link, found.name) for found in evaluations(files.campaign)] == [
        (3, OUTLIERS),
        (1, files.name(0)),
    ]
    files.laid_out(fixed=5)
    assert [found.link for found in evaluations(files.campaign)] == [1]


@pytest.mark.parametrize(
    "change",
    [{"metrics": [{"title": "no name"}]}, {"metrics": 3}, {"values": [1.0]},
     {"metrics": [{"name": "a", "title": "a", "better": "sideways"}]}],
)  # fmt: skip
def test_a_damaged_file_is_named(files, change):
    files.evaluated(files.name(0), {"a": 1.0}, ())
    path = files.paths.evaluation(files.name(0)) / "metrics.json"
    write_json(path, {**read_json(path), **change})
    with pytest.raises(DataError, match="metrics.json: damaged .*evaluate.*again"):
        only(files)


def test_missing_values_are_no_error(files):
    path = files.paths.evaluation(files.name(0)) / "metrics.json"
    write_json(path, {"checkpoint": "0", "step": 1})
    assert only(files).shown() == []
    write_json(path, {"checkpoint": "0", "values": {"a": None, "b": "text", "c": True, "d": 1}})
    assert [row.name for row in only(files).shown()] == ["d"]


def described(**columns):
    return Evaluation.of(EvaluationRecord.from_json({"checkpoint": "0", **columns}), Path("metrics.json"))


def judged(metric, values, **columns):
    sizes = {"events": 20_000, "groups": 375}
    found = described(metrics=[metric.describe()], values=values, **sizes | columns)
    return mark(found, found.rows[metric.name])


LOW = Metric("w", "W1 of the time", "ns", "low", 0.0)
NEAR = Metric("w", "AUC of events", better="near", ideal=0.5)
HIGH = Metric("w", "share found", better="high")
COVERAGE = Metric("w", "events inside their 68 % circle", better="near", ideal=0.68)
SURE = {"w_error": 0.01}


@pytest.mark.parametrize(
    ("metric", "value", "columns", "level", "text"),
    [
        (LOW, 1.0, {"again": {"w": 1.0, **SURE}}, "same", "with 375 groups"),
        (LOW, 1.02, {"again": {"w": 1.0, **SURE}}, "same", "with 375 groups"),
        (LOW, 1.5, {"again": {"w": 1.0, **SURE}}, "differs", "1.5 times as far from the ideal as the floor"),
        (LOW, 9.0, {"again": {"w": 1.0, **SURE}}, "differs", "9 times as far from the ideal as the floor"),
        (
            LOW,
            0.5,
            {"again": {"w": 1.0, **SURE}},
            "differs",
            "nearer to the ideal than the floor: chance or a leak, no quality",
        ),
        (NEAR, 0.49, {"again": {"w": 0.5, **SURE}}, "same", "with 375 groups"),
        (NEAR, 0.7, {"again": {"w": 0.55, **SURE}}, "differs", "4 times as far from the ideal as the floor"),
        (HIGH, 0.6, {"again": {"w": 0.9, **SURE}}, "differs", "does not reach the floor"),
        (
            *(LOW, 1.5, {"baseline": {"w": 1.0}, "again": {"w": 0.5}}, "differs"),
            "3 times as far from the ideal as the floor; no better than the baseline",
        ),
        (
            LOW,
            1.5,
            {"baseline": {"w": 9.0}, "again": {"w": 0.5}},
            "differs",
            "3 times as far from the ideal as the floor",
        ),
        # Without a floor nothing is said of a distance, whatever a simple method reaches.
        (LOW, 1.0, {"baseline": {"w": 2.0, **SURE}}, "unknown", ""),
        (LOW, 3.0, {"baseline": {"w": 2.0, **SURE}}, "unknown", ""),
        (HIGH, 0.9, {"baseline": {"w": 0.7, **SURE}}, "unknown", ""),
        (LOW, 1.0, {}, "unknown", ""),
        # A coverage has an ideal of its own.
        (COVERAGE, 0.69, {}, "same", "with 375 groups"),
        (COVERAGE, 0.75, {}, "differs", "0.07 away from the ideal 0.68"),
        (COVERAGE, 0.5, {"baseline": {"w": 0.1, **SURE}}, "differs", "0.18 away from the ideal 0.68"),
    ],
)
def test_a_number_is_judged_in_words(metric, value, columns, level, text):
    found = judged(metric, {"w": value, **SURE}, **columns)
    assert (found.level, found.text) == (level, text)
    assert bool(found.sign) == bool(found.word) == (level != "unknown")


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"groups": 1}, "with 1 group"),
        ({"groups": 12}, "with 12 groups"),
        ({"groups": None, "events": 5}, "with 5 events"),
        ({"groups": None, "events": None}, "with these events"),
    ],
)
def test_no_difference_is_said_with_the_sample_that_saw_none(sizes, said):
    found = judged(LOW, {"w": 1.0, **SURE}, again={"w": 1.0, **SURE}, **sizes)
    assert (found.word, found.text) == ("no difference seen", said)


def test_numbers_without_an_error_are_not_compared():
    assert judged(LOW, {"w": 9.0}, again={"w": 1.0}).level == "unknown"
    assert judged(COVERAGE, {"w": 0.1}).level == "unknown"


def test_no_mark_says_that_a_model_is_good():
    for word in ("good", "fair", "bad", "reaches"):
        assert word not in RULE.lower()
        assert word not in WORDS.values()


def test_a_missing_number_is_not_judged():
    assert judged(LOW, {}, again={"w": 1.0}).level == "unknown"


def test_words_and_columns_that_occur_are_explained():
    found = described(metrics=[LOW.describe()], values={"w": 1.0}, again={"w": 1.0})
    assert [text.partition(" ")[0] for text in terms_of(found)] == ["W1"]
    assert [text.partition(":")[0] for text in compared_with(found)] == ["simulated again (the floor)"]


def test_a_table_has_declared_metrics_first_with_title_unit_and_error():
    radius = Metric("radius", "mean radius", unit="m", ideal=0.0)
    found = described(
        metrics=[radius.describe(), Metric("none", "none").describe()],
        values={"own": 2.0, "radius": 0.5, "radius_error": 0.01},
        baseline={"radius": 1.5},
    )
    assert list(score_table(found.columns, found.rows.values(), corner="metric")) == [
        "| metric | model | baseline |",
        "|---|---|---|",
        "| mean radius, in m | 0.5 ± 0.01 | 1.5 |",
        "| own | 2 |  |",
    ]
    card = score_table(found.columns, found.shown(), "this model", digits=(".3f", ".3f"), best=True)
    assert list(card) == [
        "| | this model | baseline | best |",
        "|---|---|---|---|",
        "| mean radius, in m | 0.500 ± 0.010 | 1.500 | 0 |",
    ]
