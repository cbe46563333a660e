"""Who waits for whom."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crpipe.campaign.campaign import Campaign
from crpipe.config.loading import load_config
from crpipe.core.paths import CONSOLIDATED
from crpipe.workflow.rules import (
    parent_of,
    priority,
    reference_ranges,
    shards_of,
    staging_prerequisites,
    training_priority,
    trains,
)
from named import READERS

FIRST, SECOND, THIRD = "0000000-0000999", "0001000-0001999", "0002000-0002999"


@pytest.fixture
def campaign(tmp_path):
    def load(*changes):
        places = (f"results={tmp_path}/results", f"runs={tmp_path}/runs")
        reader = f"source.reader={READERS['bundles']}"
        keys = ("ranges.last=2999", "source.look_ahead=1", reader, *places, *changes)
        return Campaign.open(load_config((), keys))

    return load


@pytest.mark.parametrize(
    ("targets", "expected"),
    [
        ({"all"}, True),
        ({"train_all", "outliers_consolidated"}, True),
        ({"runs/x/ranges/outliers.json"}, True),
        ({"outliers_consolidated"}, False),
        ({"results/ledgers/0000000-0000999.json"}, False),
        ({"runs-of-others/x"}, False),
    ],
)
def test_training_is_asked_for_by_rule_or_by_file(targets, expected):
    assert trains(targets, Path("runs")) is expected


def test_a_range_waits_for_the_split_of_the_one_before_and_goes_one_beyond_the_link_in_training(campaign):
    paths = campaign().paths
    assert staging_prerequisites(campaign(), SECOND, training=False) == [paths.ledger(FIRST)]
    assert staging_prerequisites(campaign(), SECOND, training=True) == [paths.ledger(FIRST)]
    assert staging_prerequisites(campaign(), THIRD, training=False) == [paths.ledger(SECOND)]
    assert staging_prerequisites(campaign(), THIRD, training=True) == [
        paths.ledger(SECOND),
        paths.receipt(FIRST),
    ]


def test_look_ahead_says_how_many_ranges_go_ahead(campaign):
    further = campaign("source.look_ahead=2")
    assert staging_prerequisites(further, SECOND, training=True) == []
    assert staging_prerequisites(further, THIRD, training=True) == [further.paths.ledger(FIRST)]


def test_the_ranges_of_one_link_wait_for_no_training_of_theirs(campaign):
    together = campaign("train.ranges_per_link=0", "train.rounds=2", "train.decay_to=1")
    paths = together.paths
    assert staging_prerequisites(together, THIRD, training=True) == [paths.ledger(SECOND)]


@pytest.mark.parametrize("place", ["staged", "ledger"])
def test_what_was_staged_before_waits_for_nothing(campaign, place):
    path = getattr(campaign().paths, place)(SECOND)
    path.parent.mkdir(parents=True)
    path.touch()
    assert staging_prerequisites(campaign(), SECOND, training=True) == []


def test_a_reference_range_does_not_wait_for_a_split_that_needs_its_threshold(campaign):
    chosen = campaign("split.quantile=0.9", f"split.reference_ranges=[{THIRD}]")
    assert staging_prerequisites(chosen, THIRD, training=False) == []
    assert staging_prerequisites(chosen, SECOND, training=False) == [chosen.paths.ledger(FIRST)]


@st.composite
def campaigns(draw):
    """A campaign of random shape, nothing of which exists yet."""
    count = draw(st.integers(1, 9))
    names = [f"{number * 1000:07d}-{number * 1000 + 999:07d}" for number in range(count)]
    skipped = draw(st.lists(st.sampled_from(names), max_size=count - 1, unique=True))
    keys = [
        f"ranges.last={count * 1000 - 1}",
        f"ranges.skip=[{','.join(skipped)}]",
        f"train.ranges_per_link={draw(st.integers(0, 5))}",
        f"train.rounds={draw(st.integers(1, 3))}",
        f"source.look_ahead={draw(st.integers(1, 4))}",
        f"source.reader={READERS['bundles']}",
        "results=/nowhere/results",
        "runs=/nowhere/runs",
    ]
    if draw(st.booleans()):
        kept = [name for name in names if name not in skipped]
        chosen = draw(st.lists(st.sampled_from(kept), max_size=1))
        keys += ["split.quantile=0.9", f"split.reference_ranges=[{','.join(chosen)}]"]
    return Campaign.open(load_config((), keys))


def jobs_of(campaign, *, training):
    """Return the files that each job waits for, by the file that it makes; the rules' own inputs included."""
    paths, reference = campaign.paths, reference_ranges(campaign)
    jobs = {
        paths.staged(each): staging_prerequisites(campaign, each, training=training)
        for each in campaign.ranges
    }
    if reference:
        jobs[paths.threshold()] = [paths.staged(each) for each in reference]
    for each in campaign.ranges:
        jobs[paths.shard_manifest(each)] = [paths.staged(each), *([paths.threshold()] if reference else [])]
        jobs[paths.ledger(each)] = [paths.shard_manifest(each)]
        jobs[paths.outlier_manifest(each)] = [paths.ledger(each)]
    jobs[paths.outlier_manifest(CONSOLIDATED)] = [paths.outlier_manifest(each) for each in campaign.ranges]
    for link in campaign.chain.links if training else ():
        jobs[paths.receipt(link.name)] = [*shards_of(campaign, link.name), *parent_of(campaign, link.name)]
    return jobs


@settings(max_examples=150, deadline=None)
@given(campaigns(), st.booleans(), st.randoms(use_true_random=False))
def test_nothing_ever_waits_for_itself_and_staging_keeps_to_its_look_ahead(campaign, training, random):
    """Jobs end in any order that their inputs allow; all of them do in the end."""
    paths, chain = campaign.paths, campaign.chain
    ahead = campaign.config.source.look_ahead
    free = set(reference_ranges(campaign))  # these go before all others
    places = {name: place for place, name in enumerate(campaign.ranges)}
    left, done = jobs_of(campaign, training=training), set()
    while left:
        ready = [made for made, needs in left.items() if done.issuperset(needs)]
        assert ready, f"these wait for each other: {sorted(map(str, left))}"
        made = random.choice(ready)
        done.add(made)
        del left[made]
        copied = [each for each in campaign.ranges if paths.staged(each) in done and each not in free]
        assert sum(paths.ledger(each) not in done for each in copied) <= ahead
        waiting = [link for link in chain.links if link.ranges and paths.receipt(link.name) not in done]
        if training and waiting and waiting[0].round == 1:
            last = places[waiting[0].ranges[-1]]
            assert all(places[each] <= last + ahead for each in copied)


def test_lower_ranges_are_ranked_first_and_training_above_all_of_them_together():
    ranges = (FIRST, SECOND, THIRD)
    ranks = [priority(ranges, name) for name in ranges]
    assert ranks == [3, 2, 1]
    assert priority(ranges, "0009000-0009999") == 0
    assert training_priority(ranges) > 3 * sum(ranks)
