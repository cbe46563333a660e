"""What a plan says of the events that judge a model, before and after the first range is split."""

import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from campaign_files import CampaignFiles
from crpipe.core.errors import DataError
from crpipe.core.files import read_json, write_json
from crpipe.core.paths import DESTINATIONS
from crpipe.report.estimates import count_groups
from crpipe.report.plan import render_plan


def words(files):
    return " ".join(render_plan(files.plan()).split())


def split(files, index, groups, part="validation", train=1000):
    """A range that is split, with one event of each of so many groups in a part, and two in training."""
    name = files.split(index)
    rows = [(group + 1000 * index, part) for group in range(groups)] * 3 + [(1, "train"), (2, "outliers")]
    table = pa.table({"run": [row[0] for row in rows], "destination": [row[1] for row in rows]})
    pq.write_table(table, files.paths.multiplicity(name), row_group_size=7)
    manifest = read_json(files.paths.shard_manifest(name))
    held_out = {"name": f"{part}-0", "role": part, "events": groups, "items": 0, "files": {}}
    manifest["shards"] = [shard for shard in manifest["shards"] if shard["role"] == "train"] + [held_out]
    write_json(files.paths.shard_manifest(name), manifest)
    with files.changed_ledger(name) as ledger:
        ledger["events"] |= dict.fromkeys(DESTINATIONS, 0) | {"train": train, part: groups * 3}


@pytest.fixture
def files(tmp_path):
    files = CampaignFiles(tmp_path, ranges=2, overrides=("split.validation_fraction=0.2",))
    files.laid_out()
    return files


def test_before_the_first_range_is_split_it_says_how_many_are_needed(files):
    assert (
        "held out 0.2 of the groups (split.validation_fraction) an evaluation needs at least 10 groups, "
        "and 20 for all numbers; plan again once a range is split"
    ) in words(files)


def test_nothing_held_out_is_warned_about(tmp_path):
    files = CampaignFiles(tmp_path, ranges=2, overrides=("split.validation_fraction=0",))
    assert "WARNING nothing is held out: an evaluation has no numbers" in words(files)


def test_files_are_named(tmp_path):
    overrides = ("split.validation_fraction=0", "split.validation_files=[3, 5]", "split.test_fraction=0.1")
    files = CampaignFiles(tmp_path, ranges=2, overrides=overrides)
    assert "held out files 3, 5 (split.validation_files), 0.1 of the groups (split.test_fraction)" in words(
        files
    )


def test_a_few_groups_in_some_ranges_are_a_warning_that_may_go_away(files):
    split(files, 0, 12)
    text = words(files)
    assert "WARNING the validation events have 12 groups in 1 of 2 ranges:" in text
    assert "in 1 of 2 ranges: if the others hold no more, too few for AUC of" in text
    assert "W1" not in text.partition("too few for")[2].partition("evaluation needs")[0]
    assert "an evaluation needs at least 10 groups, and 20 for all numbers: hold out more" in text


def test_too_few_groups_are_a_warning_that_names_what_will_be_missing(files):
    split(files, 0, 1)
    split(files, 1, 0)
    text = words(files)
    assert "WARNING the validation events have 1 group: not enough for AUC of bundles, " in text
    assert re.search(r"AUC of multiplicities and \d+ other numbers", text)


def test_enough_groups_are_no_warning(files):
    split(files, 0, 12)
    split(files, 1, 12)
    text = words(files)
    assert "held out 20 groups of validation events or more: enough groups for every number" in text
    assert "WARNING the validation" not in text


def test_the_test_part_judges_where_there_is_one(files):
    split(files, 0, 12)
    split(files, 1, 3, "test")
    names = [files.name(0), files.name(1)]
    assert count_groups(files.campaign, names, 20) == ("test", 3)
    assert count_groups(files.campaign, names[:1], 20) == ("validation", 12)
    assert count_groups(files.campaign, [], 20) == ("validation", 0)


def test_no_event_to_train_on_is_warned_about(files):
    split(files, 0, 30, train=0)
    assert "no event is left to train on" not in words(files)
    split(files, 1, 30, train=0)
    assert "WARNING no event is left to train on: lower split.validation_fraction" in words(files)


def test_a_damaged_table_is_named(files):
    split(files, 0, 3)
    files.paths.multiplicity(files.name(0)).write_bytes(b"PAR1")
    with pytest.raises(DataError, match=r"multiplicity/0000000-0000999.parquet: damaged .*`crpipe check`"):
        words(files)
