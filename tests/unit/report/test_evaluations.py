import pytest

from campaign_files import CampaignFiles
from crpipe.core.errors import DataError
from crpipe.core.files import read_json, write_json
from crpipe.core.paths import OUTLIERS
from crpipe.events.layout import Metric
from crpipe.report.evaluations import evaluations


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
    (measure,) = only(files).measures()
    assert (measure.title, measure.direction) == (title, direction)


def test_without_a_declaration_every_number_is_shown_under_its_own_name(files):
    files.evaluated(files.name(0), {"b": 2.0, "b_error": 0.1, "a": 1.0}, (), baseline={"c": 3.0})
    found = only(files)
    assert [measure.title for measure in found.measures()] == ["a", "b", "c"]
    assert (found.text("values", "b"), found.text("baseline", "c")) == ("2.00 ± 0.10", "3")
    assert found.text("again", "a") == "-"


def test_declared_metrics_come_first_and_the_others_are_counted_apart(files):
    files.evaluated(files.name(0), {"bins": 12.0, "auc_event": 0.5})
    found = only(files)
    assert [measure.name for measure in found.measures()] == ["w1_time", "auc_event", "efficiency"]
    assert [measure.name for measure in found.undeclared()] == ["bins"]


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
    with pytest.raises(DataError, match="metrics.json: damaged .*evaluate again"):
        only(files)


def test_missing_values_are_no_error(files):
    path = files.paths.evaluation(files.name(0)) / "metrics.json"
    write_json(path, {"checkpoint": "0", "step": 1})
    assert only(files).measures() == []
    write_json(path, {"values": {"a": None, "b": "text", "c": True, "d": 1}})
    assert [measure.name for measure in only(files).measures()] == ["d"]
