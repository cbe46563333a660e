"""Several runs side by side."""

import json
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from campaign_files import CampaignFiles
from crpipe.core.errors import ConfigError
from crpipe.core.files import write_json
from crpipe.report.compare import compared_tables, plot_comparison, ranking, read_runs, render_tables


@pytest.fixture
def paths(tmp_path):
    """Three runs: two that are evaluated, one that has only begun."""
    for run, rate, auc, links in (
        ("fast", "6e-4", 0.61, 2),
        ("slow", "1e-4", 0.53, 1),
        ("new", "2e-4", None, 0),
    ):
        files = CampaignFiles(tmp_path, 2, (f"run={run}", f"model.critic_learning_rate={rate}"))
        write_json(files.paths.run_config(), files.campaign.run_keys)
        for index in range(links):
            files.trained(files.name(index))
            values = {"auc_event": auc, "auc_event_error": 0.01, "efficiency": 0.9, "efficiency_error": 0.2}
            files.evaluated(files.name(index), {**values, "efficiency": 0.9 + auc / 10})
    rows = [{"step": 100, "validation/critic/loss": 3.0}, {"step": 300, "validation/critic/loss": 2.5}]
    rows.append({"step": 400, "validation/auc_event": 0.9})  # of the same name as a number of the evaluation
    with (files.paths.runs / "slow" / "store" / files.name(0) / "metrics.jsonl").open("a") as lines:
        lines.write("".join(json.dumps(row) + "\n" for row in rows))
    return files.paths


def lines_of(paths, *names):
    return [line.strip() for line in render_tables(compared_tables(read_runs(paths, names))).splitlines()]


def row(lines, start):
    return next(line for line in lines if line.startswith(start))


def test_keys_training_and_metrics_stand_side_by_side(paths):
    lines = lines_of(paths, "fast", "slow")
    assert lines[0] == "ranked by AUC of events, best near 0.5"
    assert [line.split()[:2] for line in lines[2:4]] == [["1", "slow"], ["2", "fast"]]
    begin = lines.index("keys that differ") + 1
    assert [line.split() for line in lines[begin : lines.index("", begin)]] == [
        ["key", "fast", "slow"],
        ["model.critic_learning_rate", "0.0006", "0.0001"],
    ]
    assert row(lines, "links finished").split()[2:] == ["2", "1"]
    assert row(lines, "steps").split()[1:] == ["800", "400"]
    assert row(lines, "AUC of events").endswith("0.610 ± 0.010  0.530 ± 0.010  slow")
    assert row(lines, "Share of events found").endswith("cannot tell")  # within the errors
    assert row(lines, "critic/loss").split()[1:] == ["-", "2.5"]


def test_a_run_that_has_only_begun_is_compared_too(paths):
    lines = lines_of(paths, "fast", "new")
    assert row(lines, "steps").split()[1:] == ["800", "-"]
    assert row(lines, "AUC of events").split()[-5:] == ["0.610", "±", "0.010", "-", "-"]
    assert "new: not evaluated" in lines


def test_an_unknown_run_names_those_that_exist(paths):
    with pytest.raises(ConfigError, match=r"gone: no run of this name .* there are: fast, new, slow"):
        read_runs(paths, ["fast", "gone"])


def test_curves_are_plotted_over_each_other(paths, tmp_path):
    text = plot_comparison(read_runs(paths, ["fast", "slow"]), tmp_path / "both.svg").read_text()
    ET.fromstring(text)
    for word in ("fast", "slow", "critic/loss", "validation/critic/loss"):
        assert f">{word}<" in text
    with pytest.raises(ConfigError, match="no.* of the runs new has metrics to plot"):
        plot_comparison(read_runs(paths, ["new"]), tmp_path / "none.svg")


def test_many_runs_with_long_names_leave_room_for_the_curves(paths, tmp_path):
    """Too wide a legend collapses the panels, of which matplotlib warns."""
    (slow,) = read_runs(paths, ["slow"])
    names = [f"slow-hidden-{number}_gradient_clip_norm-{number}" for number in range(10)]
    text = plot_comparison([replace(slow, name=name) for name in names], tmp_path / "all.svg").read_text()
    assert all(f">{word}<" in text for word in ("10 runs", *names))


def evaluated(tmp_path, run, auc, *overrides, **numbers):
    """Begin a run, and evaluate its first link unless ``auc`` is None."""
    files = CampaignFiles(tmp_path, 2, (f"run={run}", *overrides))
    write_json(files.paths.run_config(), files.campaign.run_keys)
    if auc is not None:
        files.trained(files.name(0))
        files.evaluated(files.name(0), {"auc_event": auc, "auc_event_error": 0.01, **numbers})
    return files


def ranked(files, *names, by="", usual=""):
    """Rank runs; return the title, and the words of each line."""
    each = ranking(read_runs(files.paths, names), by, usual, keys=True)
    return each.title, [line.split() for line in each.lines()]


def test_runs_are_ranked_with_the_keys_that_differ(tmp_path):
    """Ties share a place; a number that is not finite, and one that is not there, are last."""
    evaluated(tmp_path, "far", 0.9, "load.batch_size=2")
    evaluated(tmp_path, "near", 0.51)
    evaluated(tmp_path, "below", 0.49)
    evaluated(tmp_path, "nothing", float("nan"))
    files = evaluated(tmp_path, "begun", None)
    title, lines = ranked(files, "begun", "far", "nothing", "near", "below", by="auc_event")
    assert title == "ranked by AUC of events, best near 0.5"
    assert " ".join(lines[0]) == "run auc_event beside the best evaluated links load.batch_size"
    link = files.name(0)
    assert [line[:3] for line in lines[1:]] == [
        ["1", "below", "0.490"],
        ["1", "near", "0.510"],
        ["3", "far", "0.900"],
        ["-", "begun", "-"],
        ["-", "nothing", "-"],
    ]
    assert lines[1][3:] == ["±", "0.010", "best", link, "1", "4096"]
    assert " ".join(lines[2][5:7]) == "cannot tell"
    assert lines[3][3:] == ["±", "0.010", "differs", link, "1", "2"]
    assert lines[4][3:] == ["-", "-", "0", "4096"]


def test_a_loss_of_the_validation_ranks_runs_by_its_best_value(paths):
    name = CampaignFiles(paths.results.parent, 2).name(0)
    rows = {"new": [7.0], "fast": [2.75, 9.0, float("nan")]}  # slow: 3.0, then 2.5
    for run, losses in rows.items():
        store = paths.runs / run / "store" / name
        store.mkdir(parents=True, exist_ok=True)
        with (store / "metrics.jsonl").open("a") as lines:
            for step, loss in enumerate(losses):
                lines.write(json.dumps({"step": 1000 + step, "validation/critic/loss": loss}) + "\n")
    each = ranking(read_runs(paths, ["fast", "slow", "new"]), "critic/loss")
    assert [line.split()[:3] for line in each.lines()[1:]] == [
        ["1", "slow", "2.5"],
        ["2", "fast", "2.75"],
        ["3", "new", "7"],
    ]
    assert each.title == "ranked by best validation/critic/loss, lower is better"
    assert [column.title for column in each.columns] == ["", "run", "critic/loss", "evaluated", "links"]


def test_what_ranks_runs_is_asked_for_or_usual_or_the_first_number(paths):
    runs = read_runs(paths, ["fast", "slow"])
    words = [("efficiency", "critic/loss"), ("", "critic/loss"), ("", "gone/loss")]
    measured = [ranking(runs, *each).columns[2].title for each in words]
    assert measured == ["efficiency", "critic/loss", "auc_event"]
    with pytest.raises(
        ConfigError, match=r"--by: 'auc' is not known; known: auc_event.*; did you mean auc_event\?"
    ):
        ranking(runs, "auc")


def test_without_any_number_runs_are_listed(paths):
    each = ranking(read_runs(paths, ["new"]))
    assert each.title.startswith("not ranked: no run has a number")
    assert each.lines()[1].split() == ["-", "new", "-", "0"]
