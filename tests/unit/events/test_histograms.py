"""Histograms count every value once, add up, and are checked against the layout."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crpipe.core.errors import ConfigError, ShardError
from crpipe.events.histograms import (
    Histogram,
    add_up,
    check_binnings,
    check_wanted,
    count_columns,
    no_counts,
    read_histograms,
)
from crpipe.workloads.muons.layout import BUNDLES
from toy import make_events, write_shards

values = st.lists(st.floats(-3, 6, width=32), max_size=40).map(lambda found: np.array(found, np.float32))


def numbers(histogram):
    return histogram.counts.tolist(), histogram.under, histogram.over


@given(values, st.integers(1, 12))
def test_every_value_is_counted_once_and_in_its_bin(found, bins):
    histogram = Histogram.of(found, (0.0, 2.0, bins))
    assert histogram.events == len(found)
    assert histogram.under == sum(found < 0)
    assert histogram.over == sum(found > 2)
    expected, edges = np.histogram(found[(found >= 0) & (found <= 2)].astype(float), histogram.edges)
    assert np.array_equal(histogram.counts, expected)
    assert histogram.counts.dtype == np.int64
    assert (edges[0], edges[-1], len(edges)) == (0, 2, bins + 1)


def test_ends_belong_to_the_first_and_the_last_bin():
    assert numbers(Histogram.of(np.array([0, 1, 2, 2]), (0.0, 2.0, 2))) == ([1, 3], 0, 0)
    assert numbers(Histogram.of(np.array([True, False, True]), (0.0, 1.0, 2))) == ([1, 2], 0, 0)


@given(st.lists(values, min_size=1, max_size=5))
def test_histograms_of_parts_add_up_to_that_of_the_whole(parts):
    binnings = {"x": (-1.0, 4.0, 7)}
    whole = count_columns({"x": np.concatenate(parts), "y": np.zeros(1)}, binnings)
    summed = add_up([no_counts(binnings), *(count_columns({"x": part}, binnings) for part in parts)])
    assert [*summed] == [*whole] == ["x"]
    assert numbers(summed["x"]) == numbers(whole["x"])


def test_those_of_several_folders_are_read_from_their_manifests(tmp_path):
    parts = [Histogram(0.0, 2.0, np.array([1, 2**40]), 3, 4), Histogram(0.0, 2.0, np.array([5, 6]), 7, 8)]
    for number, part in enumerate(parts):
        write_shards(tmp_path / str(number), [("train-0", "train", make_events(3, 1))], "d")
        path = tmp_path / str(number) / "manifest.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "histograms": {"x": part.describe()}}))
    found = read_histograms([tmp_path / "0", tmp_path / "1"])["x"]
    assert numbers(found) == ([6, 2**40 + 6], 10, 12)
    assert (found.low, found.high) == (0, 2)
    path.write_text(path.read_text().replace("under", "beneath"))
    with pytest.raises(ShardError, match=r"1/manifest.json: histograms: no key 'under'; type what"):
        read_histograms([tmp_path / "1"])


def test_a_column_that_is_not_there_is_named_with_the_nearest():
    check_binnings(BUNDLES, {"energy_gev": (0.0, 1.0, 2)})
    with pytest.raises(
        ConfigError, match=r"split.histograms.energy: no event column .*did you mean energy_gev"
    ):
        check_binnings(BUNDLES, {"energy": (0.0, 1.0, 2)})


def test_what_a_workload_wants_and_nobody_counts_is_refused_with_what_to_write():
    check_wanted("lab:Net", ("energy_gev",), {"energy_gev": 1}, BUNDLES)
    with pytest.raises(
        ConfigError, match=r"lab:Net wants .* zenith_rad, .*\n  split: {histograms: {zenith_rad: \["
    ):
        check_wanted("lab:Net", ("energy_gev", "zenith_rad"), {"energy_gev": 1}, BUNDLES)
    with pytest.raises(ConfigError, match="a histogram of charge, which is no event column"):
        check_wanted("lab:Net", ("charge",), (), BUNDLES)
