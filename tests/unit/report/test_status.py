import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from campaign_files import STEPS, CampaignFiles, realistic, with_validation, write_chain
from crpipe.campaign.campaign import Campaign
from crpipe.campaign.ledger import Counts
from crpipe.campaign.raw_files import lease_folder
from crpipe.core.errors import DataError
from crpipe.core.files import read_json, write_json
from crpipe.core.lease import lease
from crpipe.core.paths import DESTINATIONS, HEAD_FOLDER, OUTLIERS
from crpipe.report.jobs import job_logs
from crpipe.report.plan import render_plan
from crpipe.report.state import CampaignState, SourceToken
from crpipe.report.status import render_status, sum_line
from crpipe.report.summary import quarantined_files
from crpipe.report.work_state import State
from crpipe.workflow.head import take_lease


@pytest.fixture
def files(tmp_path):
    made = CampaignFiles(tmp_path, ranges=4)
    made.claim()
    return made


def first(files):
    return files.state.ranges[0]


def test_an_empty_campaign_waits_and_can_be_shown(tmp_path):
    files = CampaignFiles(tmp_path, ranges=3)
    status = files.state
    assert [item.state for item in status.ranges] == [State.WAITING] * 4
    assert status.eta_s is None
    text = render_status(files.state, 100)
    assert "0 of 3 ranges trained" in text
    assert "resume" not in text


def test_a_stopped_campaign_names_the_command_that_was_used(files):
    files.split(0)
    assert "the same command again, e.g. snakemake train_all" in render_status(files.state, 200)
    files.paths.command().parent.mkdir(parents=True, exist_ok=True)
    files.paths.command().write_text("crpipe run --profile slurm\n")
    assert "the same command again: crpipe run --profile slurm" in render_status(files.state, 200)
    assert job_logs(files.paths) == []


def test_between_two_jobs_of_a_workflow_nothing_is_to_be_resumed(files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files.split(0)
    with take_lease(Path(HEAD_FOLDER), executes=True, say=print):
        assert "resume" not in render_status(files.state, 200)
    assert "resume" in render_status(files.state, 200)


def test_each_step_leaves_its_state(files):
    files.listed(0)
    assert first(files).state is State.LISTED
    files.staged(0)
    assert (first(files).state, first(files).files) == (State.STAGED, 10)
    files.split(0, quarantined=1)
    item = first(files)
    assert (item.state, item.files, item.quarantined, item.shards, item.outliers) == (
        State.SPLIT,
        9,
        1,
        1,
        100,
    )
    files.trained(files.name(0))
    assert (first(files).state, first(files).step) == (State.TRAINED, STEPS)


def test_a_range_is_split_once_its_outliers_are_there(files):
    files.paths.outlier_manifest(files.split(0)).unlink()
    assert first(files).state is State.LISTED


def test_copying_is_seen_by_its_journal_and_counts_whole_files_only(files):
    name = files.copied(0, 3)
    (files.paths.raw(name) / "0000004.parquet.part").touch()
    files.journal("stage", name, "start", pid=os.getpid())
    item = first(files)
    assert (item.state, item.files, item.attempt) == (State.STAGING, 3, 1)


@pytest.mark.parametrize(("step", "state"), [("raw", State.STAGING), ("shards", State.SPLITTING)])
def test_a_held_lease_shows_work_on_the_data_whatever_the_journal_lost(files, step, state):
    name = files.copied(0, 3)
    folder = getattr(files.paths, step)(name)
    with lease(lease_folder(folder) if step == "raw" else folder, wait_s=0, say=str):
        item = first(files)
    assert (item.state, item.files) == (state, 3)
    assert item.quiet_s < 60


def test_a_killed_copy_is_interrupted_and_a_failed_one_says_why(files):
    name = files.copied(0, 3)
    files.journal("stage", name, "start")
    assert first(files).state is State.INTERRUPTED
    files.journal("stage", name, "failed", error="no route to host")
    item = first(files)
    assert (item.state, item.error) == (State.FAILED, "no route to host")
    assert "cannot be trained before" in render_status(files.state, 120)


def test_a_name_in_an_error_adds_no_line_and_steers_no_terminal(files):
    name = files.copied(0, 3)
    files.journal("stage", name, "start")
    files.journal("stage", name, "failed", error="x\x1b[2J\ncrpipe: all is well: missing")
    shown = render_status(files.state, 200)
    assert r"x\x1b[2J crpipe: all is well: missing" in shown
    assert not any(line.startswith("crpipe") for line in shown.splitlines())


def test_a_held_lease_means_training_with_its_progress(files):
    name = files.split(0)
    files.journal("train", name, "start")
    files.metrics(name, STEPS // 4)
    with lease(files.paths.store(name), wait_s=0, say=str):
        item = first(files)
        status = files.state
    assert (item.state, item.step, item.steps) == (State.TRAINING, STEPS // 4, STEPS)
    assert item.eta_s == pytest.approx(0.5 * STEPS * 3 / 4)
    assert status.eta_s == pytest.approx(0.5 * STEPS * 3.75)
    assert status.trained.events == files.step * 90


def test_a_free_lease_and_a_snapshot_mean_interrupted_until_a_failure_says_otherwise(files):
    name = files.split(0)
    files.journal("train", name, "start")
    files.metrics(name, 100)
    files.snapshot(name)
    assert first(files).state is State.INTERRUPTED
    files.journal("train", name, "failed", error="stopped by SIGTERM", kind="Interrupted")
    assert first(files).state is State.INTERRUPTED
    files.journal("train", name, "start")
    files.journal("train", name, "failed", error="losses left their band", kind="DivergenceError")
    item = first(files)
    assert (item.state, item.error, item.attempt) == (State.FAILED, "losses left their band", 2)
    assert "the same command again" in render_status(files.state, 120)


def test_products_of_another_configuration_are_stale_and_the_key_is_named(files):
    files.trained(files.split(0), fingerprint="other")
    files.split(1, data="other")
    assert [item.state for item in files.state.ranges[:2]] == [State.STALE] * 2
    again = CampaignFiles(
        files.root, ranges=4, overrides=("split.outlier_above=7", "train.passes_per_link=3")
    )
    text = render_status(again.state, 200)
    assert "split.outlier_above: made with 50000, now 7" in text
    assert "train.passes_per_link: made with 1, now 3" in text


def test_a_failed_evaluation_is_seen_beside_the_trained_range(files):
    name = files.split(0)
    files.trained(name)
    files.journal("evaluate", name, "start")
    files.journal("evaluate", name, "failed", error="no validation events", kind="DataError")
    item = first(files)
    assert (item.state, item.error) == (State.TRAINED, "evaluate: no validation events")


def test_skipped_ranges_are_shown_but_not_part_of_the_chain(tmp_path):
    files = CampaignFiles(tmp_path, ranges=3, overrides=("ranges.skip=[0001000-0001999]",))
    status = files.state
    assert [item.state for item in status.ranges[:3]] == [State.WAITING, State.SKIPPED, State.WAITING]
    assert "0 of 2 ranges trained" in render_status(files.state, 80)


def test_a_range_that_was_split_and_is_skipped_now_keeps_its_events(files):
    files.split(1, quarantined=1)
    skipping = CampaignFiles(files.root, ranges=4, overrides=("ranges.skip=[0001000-0001999]",)).state
    assert skipping.ranges[1].state is State.SKIPPED
    assert skipping.ranges[1].ledger.events.listed > 0
    assert skipping.ledgers.events.listed == 0
    assert list(quarantined_files(skipping)) == []


def test_a_skipped_range_that_the_checkpoint_contains_is_named(files):
    parent = ""
    for k in range(3):
        files.trained(files.split(k))
        path = files.paths.receipt(files.name(k))
        receipt = {**json.loads(path.read_text()), "sha256": f"{k}", "parent": parent}
        path.write_text(json.dumps(receipt))
        parent = f"{k}"
    assert files.state.still_trained == ()
    skipping = CampaignFiles(files.root, ranges=4, overrides=("ranges.skip=[0001000-0001999]",))
    assert skipping.state.still_trained == ("0001000-0001999",)
    assert "SKIPPED     0001000-0001999: in ranges.skip, but" in render_status(skipping.state, 120)


def test_a_link_that_is_trained_again_in_a_grown_campaign_is_not_trained(files):
    for k in range(4):
        files.split(k)
    files.consolidated(400)
    write_chain(files.campaign)
    assert [link.state for link in files.state.links] == [State.TRAINED] * 5
    grown = CampaignFiles(files.root, ranges=5).state
    assert [link.state for link in grown.links][-2:] == [State.WAITING, State.CONSOLIDATED]
    assert (grown.trained.step, grown.receipt().range) == (400, files.name(3))


def test_ledgers_are_summed_and_checked_again(files):
    files.split(0, rejected=3)
    name = files.split(1, quarantined=2)
    ledgers = files.state.ledgers
    assert (ledgers.count, ledgers.quarantined, ledgers.events.rejected) == (2, 2, 3)
    assert ledgers.balanced()
    with files.changed_ledger(name) as ledger:
        ledger["items"]["outliers"] -= 1
    assert files.state.ledgers.unbalanced == (name,)
    assert f"UNBALANCED  {name}" in render_status(files.state, 120)


def test_files_without_checksums_and_repeated_events_are_said(files):
    name = files.split(0)
    assert "size only" not in render_status(files.state, 120)
    with files.changed_ledger(name) as ledger:
        ledger["staged"]["size_only"] = 3
        ledger["repeated"] = {"columns": ["run"], "events": 7, "first": []}
    text = render_status(files.state, 120)
    assert "3 files verified by size only: the source names no checksum" in text
    assert "7 events repeat another one of the range; the ledgers name them" in text


def test_events_without_items_are_counted(files):
    files.split(0)
    assert "without" not in render_status(files.state, 120)
    files.split(1, empty=1500)
    assert "1,500 events without" in render_status(files.state, 120)
    assert files.state.ledgers.empty == 1500


def test_a_consolidation_that_failed_is_that_of_the_outliers(files):
    files.journal("consolidate", "", "start")
    files.journal("consolidate", "", "failed", error="no space left")
    outliers = files.state.ranges[-1]
    assert (outliers.name, outliers.state, outliers.attempt) == (OUTLIERS, State.FAILED, 1)
    assert outliers.error == "no space left"


def test_the_outliers_are_the_last_link(files):
    files.consolidated(events=406)
    item = files.state.ranges[-1]
    assert (item.name, item.state, item.outliers) == (OUTLIERS, State.CONSOLIDATED, 406)
    files.trained(OUTLIERS)
    assert files.state.ranges[-1].state is State.TRAINED


def test_raw_copies_count_against_the_budget(files):
    files.copied(0, 3)
    disk = files.state.disk
    assert disk.raw == pytest.approx(3 * (40 << 20), rel=1e-3)
    assert disk.budget == 2 << 30


def test_the_table_folds_equal_ranges_and_fits_any_width(tmp_path):
    state = realistic(tmp_path, ranges=30).state
    for width in (40, 60, 80, 100, 160):
        text = render_status(state, width)
        assert max(map(len, text.splitlines())) <= width
        assert "\x1b" not in text
    assert "17 ranges" in render_status(state, 160)
    unfolded = render_status(state, 160, unfold=True)
    assert all(name in unfolded for name in state.campaign.ranges)
    assert "\x1b[32mtrained" in render_status(state, 160, colour=True)


HOUR, DAY = 3600.0, 86_400.0


def shown_of_token(files, left_s, **about):
    token = SourceToken("source.token_file (/home/me/token)", files.state.time + left_s, **about)
    text = render_status(CampaignState.read(files.campaign, token), 200)
    lines = [line.partition(" ")[::2] for line in text.splitlines()]
    return {label: line.strip() for label, line in lines if label in ("token", "TOKEN")}


def trained_at_a_pace(files, pace_s):
    """Two ranges with receipts, the second one ``pace_s`` after the first; two ranges are left."""
    for index in range(2):
        files.split(index)
        files.trained(files.name(index))
        receipt = files.paths.receipt(files.name(index))
        os.utime(receipt, (1e9 + index * pace_s, 1e9 + index * pace_s))


def test_a_token_that_lasts_is_shown_without_a_warning(files):
    trained_at_a_pace(files, HOUR)
    shown = shown_of_token(files, 2 * DAY + 30)
    assert shown == {"token": "ends in 2 d 0 h (source.token_file (/home/me/token))"}


@pytest.mark.parametrize(
    ("left_s", "warning"),
    [
        (1.5 * DAY + 30, "ends in 1 d 12 h, before the last range is trained (in 2 d 0 h): renew it in time"),
        (-HOUR - 30, "ended 1 h 00 min ago: nothing can be copied until it is renewed"),
    ],
)
def test_a_token_that_does_not_last_until_the_end_is_a_warning(files, left_s, warning):
    trained_at_a_pace(files, DAY)
    assert shown_of_token(files, left_s)["TOKEN"].startswith(warning)


def test_a_token_that_ends_within_a_day_is_a_warning_whatever_the_eta(files):
    assert shown_of_token(files, 23 * HOUR + 30)["TOKEN"].startswith("ends in 23 h 00 min: renew it in time")


def test_a_token_that_cannot_be_read_is_a_warning(files):
    token = SourceToken(problem="source.token_file: /x cannot be read")
    text = render_status(CampaignState.read(files.campaign, token), 200)
    assert "TOKEN       source.token_file: /x cannot be read" in text


def test_once_everything_is_copied_no_token_is_needed(files):
    for index in range(4):
        files.split(index)
    assert shown_of_token(files, -HOUR) == {}


def test_the_item_word_comes_from_the_layout(files):
    files.trained(files.split(0))
    text = render_status(files.state, 120)
    assert "hits        9,400,000 = train 380,000" in text
    assert "360,000 hits, 1 step skipped" in text
    unknown = CampaignState.read(replace(files.campaign, known_layout=None))
    assert "items       9,400,000" in render_status(unknown, 120)


def test_before_the_first_job_nothing_is_compared(files):
    files.claim()
    files.split(0)
    files.paths.layout().unlink()
    campaign = Campaign.open(files.config, "recorded")
    assert (campaign.data, campaign.fingerprint, campaign.item) == ("", "", "items")
    state = CampaignState.read(campaign)
    assert "no job has run yet" in render_status(state, 120)
    assert state.ranges[0].state is State.SPLIT
    assert state.changed == ()


def test_a_status_of_a_longer_item_word_is_aligned(files):
    files.split(0)
    files.laid_out(item="photomultiplier_hits")
    assert "photomultiplier_hits 9,400,000" in render_status(files.state, 120)


@pytest.mark.parametrize("damage", ["[]", "{}", "no json", '{"item": 3}'])
def test_a_damaged_layout_is_named(files, damage):
    files.paths.layout().write_text(damage)
    with pytest.raises(DataError, match="layout.json"):
        render_status(files.state, 120)


def test_events_of_one_size_have_no_outliers(files):
    files.laid_out(fixed=7)
    name = files.split(0)
    files.paths.outlier_manifest(name).unlink()
    status = files.state
    assert [item.state for item in status.ranges] == [State.SPLIT, *[State.WAITING] * 3]
    assert status.ranges[0].outliers is None


def test_a_test_part_is_shown_only_where_there_is_one():
    nothing = dict.fromkeys(DESTINATIONS, 0)
    assert sum_line(Counts(**nothing | {"listed": 7, "train": 6, "validation": 1})) == (
        "7 = train 6 + validation 1 + outliers 0 + rejected 0"
    )
    assert "+ test 2 +" in sum_line(Counts(**nothing | {"listed": 9, "train": 6, "validation": 1, "test": 2}))


def test_a_trial_with_some_files_of_each_range_says_so(tmp_path):
    files = CampaignFiles(tmp_path, ranges=1, overrides=("source.max_files=3",))
    assert "trial       only the first 3 files of each range (source.max_files)" in render_status(
        files.state, 120
    )
    assert "only the first 3 files of each (source.max_files)" in render_plan(files.plan())


def test_what_is_held_out_has_outliers_of_its_own(files):
    with files.changed_ledger(files.split(0)) as ledger:
        for kind in ("events", "items"):
            ledger[kind]["outliers"] -= 30
            ledger[kind]["validation_outliers"] = 30
    text = render_status(files.state, 200)
    assert "outliers 70 + validation_outliers 30 + rejected 0" in text
    assert "1 of 1 balance" in text
    assert files.state.ranges[0].outliers == 100  # of all parts


def test_links_without_training_events_and_doubtful_groups_are_warned_of(files):
    files.split(0)
    with files.changed_ledger(files.split(1)) as ledger:
        ledger["events"]["validation"] += ledger["events"]["train"]
        ledger["events"]["train"] = 0
        ledger["doubtful_groups"] = "each row is a group"
    text = render_status(files.state, 200)
    assert f"EMPTY       {files.name(1)}: no training event" in text
    assert "GROUPS      each row is a group" in text
    assert files.name(0) not in text.partition("EMPTY")[2].partition("GROUPS")[0]


def test_the_ledgers_of_an_earlier_version_are_refused_in_words(files):
    with files.changed_ledger(files.split(0)) as ledger:
        for kind in ("events", "items"):
            del ledger[kind]["validation_outliers"], ledger[kind]["test_outliers"]
    with pytest.raises(DataError, match="made by an earlier crpipe, which trained on large held-out events"):
        CampaignState.read(files.campaign)


@pytest.fixture
def validated(tmp_path):
    return with_validation(tmp_path)


def test_status_shows_the_last_and_the_best_value(validated):
    line = "score 2.25 at step 800, best 2.125 at step 200"
    assert line in " ".join(render_status(validated.state, 200).split())
    assert validated.state.validation.best_step == 200


def test_without_a_best_checkpoint_status_shows_what_was_measured_last(validated):
    for index in range(2):
        validated.paths.best_receipt(validated.name(index)).unlink()
    line = f"score 2.25, critic/loss 0.5, critic/gap 0.2 at step 800 ({validated.name(1)})"
    assert line in " ".join(render_status(validated.state, 200).split())


def test_status_says_nothing_of_validation_where_there_is_none(tmp_path):
    made = CampaignFiles(tmp_path, ranges=1)
    made.trained(made.split(0))
    assert made.state.validation is None


def test_status_shows_why_a_link_ended_early(validated):
    path = validated.paths.receipt(validated.name(1))
    write_json(path, {**read_json(path), "stopped": "no better validation/score for 3 validations; best 2"})
    assert "ended early: no better validation/score for 3 validations" in render_status(validated.state, 400)
