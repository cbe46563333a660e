from itertools import pairwise

import pytest

from crpipe.report.page.charts import bent_ticks, histogram_chart, line_chart, nice_ticks
from crpipe.report.series import MultiplicityCounts, Series


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [(0, 10, [0, 2, 4, 6, 8, 10]), (-2.6, 3.7, [-2, 0, 2]), (0, 0.003, [0, 0.001, 0.002, 0.003])],
)
def test_ticks_are_round(low, high, ticks):
    assert nice_ticks(low, high) == pytest.approx(ticks)


def test_a_constant_curve_can_be_drawn():
    series = [Series("a", (5,), (0.0,))]
    assert [curve.bold for curve in line_chart(series, series, "step", "loss").curves] == [False, True]


def test_bins_are_coloured_by_the_threshold_and_empty_ones_left_out():
    counts = MultiplicityCounts((0, 1, 10, 100, 1000), (4, 3, 0, 1))
    chart = histogram_chart(counts, 50, "hits")
    assert [bar.colour for bar in chart.bars] == [0, 0, 1]
    assert chart.bars[0].text == "0 to 1 hits: 4 events"
    assert chart.x_label == "multiplicity (hits in one event)"


def test_without_a_threshold_there_is_one_colour_and_no_line():
    chart = histogram_chart(MultiplicityCounts((1, 10, 100), (0, 7)), None, "hits")
    assert chart.threshold is None
    assert [bar.colour for bar in chart.bars] == [0]


def test_curves_of_very_different_size_share_an_axis_that_shows_both():
    """The last link has losses a thousand times as large: the first one must not become a flat line."""
    small = Series("a", tuple(range(100)), tuple(1.0 + 0.5 * (step % 2) for step in range(100)))
    large = Series("b", tuple(range(90, 100)), (1000.0,) * 10)
    chart = line_chart((), [small, large], "step", "loss")
    heights = [y for _, y in chart.curves[0].points]
    assert max(heights) - min(heights) > 5  # on a linear axis 0.1
    assert min(y for _, y in chart.curves[1].points) > 0
    alone = line_chart((), [small], "step", "loss")
    assert "0.5" in [tick.text for tick in alone.ticks]
    assert "0.5" not in [tick.text for tick in chart.ticks]


def test_labels_of_a_bent_axis_are_powers_of_ten_that_do_not_touch():
    assert sorted(bent_ticks(-20, 1500, 1.0)) == [-10, -1, 0, 1, 10, 100, 1000]
    series = Series("a", (0, 1, 2, 3, 4), (0.001, -0.001, 0.002, 0.001, 5000.0))
    heights = sorted(tick.y for tick in line_chart((), [series], "step", "loss").ticks if tick.rule)
    assert min(after - before for before, after in pairwise(heights)) >= 15
