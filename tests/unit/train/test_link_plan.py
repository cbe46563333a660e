"""What a link trains on follows from its campaign and its place in the chain."""

from crpipe.campaign.campaign import Campaign
from crpipe.core.paths import CONSOLIDATED, OUTLIERS
from crpipe.loading.loader import RangeShards
from crpipe.train.link_plan import LinkPlan
from toy import RANGES, toy_config


def test_the_links_of_a_chain_follow_each_other(tmp_path):
    campaign = Campaign.open(toy_config(tmp_path))
    plans = [LinkPlan.of(campaign, link) for link in campaign.chain.links]
    assert [plan.link.name for plan in plans] == [*RANGES, OUTLIERS]
    assert [plan.progress for plan in plans] == [(0, 1 / 3), (1 / 3, 2 / 3), (2 / 3, 1), (1, 1)]
    assert [plan.max_items is None for plan in plans] == [True, True, True, False]
    assert [plan.role for plan in plans] == ["train", "train", "train", OUTLIERS]
    folders = [*map(campaign.paths.shards, RANGES), campaign.paths.outliers(CONSOLIDATED)]
    assert [plan.shards for plan in plans] == [(folder,) for folder in folders]
    assert len({plan.seed for plan in plans}) == 4
    assert {plan.validation for plan in plans} == {(RangeShards.of(campaign.paths, RANGES[0]),)}
