import pytest

from crpipe.report.series import MultiplicityCounts, Series
from crpipe.report.status.page_charts import histogram_chart, line_chart, nice_ticks


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
