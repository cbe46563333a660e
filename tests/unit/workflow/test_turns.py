"""Who waits for whom."""

from pathlib import Path

import pytest

from crpipe.cli.jobs import open_campaign
from crpipe.config.loading import load_config
from crpipe.workflow.turns import staging_turn, trains
from named import READERS

FIRST, SECOND, THIRD = "0000000-0000999", "0001000-0001999", "0002000-0002999"


@pytest.fixture
def campaign(tmp_path):
    def load(*changes):
        places = (f"results={tmp_path}/results", f"runs={tmp_path}/runs")
        reader = f"source.reader={READERS['bundles']}"
        keys = ("ranges.last=2999", "source.look_ahead=1", reader, *places, *changes)
        return open_campaign(load_config((), keys))

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


def test_a_range_waits_until_the_one_before_is_trained_on_or_split_if_nothing_trains(campaign):
    paths = campaign().paths
    assert staging_turn(campaign(), SECOND, training=True) == paths.receipt(FIRST)
    assert staging_turn(campaign(), SECOND, training=False) == paths.ledger(FIRST)


def test_look_ahead_says_how_many_ranges_go_ahead(campaign):
    further = campaign("source.look_ahead=2")
    assert staging_turn(further, SECOND, training=True) is None
    assert staging_turn(further, THIRD, training=True) == further.paths.receipt(FIRST)


@pytest.mark.parametrize("place", ["staged", "ledger"])
def test_what_was_staged_before_waits_for_nothing(campaign, place):
    path = getattr(campaign().paths, place)(SECOND)
    path.parent.mkdir(parents=True)
    path.touch()
    assert staging_turn(campaign(), SECOND, training=True) is None


def test_a_reference_range_does_not_wait_for_a_split_that_needs_its_threshold(campaign):
    chosen = campaign("split.quantile=0.9", f"split.reference_ranges=[{THIRD}]")
    assert staging_turn(chosen, THIRD, training=False) is None
    assert staging_turn(chosen, SECOND, training=False) is not None
