"""What a link trains on and continues from."""

from dataclasses import replace

import pytest

from crpipe.campaign.campaign import Campaign
from crpipe.config.loading import load_config
from crpipe.core.errors import ConfigError
from crpipe.workflow.rules import parent_of, reference_ranges, shards_of
from named import READERS

NAMES = ["0000000-0000999", "0001000-0001999", "0002000-0002999"]


def settings(*changes):
    keys = ("ranges.last=2999", f"source.reader={READERS['bundles']}", *changes)
    return Campaign.open(load_config((), keys))


def test_the_chain_is_the_ranges_in_order_and_then_the_outliers():
    campaign = settings()
    assert list(campaign.ranges) == NAMES
    assert list(campaign.chain.names) == [*NAMES, "outliers"]
    assert shards_of(campaign, NAMES[1]) == [campaign.paths.shard_manifest(NAMES[1])]
    assert parent_of(campaign, NAMES[1]) == [campaign.paths.receipt(NAMES[0])]
    assert parent_of(campaign, NAMES[0]) == []
    assert shards_of(campaign, "outliers") == [campaign.paths.outlier_manifest("consolidated")]
    assert parent_of(campaign, "outliers") == [campaign.paths.receipt(NAMES[2])]


def test_a_link_trains_on_its_ranges_and_a_round_continues_from_the_one_before():
    campaign = settings("train.ranges_per_link=2", "train.rounds=2")
    paths = campaign.paths
    first, second = "0000000-0001999", "0002000-0002999"
    assert list(campaign.chain.names) == [first, second, f"{first}.2", f"{second}.2", "outliers"]
    assert shards_of(campaign, f"{first}.2") == [paths.shard_manifest(name) for name in NAMES[:2]]
    assert parent_of(campaign, f"{first}.2") == [paths.receipt(second)]


def test_another_name_is_refused_and_some_links_are_named():
    with pytest.raises(
        ConfigError, match=r"0009000-0009999: not a link of this campaign \(0000000-0000999, "
    ):
        shards_of(settings(), "0009000-0009999")


def test_events_of_one_size_have_no_outliers_and_the_chain_ends_with_the_last_range():
    campaign = settings()
    fixed = replace(campaign.layout, fixed=8)
    chain = campaign.config.chain(has_outliers=fixed.has_outliers())
    assert list(chain.names) == NAMES


def test_a_skipped_range_is_no_link():
    assert list(settings("ranges.skip=[0001000-0001999]").ranges) == [NAMES[0], NAMES[2]]


def test_reference_ranges_are_needed_for_a_quantile_only():
    assert reference_ranges(settings("split.reference_ranges=[0001000-0001999]")) == []
    assert reference_ranges(settings("split.quantile=0.9")) == NAMES[:1]
    chosen = settings("split.quantile=0.9", "split.reference_ranges=[0001000-0001999]")
    assert reference_ranges(chosen) == [NAMES[1]]


def test_side_tables_are_those_of_the_configuration():
    assert not settings().has_tables
    assert settings("source.tables={geometry: geometry.csv}").has_tables
