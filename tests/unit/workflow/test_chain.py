"""Which steps a campaign has."""

from types import SimpleNamespace

import pytest

from crpipe.config.loading import load_config
from crpipe.workflow import chain
from crpipe.workflow.chain import before, has_outliers, links, ranges, reference_ranges, side_tables

NAMES = ["0000000-0000999", "0001000-0001999", "0002000-0002999"]


def settings(*changes):
    return load_config((), ("ranges.last=2999", *changes))


def test_the_chain_is_the_ranges_in_order_and_then_the_outliers():
    assert ranges(settings()) == NAMES
    assert has_outliers(settings())
    assert links(settings()) == [*NAMES, "outliers"]


def test_without_outliers_the_chain_ends_with_the_last_range(monkeypatch):
    monkeypatch.setattr(chain, "has_outliers", lambda _: False)
    assert links(settings()) == NAMES


def test_a_skipped_range_is_no_link():
    assert ranges(settings("ranges.skip=[0001000-0001999]")) == [NAMES[0], NAMES[2]]


@pytest.mark.parametrize(
    ("name", "steps", "expected"),
    [(NAMES[0], 1, None), (NAMES[2], 1, NAMES[1]), (NAMES[2], 2, NAMES[0]), (NAMES[2], 3, None)],
)
def test_what_comes_before_a_range(name, steps, expected):
    assert before(NAMES, name, steps) == expected


def test_reference_ranges_are_needed_for_a_quantile_only():
    assert reference_ranges(settings("split.reference_ranges=[0001000-0001999]")) == []
    assert reference_ranges(settings("split.quantile=0.9")) == NAMES[:1]
    chosen = settings("split.quantile=0.9", "split.reference_ranges=[0001000-0001999]")
    assert reference_ranges(chosen) == [NAMES[1]]


@pytest.mark.parametrize(("tables", "expected"), [({}, False), ({"geometry": "geometry.csv"}, True)])
def test_side_tables_are_those_of_the_configuration(tables, expected):
    assert side_tables(SimpleNamespace(source=SimpleNamespace(tables=tables))) is expected


def test_a_campaign_without_a_word_of_tables_has_none():
    assert not side_tables(SimpleNamespace(source=SimpleNamespace()))
