import pytest

from crpipe.report.series import MultiplicityCounts, Series
from crpipe.report.status.page_drawing import histogram_chart, line_chart, nice_ticks


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [(0, 10, [0, 2, 4, 6, 8, 10]), (-2.6, 3.7, [-2, 0, 2]), (0, 0.003, [0, 0.001, 0.002, 0.003])],
)
def test_ticks_are_round(low, high, ticks):
    assert nice_ticks(low, high) == pytest.approx(ticks)


def test_a_constant_curve_can_be_drawn():
    series = [Series("a", (5,), (0.0,))]
    assert line_chart(series, series, "step", "loss").count("<polyline") == 2


def test_bins_are_coloured_by_the_threshold_and_empty_ones_left_out():
    chart = histogram_chart(
        MultiplicityCounts((0, 1, 10, 100, 1000), (4, 3, 0, 1)), 50, "multiplicity", "events"
    )
    assert chart.count('class="bin c0"') == 2
    assert chart.count('class="bin c1"') == 1
    assert "0 to 1 muons: 4 events" in chart
