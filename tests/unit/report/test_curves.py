import xml.etree.ElementTree as ET

import pytest

from campaign_files import CampaignFiles
from crpipe.report.curves import draw_figures


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
    assert draw_figures(CampaignFiles(tmp_path, ranges=2).config) == []
