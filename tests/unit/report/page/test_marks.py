import pytest

from crpipe.events.layout import Metric
from crpipe.report.evaluations import read_evaluation
from crpipe.report.page.marks import RULE, WORDS, compared_with, mark, terms_of


def judged(metric, values, **columns):
    tree = {"metrics": [metric.describe()], "values": values, "events": 20_000, "groups": 375, **columns}
    found = read_evaluation(1, "link", "metrics.json", tree)
    return mark(found, found.declared[0])


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
    tree = {"metrics": [LOW.describe()], "values": {"w": 1.0}, "again": {"w": 1.0}}
    found = read_evaluation(1, "link", "metrics.json", tree)
    assert [text.partition(" ")[0] for text in terms_of(found)] == ["W1"]
    assert [text.partition(":")[0] for text in compared_with(found)] == ["simulated again (the floor)"]
