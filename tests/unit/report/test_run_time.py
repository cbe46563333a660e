"""Events, steps and hours: from split ranges, from a file that was read, and from measured rates."""

from dataclasses import replace

import pytest

from campaign_files import EVENTS, CampaignFiles
from crpipe.core.errors import PluginError
from crpipe.report.estimates import SourceLook
from crpipe.report.plan import render_plan
from crpipe.report.run_time import Rate, better_sizes, estimate_hours
from crpipe.split.preview import FileSample

BYTES = 10 * (40 << 20)  # of one range
FILE = FileSample("a.parquet", "m:R", {"run": "uint64"}, 2, 1000, 50, 500, 40, 8, 90, 0.8)


def plan_of(files, **seen):
    return files.plan(SourceLook(**seen))


def words(plan):
    return " ".join(render_plan(plan).split())


def test_events_are_scaled_from_the_files_that_were_read(tmp_path):
    files = CampaignFiles(tmp_path, ranges=2)
    plan = plan_of(files, listed={files.name(0): (4, 20_000), files.name(1): (4, 60_000)}, file=FILE)
    events = plan.events
    assert (events.events, events.items, events.exact) == (4000, 40_000, False)
    # 80 % are no outliers, and 5 % are held out.
    assert list(events.trained.values()) == pytest.approx([760, 2280])
    assert plan.steps == [1, 1]
    assert "events about 4,000 with 40,000" in words(plan)
    assert "estimated from 50 events in 2 files" in words(plan)


def test_ranges_that_are_split_are_counted_and_others_are_like_them(tmp_path):
    files = CampaignFiles(tmp_path, ranges=2)
    files.claim()
    files.split(0)
    events = plan_of(files).events
    assert (events.events, events.exact) == (2 * EVENTS, False)
    files.split(1)
    assert plan_of(files).events.exact


def test_nothing_is_known_without_a_file_and_without_a_split_range(tmp_path):
    plan = plan_of(CampaignFiles(tmp_path, ranges=2))
    assert plan.events is None
    assert plan.hours.training_s is None
    assert "events known once a file is read" in words(plan)


def test_few_steps_are_warned_about_with_the_key_that_helps(tmp_path):
    files = CampaignFiles(tmp_path, ranges=1, overrides=("train.fresh_batches=false",))
    big = replace(FILE, events=40_000, below=1.0)
    plan = plan_of(files, listed={files.name(0): (4, 1000)}, file=big)
    assert plan.steps == [10]  # 38,000 events are nine batches of 4,096 and a smaller one, as in training
    thrice = CampaignFiles(
        tmp_path, ranges=1, overrides=("train.passes_per_link=3", "train.fresh_batches=false")
    )
    assert plan_of(thrice, listed={files.name(0): (4, 1000)}, file=big).steps == [30]  # each pass ends so
    assert better_sizes(4096, 1, 10) == (4096, 50)  # more passes first
    assert better_sizes(4096, 1, 0.5) == (128, 32)  # 2,048 events are 16 batches of 128
    assert better_sizes(64, 50, 10) == (64, 50)  # no more of either
    assert better_sizes(256, 20, 600) == (256, 20)
    said = next(text for text in plan.warnings() if "steps only" in text)
    assert "a link has about 10 steps only" in said
    assert "For 500 or so set train.passes_per_link: 50, raise train.ranges_per_link" in said
    enough = CampaignFiles(tmp_path, ranges=1, overrides=("load.batch_size=64",))
    assert "steps only" not in words(plan_of(enough, listed={files.name(0): (4, 1000)}, file=big))


@pytest.mark.parametrize(
    ("keys", "steps"),
    [
        (("load.batch_size=38",), 1000),
        (("load.batch_size=38", "train.passes_per_link=3"), 3000),
        (("load.batch_size=38", "train.fresh_batches=true", "model.critic_steps=5"), 200),
        (("load.batch_size=38", "train.nodes=2", "train.gpus=2"), 250),
        (("load.batch_size=38", "train.gpus=0", "train.processes=4"), 250),
        (("load.batch_size=38", "train.ranges_per_link=2"), 2000),
    ],
)
def test_steps_follow_epochs_ranks_and_ranges_of_a_link(tmp_path, keys, steps):
    files = CampaignFiles(tmp_path, ranges=2, overrides=("train.fresh_batches=false", *keys))
    big = replace(FILE, events=40_000, below=1.0)
    plan = plan_of(files, listed={files.name(place): (4, 1000) for place in (0, 1)}, file=big)
    assert set(plan.steps) == {steps}


def test_an_event_above_the_budget_is_warned_about(tmp_path):
    files = CampaignFiles(tmp_path, ranges=1, overrides=("load.max_items=89",))
    plan = plan_of(files, listed={files.name(0): (4, 1000)}, file=FILE)
    assert "WARNING an event of 90 items is larger than load.max_items: 89" in words(plan).replace(
        plan.campaign.item, "items"
    )


def test_few_held_out_groups_are_warned_about_before_anything_is_split(tmp_path):
    files = CampaignFiles(tmp_path, ranges=1)
    seen = {"listed": {files.name(0): (4, 20_000)}, "file": FILE}
    # 1,000 events, of which 40 had 8 groups: 200 groups, and 5 % of them.
    assert "WARNING about 10 groups of held-out events are expected: not enough for" in words(
        plan_of(files, **seen)
    )
    many = replace(FILE, groups=40)
    assert "about 50 groups of them, enough for every number" in words(
        plan_of(files, **{**seen, "file": many})
    )


def test_hours_follow_from_what_was_measured_here(tmp_path):
    files = CampaignFiles(tmp_path, ranges=4)
    files.claim()
    assert "no rate of training is measured yet" in words(plan_of(files))
    for index in range(2):
        files.staged(index)
    files.journal("stage", files.name(3), "start")
    files.clock += 1000
    files.journal("stage", files.name(3), "failed")  # counts for nothing
    name = files.split(0)
    files.trained(name)
    plan = plan_of(files)
    hours = plan.hours
    assert hours.rate.events_per_s == pytest.approx(20 * 90 / 10)
    assert hours.rate.where == f"run default, link {name}"
    assert hours.training_s == pytest.approx(4 * (EVENTS - EVENTS // 20 - 100) / 180, rel=1e-3)
    assert hours.range_s == {"stage": 60.0, "split": 60.0}
    assert hours.data_s == 4 * 120.0
    other = CampaignFiles(tmp_path, ranges=4, overrides=("run=second",))
    assert estimate_hours(other.campaign, None).rate.where == f"run default, link {name}"


def test_where_nothing_was_trained_a_few_steps_are_measured(tmp_path):
    files = CampaignFiles(tmp_path, ranges=1)
    seen = SourceLook(listed={files.name(0): (4, 20_000)}, file=FILE)
    plan = files.plan(seen, lambda: Rate(10.0, "4 steps"))
    assert plan.hours.training_s == pytest.approx(sum(plan.events.trained.values()) / 10)
    assert "events/s, measured in 4 steps" in words(plan)

    def fail():
        raise PluginError("no step: lower the rate")

    assert "no rate of training is measured yet; plan again" in words(broken := files.plan(seen, fail))
    assert "no step: lower the rate" in words(broken)


def test_a_warm_up_that_lasts_too_long_is_warned_about(tmp_path):
    def warnings(steps, *more):
        keys = f"train.schedule.warmup_steps={steps}", "load.batch_size=64", *more
        files = CampaignFiles(tmp_path, ranges=1, overrides=keys)
        big = replace(FILE, events=40_000, below=1.0)
        return words(plan_of(files, listed={files.name(0): (4, 1000)}, file=big))

    assert "train.schedule.warmup_steps: 200 are more than a tenth of" in warnings(200)
    assert "are more than a tenth of" not in warnings(19)
    assert "are more than a tenth of" not in warnings(200, "train.schedule.shape=one_cycle")


def test_outliers_are_counted_before_anything_is_split(tmp_path):
    files = CampaignFiles(tmp_path, ranges=1)
    text = words(plan_of(files, listed={files.name(0): (4, 1000)}, file=replace(FILE, below=0.9)))
    assert "10.00% of the events that were read are outliers (split.outlier_above)" in text
