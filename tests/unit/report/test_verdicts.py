"""The words of an evaluation: of each number, of tables, beside a baseline, and of all together."""

from pathlib import Path

import pytest

from crpipe.campaign.records import EvaluationRecord
from crpipe.events.layout import Metric
from crpipe.report.evaluations import Evaluation
from crpipe.report.verdicts import RULE, line, overall, verdicts
from crpipe.statistics.verdict import WORDS

LOW = Metric("w", "W1 of the time", "ns", "low", 0.0, tolerance=0.1)
NEAR = Metric("w", "AUC of events", better="near", ideal=0.5, tolerance=0.02)
HIGH = Metric("w", "share found", better="high", tolerance=0.05)
COVERAGE = Metric("w", "events inside their 68 % circle", better="near", ideal=0.68, tolerance=0.02)
WIDTH = Metric("w", "resolution", "%", "low", 0.0, tolerance=0.05, relative=True)
RATIO = Metric("w", "spectrum", better="near", ideal=1.0, tolerance=0.1)
SURE, UNSURE = {"w_error": 0.001}, {"w_error": 0.2}


def described(*metrics, values, **more):
    record = {
        "checkpoint": "0",
        "events": 20_000,
        "groups": 400,
        "metrics": [metric.describe() for metric in metrics],
        "values": values,
    }
    return Evaluation.of(EvaluationRecord.from_json(record | more), Path("metrics.json"))


def whole_of(evaluation):
    return overall(evaluation, verdicts(evaluation))


def judged(metric, value, error=SURE, **more):
    return verdicts(described(metric, values={"w": value, **error}, **more))["w"]


@pytest.mark.parametrize(
    ("metric", "value", "more", "word", "text"),
    [
        (LOW, 0.05, {"again": {"w": 0.04, **SURE}}, "agrees", "from the floor, tolerance 0.1"),
        (LOW, 0.35, {"again": {"w": 0.04, **SURE}}, "differs", "0.3100 ± 0.0014 ns from the floor"),
        (LOW, 0.35, {"halves": {"w": 0.04, **SURE}}, "differs", "from the floor"),
        (LOW, 0.35, {}, "", ""),
        (NEAR, 0.505, {"again": {"w": 0.5, **SURE}}, "agrees", ""),
        (NEAR, 0.7, {"again": {"w": 0.5, **SURE}}, "differs", "0.2000 ± 0.0014 from the floor"),
        (NEAR, 0.3, {"again": {"w": 0.5, **SURE}}, "differs", "-0.2000"),
        (NEAR, 0.7, {}, "differs", "away from the ideal 0.5"),
        (HIGH, 0.5, {"again": {"w": 0.9, **SURE}}, "differs", ""),
        (HIGH, 0.95, {"again": {"w": 0.9, **SURE}}, "agrees", ""),
        (COVERAGE, 0.69, {}, "agrees", "0.0100 ± 0.0010 away from the ideal 0.68, tolerance 0.02"),
        (COVERAGE, 0.75, {}, "differs", "0.0700 ± 0.0010 away from the ideal 0.68"),
        (COVERAGE, 0.75, {"baseline": {"w": 0.1, **SURE}}, "differs", ""),
    ],
)
def test_a_number_is_judged_in_a_word(metric, value, more, word, text):
    one = judged(metric, value, **more)
    assert one.word == word
    assert text in one.text
    assert bool(one.sign) == bool(word)


def test_what_cannot_be_told_names_the_groups_that_would():
    one = judged(NEAR, 0.55, {"w_error": 0.05}, again={"w": 0.5, "w_error": 0.05})
    assert one.word == "cannot tell"
    assert one.text == "400 groups resolve 0.14, 0.02 needs 21,000"
    assert judged(NEAR, 0.55, {}, again={"w": 0.5}).text == "its error is not known"


def test_a_model_that_lacks_a_number_is_not_called_good():
    rare = Metric("auc", "AUC", better="near", ideal=0.5, groups=1000)
    one = whole_of(described(COVERAGE, Metric("off", "opening angle"), rare, values={"w": 0.68, **SURE}))
    assert (one.word, one.text) == ("cannot tell", "opening angle, the model has no finite number")


def test_the_error_of_a_difference_on_the_same_events_is_taken_where_it_is_known():
    columns = {"again": {"w": 0.5, **UNSURE}, "differences": {"again": {"w": 0.005, "w_error": 0.001}}}
    assert judged(NEAR, 0.505, UNSURE, **columns).word == "agrees"
    assert judged(NEAR, 0.505, UNSURE, again=columns["again"]).word == "cannot tell"


def test_a_distance_that_is_as_far_as_its_floor_by_chance_does_not_agree():
    assert judged(LOW, 0.5, again={"w": 0.5, **SURE}).word == "cannot tell"


def test_a_number_without_a_tolerance_differs_or_cannot_be_told():
    metric = Metric("w", "AUC", better="near", ideal=0.5)
    assert judged(metric, 0.6, again={"w": 0.5, **SURE}).text.endswith("no tolerance declared")
    assert judged(metric, 0.5, again={"w": 0.5, **SURE}).word == "cannot tell"


def rows(*values, kind="ratio"):
    names = ("bin", "value", "error", "p", "real", "generated")
    return [{"kind": kind, **dict(zip(names, (*value, 1.0, 1.0), strict=True))} for value in values]


def test_a_table_is_named_by_its_worst_bin():
    table = rows(("low", 1.01, 0.01, 0.9), ("high", 0.63, 0.03, 0.001), ("tail", 2.0, 0.9, 0.8))
    one = judged(RATIO, 0.63, tables={"w": table})
    assert one.word == "differs"
    assert one.text == "high: ratio 0.630 ± 0.030, tolerance 0.1; 1 of 3 bins agree"


def test_a_table_agrees_only_where_all_bins_do_and_says_how_many_these_are():
    """Fewer groups resolve fewer bins: that must not make a mark better."""
    table = rows(("low", 1.01, 0.01, 0.9), ("tail", 1.4, 0.3, 0.8))
    one = judged(RATIO, 1.01, tables={"w": table})
    assert (one.word, one.text.partition(":")[0]) == ("cannot tell", "tail")
    assert one.text.endswith("1 of 2 bins agree")
    assert judged(RATIO, 1.01, tables={"w": table[:1]}).word == "agrees"


def test_a_number_that_only_the_floor_has_cannot_be_told():
    evaluation = described(NEAR, values={"other": 1.0}, again={"w": 0.5, **SURE})
    assert verdicts(evaluation)["w"].word == "cannot tell"
    assert whole_of(evaluation).word == "cannot tell"


def test_beside_a_baseline_on_the_other_side_of_the_ideal_the_errors_add_up():
    bias = Metric("w", "bias", better="near", ideal=0.0, tolerance=0.01)
    more = {
        "baseline": {"w": -0.03, "w_error": 0.02},
        "differences": {"baseline": {"w": 0.04, "w_error": 0.001}},
    }
    assert judged(bias, 0.01, {"w_error": 0.02}, **more).baseline == "cannot tell"
    exact = {
        "baseline": {"w": 0.5, "w_error": 0.0},
        "differences": {"baseline": {"w": -0.3, "w_error": 0.001}},
    }
    assert judged(bias, 0.2, {"w_error": 0.0}, **exact).baseline == "better than"
    level = {"baseline": {"w": 0.0, "w_error": 0.0}}
    assert judged(bias, 0.0, {"w_error": 0.0}, **level).baseline == "like"


@pytest.mark.parametrize("row", [{}, {"bin": "low"}, {"bin": "low", "kind": "ratio", "p": "small"}])
def test_a_damaged_table_is_named_when_it_is_read(row):
    with pytest.raises(ValueError, match=r"(bin|kind|p) is"):
        described(NEAR, values={"w": 0.5}, tables={"w": [row]})


def test_a_bin_in_which_only_generated_events_are_differs():
    one = judged(RATIO, 1.0, tables={"w": rows(("low", 1.0, 0.01, 1.0), ("tail", None, None, 0.001))})
    assert one.word == "differs"
    assert one.text == "tail: none is real, tolerance 0.1; 1 of 2 bins agree"


def test_many_numbers_are_judged_together():
    """One of twenty equal numbers is 2.5 errors off by chance: alone it would differ."""
    names = [f"w{number}" for number in range(20)]
    metrics = [Metric(name, name, better="near", ideal=0.0, tolerance=0.01) for name in names]
    values = dict.fromkeys(names, 0.0) | {f"{name}_error": 0.01 for name in names} | {"w3": 0.025}
    assert verdicts(described(*metrics, values=values))["w3"].word == "cannot tell"
    assert verdicts(described(metrics[3], values=values))["w3"].word == "differs"


@pytest.mark.parametrize(
    ("value", "error", "kind", "text"),
    [
        (1.0, SURE, "better than", "better than the baseline by 1.0000 ± 0.0014 %"),
        (3.0, SURE, "worse than", "worse than the baseline by 1.0000 ± 0.0014 %"),
        (2.0, SURE, "like", "like the baseline"),
        (1.8, UNSURE, "cannot tell", "cannot tell from the baseline: 400 groups resolve"),
    ],
)
def test_a_model_is_judged_beside_its_baseline(value, error, kind, text):
    one = judged(WIDTH, value, error, baseline={"w": 2.0, **error})
    assert (one.word, one.baseline) == ("", kind)
    assert text in one.beside


def test_the_overall_word_is_the_worst_and_names_its_number():
    metrics = [Metric(name, name.upper(), better="near", ideal=0.5, tolerance=0.02) for name in "abc"]
    floor = dict.fromkeys("abc", 0.5) | {f"{name}_error": 0.001 for name in "abc"}

    def whole(**values):
        return whole_of(described(*metrics, values=floor | values, again=floor))

    assert (whole().word, whole().text) == ("agrees", "all 3 numbers")
    assert whole(b_error=0.5).word == "cannot tell"
    worst = whole(b_error=0.5, a=0.7, c=0.6)
    assert worst.word == "differs"
    assert worst.text == "A, 0.2000 ± 0.0014 from the floor, tolerance 0.02; and 1 number more"


def test_the_overall_text_names_the_worst_bin_of_the_tables():
    metrics = (NEAR, Metric("spectrum", "spectrum", better="near", ideal=1.0, tolerance=0.1))
    values = {"w": 0.7, **SURE, "spectrum": 0.5, "spectrum_error": 0.02}
    tables = {"spectrum": rows(("low", 1.3, 0.09, 0.001), ("high", 0.5, 0.02, 0.001))}
    whole = whole_of(described(*metrics, values=values, again={"w": 0.5, **SURE}, tables=tables))
    assert whole.text.endswith("and 1 number more, most of all spectrum, high: ratio 0.500 ± 0.020")


def test_one_line_says_it_all():
    again, baseline = {"w": 0.5, **SURE}, {"w": 2.0, **SURE}
    assert line(described(NEAR, values=again, again=again)) == "agrees: AUC of events"
    assert line(described(WIDTH, values={"w": 1.0, **SURE}, baseline=baseline)) == (
        "better than the baseline in 1 of 1 numbers"
    )
    assert line(described(WIDTH, values={"w": 3.0, **SURE}, baseline=baseline)) == (
        "better than the baseline in 0 of 1 numbers, worse in 1: resolution (%)"
    )
    assert line(described(LOW, values=again)) == "nothing to compare the numbers with"


def test_no_word_says_that_a_model_is_good():
    for word in ("good", "fair", "bad", "reaches"):
        assert word not in RULE.lower()
        assert word not in WORDS
