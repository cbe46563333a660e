"""Which failures of a workflow are a range's own, so that `ranges.on_failure: skip` leaves the range out."""

import json
from pathlib import Path

import pytest

from campaign_files import CampaignFiles
from crpipe.config.loading import load_config
from crpipe.core import errors
from crpipe.core.errors import ConfigError, CrpipeError, DataError
from crpipe.workflow.head import drop_skipped_copies
from crpipe.workflow.skipped import _OWN, skip_bad_ranges

SKIP = "ranges.on_failure=skip"
OWN = {(verb, kind.__name__) for verb, kinds in _OWN.items() for kind in kinds}
KINDS = sorted(
    name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, CrpipeError)
)


@pytest.fixture
def lab(tmp_path):
    """Three ranges in a directory: the first one is split, the second one is listed."""

    def begin(*overrides, skip=SKIP):
        files = CampaignFiles(
            tmp_path, 3, (f"source.uri={tmp_path}/raw/{{range}}/*.parquet", skip, *overrides)
        )
        for index in range(3):
            folder = tmp_path / "raw" / files.name(index)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "a.parquet").touch()
        files.split(0)
        files.listed(1)
        return files

    return begin


def failed(files, kind="FormatError", verb="split", index=1):
    return {
        "verb": verb,
        "name": files.name(index),
        "kind": kind,
        "cause": "(exit 66): a.parquet: damaged",
        "attempts": 3,
        "log": "a.log",
    }


def decide(files, *failures):
    return skip_bad_ranges(files.campaign, failures)


@pytest.mark.parametrize("verb", ["list", "stage", "convert", "split"])
@pytest.mark.parametrize("kind", [*KINDS, "", "ImportError", "KeyError", "OSError"])
def test_only_what_the_files_of_a_range_can_cause_leaves_it_out(lab, verb, kind):
    files = lab()
    name = files.name(1)
    records, lines = decide(files, failed(files, kind, verb))
    if (verb, kind) in OWN:
        assert [each.range for each in records] == [name]
        assert lines == []
    else:
        assert (records, lines) == (
            (),
            [f"{name} is not skipped (ranges.on_failure): its files are not what is wrong"],
        )
    assert files.paths.skipped(name).exists() == ((verb, kind) in OWN)


def test_nothing_that_hits_every_range_is_a_ranges_own():
    never = {
        *("ConfigError", "OutageError", "ChangedError", "PluginError", "MissingExtra", "MachineError", ""),
        *(
            "DiskError",
            "PlaceError",
            "HostMemoryError",
            "DataError",
            "LedgerError",
            "LeaseError",
            "QueueError",
        ),
    }
    assert never & {kind for _, kind in OWN} == set()
    assert ("stage", "AccessError") not in OWN  # of a token that does not cover the bytes
    assert ("convert", "SourceError") not in OWN  # of a command that works for no file any more


def test_a_range_whose_last_attempts_never_came_is_not_left_out(lab):
    files = lab()  # Snakemake without keep-going starts nothing again once another job has failed
    records, lines = decide(files, {**failed(files), "attempts": 1})
    assert records == ()
    assert lines[0].endswith("it was tried in 1 of 3 attempts; run the same command again")


def test_each_step_whose_failures_are_a_ranges_own_is_tried_so_often():
    rules = (Path(__file__).parents[3] / "workflow/rules/head.smk").read_text()
    assert 'each.name in ("list_range", "stage", "convert", "split")' in rules


def test_the_record_says_what_is_missing_and_the_range_is_left_out_from_then_on(lab):
    files = lab()
    name = files.name(1)
    (record,), _ = decide(files, failed(files))
    assert json.loads(files.paths.skipped(name).read_text()) == record.as_json()
    assert (record.files, record.bytes, record.cause) == (10, 10 * (40 << 20), "a.parquet: damaged")
    assert files.campaign.given_up == (record,)
    assert name not in files.campaign.ranges
    named = CampaignFiles(files.root, 3, (*files.overrides[:1], f"ranges.skip=[{name}]"))
    assert files.campaign.chain == named.campaign.chain
    assert files.campaign.fingerprint == named.campaign.fingerprint
    assert named.campaign.given_up == ()  # it is named once
    files.paths.skipped(name).unlink()
    assert name in files.campaign.ranges


def test_a_range_without_a_listing_has_no_numbers(lab):
    files = lab()
    files.paths.manifest(files.name(1)).unlink()
    (record,), _ = decide(files, failed(files, "ListingError", "list"))
    assert (record.files, record.bytes, record.loss()) == (None, None, "not listed")


def test_stop_records_nothing(lab):
    files = lab(skip="ranges.on_failure=stop")
    assert decide(files, failed(files)) == ((), [])
    assert not files.paths.skipped("x").parent.exists()


def test_more_than_max_skipped_stop_with_all_their_names(lab):
    files = lab()
    first, second = files.name(1), files.name(2)
    records, lines = decide(files, failed(files), failed(files, index=2))
    assert records == ()
    assert lines[0].startswith("2 ranges stay bad, and ranges.max_skipped is 1: none of them is skipped now;")
    assert [line.split()[0] for line in lines[1:]] == [first, second]
    decide(files, failed(files))
    other = {**failed(files), "name": second}
    records, lines = decide(files, other)
    assert (records, [line.split()[0] for line in lines[1:]]) == ((), [first, second])
    more = CampaignFiles(files.root, 3, (*files.overrides, "ranges.max_skipped=2"))
    records, _ = decide(more, other)
    assert [each.range for each in more.campaign.given_up] == [first, second]


@pytest.mark.parametrize("verb", ["stage", "split"])
def test_a_reader_or_source_that_never_worked_leaves_nothing_out(lab, verb):
    files = lab()
    files.paths.ledger(files.name(0)).unlink()
    records, lines = decide(files, failed(files, verb=verb))
    assert records == ()
    assert lines[0].endswith("no other range is split, so the source or the reader may be wrong for all")


@pytest.mark.parametrize(("verb", "kind"), [("list", "AccessError"), ("stage", "TransferError")])
def test_a_source_that_is_away_now_leaves_nothing_out(lab, verb, kind):
    files = lab()
    (files.root / "raw").rename(files.root / "away")
    records, lines = decide(files, failed(files, kind, verb))
    assert records == ()
    assert f"{files.name(0)} cannot be listed now, either: " in lines[0]


def test_no_other_range_that_was_listed_says_nothing_of_the_source(lab):
    files = lab()
    files.paths.manifest(files.name(0)).unlink()
    _, lines = decide(files, failed(files, "ListingError", "list"))
    assert lines[0].endswith("no other range is listed, so the source may be wrong for all")


def test_a_range_that_decides_more_than_itself_is_not_left_out(lab):
    files = lab("split.quantile=0.9", "split.reference_ranges=[0001000-0001999]")
    assert decide(files, failed(files))[1][0].endswith("split.reference_ranges names it")
    files = lab()
    (files.paths.split_record(files.name(1)).parent).mkdir(parents=True)
    assert "it was split before: crpipe check 0001000-0001999" in decide(files, failed(files))[1][0]


def test_trainings_that_failed_are_none_of_its_business(lab):
    files = lab()
    assert decide(files, failed(files, "DivergenceError", "train")) == ((), [])


def test_raw_copies_of_a_range_that_is_skipped_take_no_space(lab):
    files = lab()
    name = files.copied(2, 1)
    files.paths.staged(name).touch()
    table = files.paths.converted(name)
    table.parent.mkdir()
    table.touch()
    decide(files, failed(files, index=2))
    drop_skipped_copies(files.paths, files.config.given_up())
    assert not files.paths.raw(name).exists()
    assert not files.paths.staged(name).exists()
    assert not table.exists()


def test_every_range_skipped_is_refused_in_words(lab):
    files = lab()
    folder = files.paths.skipped("x").parent
    folder.mkdir()
    for name in files.campaign.ranges:
        (folder / f"{name}.json").write_text("{}")
    with pytest.raises(ConfigError, match="every range is skipped; nothing is left to do"):
        files.config.all_ranges()


def test_records_of_ranges_that_the_campaign_has_not_are_left_alone(lab):
    files = lab()
    folder = files.paths.skipped("x").parent
    folder.mkdir()
    (folder / "0009000-0009999.json").write_text("{}")
    assert (files.config.given_up(), len(files.campaign.ranges)) == ((), 3)


def test_a_damaged_record_is_named_with_its_remedy(lab):
    files = lab()
    decide(files, failed(files))
    path = files.paths.skipped("0001000-0001999")
    path.write_text("{}")
    with pytest.raises(DataError, match=r"0001000-0001999.json: damaged \(attempts is missing\); delete it"):
        _ = files.campaign.given_up


def test_packs_leave_nothing_to_judge_by():
    with pytest.raises(ConfigError, match="ranges.on_failure: skip does not work with packs: true"):
        load_config((), (SKIP, "packs=true"))
    assert Path("results/skipped/x.json") == load_config((), (SKIP,)).paths().skipped("x")
