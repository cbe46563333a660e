"""Which steps a campaign has."""

from dataclasses import replace

import pytest

from crpipe.cli.jobs import open_campaign
from crpipe.config.loading import load_config
from crpipe.workflow.chain import before, has_outliers, links, reference_ranges
from named import READERS

NAMES = ["0000000-0000999", "0001000-0001999", "0002000-0002999"]


def settings(*changes):
    keys = ("ranges.last=2999", f"source.reader={READERS['bundles']}", *changes)
    return open_campaign(load_config((), keys))


def test_the_chain_is_the_ranges_in_order_and_then_the_outliers():
    assert list(settings().ranges) == NAMES
    assert has_outliers(settings())
    assert links(settings()) == [*NAMES, "outliers"]


def test_events_of_one_size_have_no_outliers_and_the_chain_ends_with_the_last_range():
    campaign = settings()
    fixed = replace(campaign, layout=replace(campaign.layout, fixed=8))
    assert not has_outliers(fixed)
    assert links(fixed) == NAMES


def test_a_skipped_range_is_no_link():
    assert list(settings("ranges.skip=[0001000-0001999]").ranges) == [NAMES[0], NAMES[2]]


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


def test_side_tables_are_those_of_the_configuration():
    assert not settings().has_tables
    assert settings("source.tables={geometry: geometry.csv}").has_tables
