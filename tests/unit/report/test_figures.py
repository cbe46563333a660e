import xml.etree.ElementTree as ET

import pytest

from campaign_files import CampaignFiles
from crpipe.report.figures import draw_figures, draw_progress


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    made = CampaignFiles(tmp_path_factory.mktemp("campaign"), ranges=2)
    made.trained(made.split(0))
    return made


@pytest.fixture(scope="module")
def drawn(files):
    return {path.stem: path.read_text() for path in draw_figures(files.config)}


def test_every_figure_is_labelled_with_units(drawn):
    assert set(drawn) == {"multiplicity", "losses", "throughput", "gradients"}
    for text in drawn.values():
        ET.fromstring(text)
    assert "multiplicity (muons in one event)" in drawn["multiplicity"]
    assert "threshold 50,000" in drawn["multiplicity"]
    assert "Wasserstein gap" in drawn["losses"]
    assert "events / s" in drawn["throughput"]
    assert "gradient norm" in drawn["gradients"]


def test_the_same_campaign_gives_the_same_bytes(files, drawn):
    assert {path.stem: path.read_text() for path in draw_figures(files.config)} == drawn


def test_without_data_nothing_is_drawn(tmp_path):
    config = CampaignFiles(tmp_path, ranges=2).config
    assert draw_figures(config) == draw_progress(config) == []


def test_progress_shows_every_evaluated_checkpoint_beside_the_floor(tmp_path):
    files = CampaignFiles(tmp_path, ranges=2)
    for index, auc in enumerate([0.61, 0.53]):
        values = {"auc_full": auc, "auc_full_error": 0.01, "floor/auc_full": 0.5, "bins": 12.0}
        files.evaluated(files.name(index), values)
    (path,) = draw_progress(files.config)
    text = path.read_text()
    assert path.name == "progress.svg"
    assert "AUC of events with own multiplicities" in text
    assert "simulated again" in text
    assert "links of the chain trained on, of 3" in text
    assert "bins" not in text


def test_progress_of_too_few_events_for_any_metric_says_so(tmp_path):
    files = CampaignFiles(tmp_path, ranges=2)
    files.evaluated(files.name(0), {"bins": 0.0, "multiplicity_ratio": 1.1})
    (path,) = draw_progress(files.config)
    assert "too few validation events for any metric" in path.read_text()
    assert "links of the chain trained on, of 3" in path.read_text()
