"""Which files and groups of events are held out, and the refusal of a group in two parts."""

import pyarrow.parquet as pq
import pytest

from crpipe.campaign.campaign import Campaign
from crpipe.campaign.raw_files import RawFile
from crpipe.config.loading import load_config
from crpipe.core.errors import ConfigError
from crpipe.core.paths import ROLES
from crpipe.split.parts import TEST, VALIDATION, Parts, refuse_unfit_ranges
from raw_files import (
    NAME,
    campaign,
    events_in,
    ledger_of,
    make_events,
    nested,
    raw_folder,
    split,
    write_parquet,
    write_staged,
)

NAMES = ["d/f1.x", "d/f10.x", "d/f2.x", "e/f1.x"]  # in the order of the staged table
NATURAL = ["d/f1.x", "d/f2.x", "d/f10.x", "e/f1.x"]  # numbers 1000 to 1003


def chosen(validation=(), test=(), name="0001000-0001999"):
    files = [RawFile(n, path, "", 1, "staged", "", "", "", "") for n, path in enumerate(NAMES)]
    found = Parts(validation_files=validation, test_files=test).of_files(files, name)
    return {NAMES[number]: part for number, part in found.items()}


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ((1001,), ["d/f2.x"]),
        (("1002",), ["d/f10.x"]),
        (("0001001-0001002",), ["d/f2.x", "d/f10.x"]),
        (("f1.x",), ["d/f1.x", "e/f1.x"]),
        (("d/f1*",), ["d/f1.x", "d/f10.x"]),
        (("e/*", 1000), ["d/f1.x", "e/f1.x"]),
        (("*.y",), []),
        ((7, "0000000-0000999"), []),
    ],
)
def test_files_are_named_by_pattern_number_or_interval(entries, expected):
    assert chosen(entries) == dict.fromkeys(expected, VALIDATION)
    assert chosen(test=entries) == dict.fromkeys(expected, TEST)


def test_files_beyond_the_numbers_of_a_range_have_none():
    assert chosen(("0001000-0001999",), name="0001000-0001001").keys() == {*NATURAL[:2]}


def test_a_file_in_two_parts_is_refused():
    with pytest.raises(ConfigError, match=r"both name d/f2\.x of 0001000-0001999; name it in one"):
        chosen((1001,), ("d/f2*",))


@pytest.mark.parametrize("name", ["validation", "test"])
def test_numbers_outside_of_the_campaign_are_refused(name):
    keys = (f"split.{name}_fraction=0", "ranges.last=999")
    load_config((), (*keys, f"split.{name}_files=[999, '0000000-0000999', x*]"))
    for wrong in ("1000", "'0000900-0001000'"):
        with pytest.raises(ConfigError, match=rf"split\.{name}_files: .* outside of the campaign's file"):
            load_config((), (*keys, f"split.{name}_files=[{wrong}]"))


BY_FILES = ("split.validation_fraction=0", "split.validation_files=[1]", "split.test_files=['2.parquet']")


def files(config, name=NAME, count=4, seed=0):
    for number in range(count):
        write_parquet(raw_folder(config, name) / f"{number}.parquet", [3, 2, 1, 30] * 5, seed=seed + number)
    write_staged(config, name)


def numbers(config, role, name=NAME):
    found = events_in(config, role, name=name)
    return {int(file) for events in found for file in events.columns["source_file"]}


def test_parts_by_files(tmp_path):
    config = campaign(tmp_path, *BY_FILES)
    files(config)
    split(config)
    found = {role: numbers(config, role) for role in ("train", "validation", "test")}
    assert found == {"train": {0, 3}, "validation": {1}, "test": {2}}
    ledger = ledger_of(config)
    sent = {"train": 30, "validation": 15, "test": 15, "outliers": 10}
    sent |= {"validation_outliers": 5, "test_outliers": 5}
    assert ledger["events"] == {"listed": 80, **sent, "rejected": 0}
    table = pq.read_table(config.paths().multiplicity(NAME))
    assert {*table["destination"].to_pylist()} == {*sent}


def test_the_other_part_may_be_a_share_of_the_groups(tmp_path):
    config = campaign(
        tmp_path, "split.validation_fraction=0", "split.validation_files=[1]", "split.test_fraction=0.5"
    )
    files(config)
    split(config)
    assert numbers(config, "validation") == {1}
    assert numbers(config, "test") == numbers(config, "train") == {0, 2, 3}


def test_a_group_in_two_parts_of_a_range_is_refused(tmp_path):
    config = campaign(tmp_path, *BY_FILES)
    for number, seed in enumerate((0, 1, 2, 1)):  # 1 and 3 hold the same groups
        write_parquet(raw_folder(config) / f"{number}.parquet", [3, 2], seed=seed)
    write_staged(config)
    with pytest.raises(ConfigError) as error:
        split(config)
    text = str(error.value)
    assert "primary_major_id 8, primary_minor_id 0 occurs in" in text
    assert "1.parquet of 0000000-0000999 (validation)" in text
    assert "3.parquet of 0000000-0000999 (train)" in text
    assert not config.paths().ledger(NAME).exists()


def test_a_group_in_parts_of_two_ranges_is_refused_before_training(tmp_path):
    second = "0001000-0001999"
    config = campaign(tmp_path, *BY_FILES, "ranges.last=1999")
    files(config)
    files(config, second, count=1, seed=1)  # training events whose groups are those of validation
    for name in (NAME, second):
        split(config, name)
    whole = Campaign.open(config)
    refuse_unfit_ranges(whole, [NAME])
    found = r"\(validation\w*\) and in .* of 0001000-0001999 \((train|outliers)\)"
    with pytest.raises(ConfigError, match=found):
        refuse_unfit_ranges(whole, [NAME, second])


def test_an_outlier_belongs_to_the_part_of_its_file(tmp_path):
    config = campaign(tmp_path, *BY_FILES)
    for number, seed in enumerate((0, 1, 2)):
        write_parquet(raw_folder(config) / f"{number}.parquet", [30, 30, 1, 30], seed=seed)
    write_staged(config)
    split(config)
    ledger = ledger_of(config)
    assert [ledger["events"][role] for role in ROLES] == [1, 1, 1, 3, 3, 3]


@pytest.mark.parametrize("size", [1, 30])
def test_a_group_whose_outliers_are_in_another_part_is_refused(tmp_path, size):
    """A held-out group is held out whole: also where only its large events are in a training file."""
    config = campaign(tmp_path, *BY_FILES)
    for number, multiplicity in enumerate(([size] * 3, [30] * 3)):
        events = make_events(multiplicity, seed=0)
        pq.write_table(nested(*events), raw_folder(config) / f"{number}.parquet")
    write_staged(config)
    with pytest.raises(ConfigError, match=r"1\.parquet of .* \(validation_outliers\) and in 0\.parquet"):
        split(config)
