import pytest

from crpipe.events.metric import Metric
from crpipe.report.evaluations import read_evaluation
from crpipe.report.page.marks import compared_with, mark, terms_of


def judged(metric, values, **columns):
    tree = {"metrics": [metric.describe()], "values": values, **columns}
    found = read_evaluation(1, "link", "metrics.json", tree)
    return mark(found, found.declared[0])


LOW = Metric("w", "W1 of the time", "ns", "low", 0.0)
NEAR = Metric("w", "AUC of events", better="near", ideal=0.5)
HIGH = Metric("w", "share found", better="high")
SURE = {"w_error": 0.01}


@pytest.mark.parametrize(
    ("metric", "value", "columns", "level", "text"),
    [
        (LOW, 1.0, {"again": {"w": 1.0, **SURE}}, "good", "reaches the floor"),
        (LOW, 1.5, {"again": {"w": 1.0, **SURE}}, "fair", "1.5 times as far from the ideal as the floor"),
        (LOW, 9.0, {"again": {"w": 1.0, **SURE}}, "bad", "9 times as far from the ideal as the floor"),
        (LOW, 1.0, {"baseline": {"w": 2.0, **SURE}}, "good", "better than the baseline"),
        (LOW, 3.0, {"baseline": {"w": 2.0, **SURE}}, "bad", "worse than the baseline"),
        (LOW, 2.0, {"baseline": {"w": 2.0, **SURE}}, "bad", "no better than the baseline"),
        (LOW, 1.5, {"baseline": {"w": 1.0}, "again": {"w": 0.5}}, "bad", "worse than the baseline"),
        (NEAR, 0.49, {"again": {"w": 0.5, **SURE}}, "good", "reaches the floor"),
        (NEAR, 0.7, {"again": {"w": 0.55, **SURE}}, "bad", "4 times as far from the ideal as the floor"),
        (HIGH, 0.9, {"baseline": {"w": 0.7, **SURE}}, "good", "better than the baseline"),
        (HIGH, 0.6, {"again": {"w": 0.9, **SURE}}, "fair", "does not reach the floor"),
        (LOW, 1.0, {}, "unknown", ""),
    ],
)
def test_a_number_is_judged_in_words(metric, value, columns, level, text):
    found = judged(metric, {"w": value, **SURE}, **columns)
    assert (found.level, found.text) == (level, text)
    assert bool(found.sign) == (level != "unknown")


def test_a_missing_number_is_not_judged():
    assert judged(LOW, {}, again={"w": 1.0}).level == "unknown"


def test_words_and_columns_that_occur_are_explained():
    tree = {"metrics": [LOW.describe()], "values": {"w": 1.0}, "again": {"w": 1.0}}
    found = read_evaluation(1, "link", "metrics.json", tree)
    assert [text.partition(" ")[0] for text in terms_of(found)] == ["W1"]
    assert [text.partition(":")[0] for text in compared_with(found)] == ["simulated again (the floor)"]
