"""Several runs side by side."""

import json
import xml.etree.ElementTree as ET

import pytest

from campaign_files import CampaignFiles
from crpipe.core.errors import ConfigError
from crpipe.core.files import write_json
from crpipe.report.compare import plot_comparison, read_runs, render_comparison


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
    with (files.paths.runs / "slow" / "store" / files.name(0) / "metrics.jsonl").open("a") as lines:
        lines.write("".join(json.dumps(row) + "\n" for row in rows))
    return files.paths


def lines_of(paths, *names):
    return [line.strip() for line in render_comparison(read_runs(paths, names)).splitlines()]


def row(lines, start):
    return next(line for line in lines if line.startswith(start))


def test_keys_training_and_metrics_stand_side_by_side(paths):
    lines = lines_of(paths, "fast", "slow")
    keys = lines[1 : lines.index("")]
    assert [line.split() for line in keys] == [
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
