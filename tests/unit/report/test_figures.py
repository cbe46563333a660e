import xml.etree.ElementTree as ET

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure

from campaign_files import CampaignFiles
from crpipe.report.figure_style import new_figure
from crpipe.report.figures import (
    RateCurve,
    RatePlan,
    _focus,
    _mark_ranges,
    plot_figures,
    plot_progress,
    plot_rates,
)
from crpipe.report.series import Series


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    made = CampaignFiles(tmp_path_factory.mktemp("campaign"), ranges=2)
    made.claim()
    made.trained(made.split(0))
    return made


@pytest.fixture(scope="module")
def plotted(files):
    return {path.stem: path.read_text() for path in plot_figures(files.campaign)}


def test_every_figure_names_run_and_checkpoint_and_has_its_numbers(files, plotted):
    for name, text in plotted.items():
        assert f"run default, {files.name(0)}, step 400; 36,000 events, 360,000 hits trained" in text
        rows = (files.paths.figures() / f"{name}.csv").read_text().splitlines()
        assert rows[0].startswith("panel,curve,")
        assert len(rows) > 20


@pytest.mark.parametrize(("largest", "scale"), [(2.0, "linear"), (500.0, "asinh")])
def test_an_axis_is_logarithmic_beyond_the_typical_value_where_losses_differ_much(largest, scale):
    axis = new_figure(2.0).subplots()
    _focus(axis, [Series("a", tuple(range(100)), (1.0,) * 90 + (largest,) * 10)], from_zero=True)
    assert axis.get_yscale() == scale


@pytest.mark.parametrize("sign", [(1, 1), (-1, -1), (1, -1)])
@settings(deadline=None, max_examples=50)
@given(typical=st.floats(1e-6, 1e9), ratio=st.floats(25, 1e6))
def test_marks_of_such_an_axis_are_apart_and_on_the_side_of_the_values(sign, typical, ratio):
    """The page is small: marks that lie over each other cannot be read."""
    axis = Figure().subplots()
    values = (typical * sign[0],) * 90 + (typical * ratio * sign[1],) * 10
    _focus(axis, [Series("a", tuple(range(100)), values)], from_zero=False)
    bottom, top = axis.get_ylim()
    assert (bottom < 0) == (-1 in sign)
    assert (top > 0) == (1 in sign)
    height = np.arcsinh(np.array([*axis.get_yticks(), bottom, top]) / typical)
    assert len(height) >= 4
    assert np.diff(height[:-2]).min() >= 0.08 * (height[-1] - height[-2])


def test_the_link_on_the_outliers_is_marked():
    """Its loss jumps, and would look like a divergence."""
    axis = new_figure(2.0).subplots()
    rows = [{"step": step, "range": "outliers" if step > 80 else "0000000-0000999"} for step in range(100)]
    _mark_ranges(axis, rows)
    assert [text.get_text() for text in axis.texts] == ["outliers"]
    assert axis.texts[0].get_position()[0] == 99
    axis = new_figure(2.0).subplots()
    _mark_ranges(axis, rows[:80])
    assert not axis.texts


def test_every_figure_is_labelled_with_units(plotted):
    assert set(plotted) == {"multiplicity", "losses", "throughput", "gradients"}
    for text in plotted.values():
        ET.fromstring(text)
    assert "multiplicity (hits in one event)" in plotted["multiplicity"]
    assert "threshold 50,000" in plotted["multiplicity"]
    assert "critic: wasserstein" in plotted["losses"]
    assert "hits / s" in plotted["throughput"]
    assert "events / s" in plotted["throughput"]
    assert "gradient norm" in plotted["gradients"]


@pytest.mark.slow
def test_the_same_campaign_gives_the_same_bytes(files, plotted):
    assert {path.stem: path.read_text() for path in plot_figures(files.campaign)} == plotted


def test_without_data_nothing_is_plotted(tmp_path):
    campaign = CampaignFiles(tmp_path, ranges=2).campaign
    assert plot_figures(campaign) == plot_progress(campaign) == []


def test_progress_shows_every_evaluated_checkpoint_beside_what_it_is_compared_with(tmp_path):
    files = CampaignFiles(tmp_path, ranges=2)
    for index, auc in enumerate([0.61, 0.53]):
        values = {"auc_event": auc, "auc_event_error": 0.01, "bins": 12.0}
        files.evaluated(files.name(index), values, again={"auc_event": 0.5}, baseline={"auc_event": 0.9})
    (path,) = plot_progress(files.campaign)
    text = path.read_text()
    assert path.name == "progress.svg"
    assert "AUC of events" in text
    assert "best near 0.5" in text
    assert all(text.count(f">{name}<") == 1 for name in ("model", "simulated again", "baseline"))
    assert "W1 of the time" not in text
    assert "links of the chain trained on, of 3 (the last: outliers)" in text
    assert "bins" not in text


def test_progress_of_too_few_events_for_any_metric_says_so(tmp_path):
    files = CampaignFiles(tmp_path, ranges=2)
    files.evaluated(files.name(0), {"bins": 0.0})
    (path,) = plot_progress(files.campaign)
    assert "too few held-out events for any metric" in path.read_text()
    assert "links of the chain trained on, of 3" in path.read_text()


def test_a_workload_that_declares_nothing_has_all_its_numbers_in_the_progress_figure(tmp_path):
    files = CampaignFiles(tmp_path, ranges=2)
    files.laid_out(fixed=3)
    files.evaluated(files.name(0), {"angle": 1.5, "angle_error": 0.1, "loss": 0.2}, ())
    (path,) = plot_progress(files.campaign)
    text = path.read_text()
    assert ">angle<" in text
    assert ">loss<" in text
    assert "angle_error" not in text
    assert "links of the chain trained on, of 2<" in text


def test_events_of_one_size_are_plotted_without_a_threshold(tmp_path):
    files = CampaignFiles(tmp_path, ranges=1)
    files.laid_out(fixed=3)
    files.split(0)
    (path,) = plot_figures(files.campaign)
    assert "threshold" not in path.read_text()
    assert "after: outliers" not in path.read_text()


def level(step, _):
    return min(1.0, (step + 1) / 100)


def falling(_, progress):
    return 1.0 - min(1.0, progress)


CURVES = (RateCurve("head", "constant", level, 1e-3, True), RateCurve("body", "cosine", falling, 1e-4, False))


@pytest.mark.parametrize("range_steps", [None, 250.0])
def test_each_phase_has_a_panel(tmp_path, range_steps):
    plan = RatePlan(CURVES, 0, 20, 20, (10,), range_steps)
    text = plot_rates(plan, tmp_path / "rates.svg").read_text()
    ET.fromstring(text)
    assert "head: constant, 0.001 at most" in text
    assert "body: cosine, 0.0001 at most" in text
    assert ("steps, about 250 in a range" in text) == (range_steps is not None)
    assert "round 2" in text
    assert ("without the warm-up" in text) == (range_steps is None)


def test_without_a_warm_up_nothing_is_said_about_it(tmp_path):
    plan = RatePlan(CURVES[1:], 5, 20, 15, (), None)
    text = plot_rates(plan, tmp_path / "rates.svg").read_text()
    assert "warm-up" not in text
    assert "train.schedule.horizon_ranges" in text
