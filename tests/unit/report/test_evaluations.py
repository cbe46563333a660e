from pathlib import Path

import pytest

from campaign_files import CampaignFiles
from crpipe.campaign.records import EvaluationRecord
from crpipe.core.errors import DataError
from crpipe.core.files import read_json, write_json
from crpipe.core.paths import OUTLIERS
from crpipe.events.layout import Metric
from crpipe.report.evaluations import (
    Evaluation,
    compared_with,
    evaluations,
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


def test_columns_that_occur_and_what_the_workload_explains_are_explained():
    """A metric without an explanation gets none, whatever its title is."""
    text = "W1: how far one has to be moved"
    metrics = [Metric(name, "W1", meaning=text) for name in "ab"] + [Metric("c", "AUC of a tagger")]
    found = described(
        metrics=[each.describe() for each in metrics], values=dict.fromkeys("abc", 1.0), again={"a": 1.0}
    )
    assert terms_of(found) == [text]
    assert "meaning" not in metrics[2].describe()
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
