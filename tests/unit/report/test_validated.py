"""Numbers of held-out events in status, figures and page."""

import json

import pytest

from campaign_files import STEPS, CampaignFiles
from crpipe.core.files import read_json, write_json
from crpipe.report.figures import plot_training
from crpipe.report.page.overview import render_page
from crpipe.report.series import chain_rows, is_loss, pick, pick_validation
from crpipe.report.status import render_status, status_json


@pytest.fixture
def files(tmp_path):
    """Two links whose metrics hold two validations each."""
    made = CampaignFiles(tmp_path, ranges=3)
    for index in range(2):
        name = made.split(index)
        made.trained(name)
        path = made.paths.store(name) / "metrics.jsonl"
        rows = []
        for line in path.read_text().splitlines():
            row = json.loads(line)
            rows.append(row)
            if row["range_step"] in (STEPS // 2, STEPS):
                own = {"validation/critic/loss": 0.5, "validation/critic/gap": 0.2, "validation/score": 2.25}
                rows.append({name: value for name, value in row.items() if "/" not in name} | own)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        best = {"range": name, "metric": "score", "value": 2.125, "step": 200, "checkpoint": "b", "key": "k"}
        best["sha256"] = "0" * 64
        write_json(made.paths.best_receipt(name), best)
    return made


def test_status_shows_the_last_and_the_best_value(files):
    line = "score 2.25 at step 800, best 2.125 at step 200"
    assert line in " ".join(render_status(files.campaign, 200).split())
    assert json.loads(status_json(files.campaign))["validation"]["best_step"] == 200


def test_without_a_best_checkpoint_status_shows_what_was_measured_last(files):
    for index in range(2):
        files.paths.best_receipt(files.name(index)).unlink()
    line = f"score 2.25, critic/loss 0.5, critic/gap 0.2 at step 800 ({files.name(1)})"
    assert line in " ".join(render_status(files.campaign, 200).split())


def test_status_says_nothing_of_validation_where_there_is_none(tmp_path):
    made = CampaignFiles(tmp_path, ranges=1)
    made.trained(made.split(0))
    assert json.loads(status_json(made.campaign))["validation"] is None


def test_status_shows_why_a_link_ended_early(files):
    path = files.paths.receipt(files.name(1))
    write_json(path, {**read_json(path), "stopped": "no better validation/score for 3 validations; best 2"})
    assert "ended early: no better validation/score for 3 validations" in render_status(files.campaign, 400)


def test_validation_has_curves_of_its_own(files):
    rows = chain_rows(files.campaign)
    assert not [series.name for series in pick(rows, is_loss) if "validation" in series.name]
    panels = pick_validation(rows)
    assert list(panels) == ["validation: loss", "validation: score"]
    assert panels["validation: score"][0].steps == (200, 400, 600, 800)


def test_thinned_rows_keep_every_validation(files):
    rows = chain_rows(files.campaign, most=3)
    assert len(pick_validation(rows)["validation: score"][0].steps) == 4


def test_figures_and_page_show_them(files, tmp_path):
    (losses, *_) = plot_training(files.campaign, tmp_path)
    assert "validation: score" in losses.read_text()
    assert "Validation: score" in render_page(files.campaign)
