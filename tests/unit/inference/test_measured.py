"""Numbers, errors and tables of what ``score`` returns."""

import numpy as np
import pytest

from crpipe.core.errors import PluginError
from crpipe.inference.measured import measure
from crpipe.statistics.groups import mean
from crpipe.statistics.ratios import Bins, Side

GROUP = np.repeat(np.arange(50), 4)
VALUES = np.random.default_rng(1).normal(2.0, 1.0, 200)


def test_numbers_statistics_and_tables_side_by_side():
    sides = [
        Side(np.random.default_rng(seed).poisson([9.0, 0.0], (50, 2)) * 1.0, np.ones((50, 2)))
        for seed in (1, 2)
    ]
    found = measure({"plain": 3, "mean": mean(VALUES), "table": Bins(("full", "empty"), *sides)}, GROUP, "it")
    assert found.numbers["plain"] == 3.0
    assert "plain_error" not in found.numbers
    assert found.numbers["mean"] == pytest.approx(VALUES.mean())
    assert 0 < found.numbers["mean_error"] < 0.2
    (row,) = found.tables["table"]  # where nothing is on both sides there is no row
    assert (row.bin, row.kind, row.value) == ("full", "ratio", found.numbers["table"])
    assert row.error == found.numbers["table_error"] > 0
    assert 0 < row.p <= 1


def test_values_that_are_no_numbers_are_left_out_and_others_refused():
    found = measure({"nan": np.nan, "never": lambda _: float("nan")}, GROUP, "it")
    assert found.numbers == {}
    with pytest.raises(PluginError, match=r"it: odd: expected a number, a statistic, Bins or .*, found dict"):
        measure({"odd": {}}, GROUP, "it")


def test_differences_on_the_same_events_have_the_error_of_the_difference():
    one, other = (measure({"mean": mean(VALUES + each), "plain": each}, GROUP, "it") for each in (0.5, 0.0))
    paired, apart = (one.less(other, 50, paired=each) for each in (True, False))
    assert paired["mean"] == apart["mean"] == pytest.approx(0.5)
    assert paired["mean_error"] == pytest.approx(0.0, abs=1e-9)
    assert apart["mean_error"] == pytest.approx(np.sqrt(2) * one.numbers["mean_error"])
    assert paired["plain"] == 0.5
    assert "plain_error" not in paired
