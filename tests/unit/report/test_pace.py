"""Events, steps and hours: from split ranges, from a file that was read, and from measured rates."""

from dataclasses import replace

import pytest

from campaign_files import EVENTS, CampaignFiles
from crpipe.cli.jobs.report import plan_job
from crpipe.report.estimates import SeenFile, SourceLook
from crpipe.report.pace import better_batch, estimate_events, estimate_hours, steps_of_links
from crpipe.report.plan import plan_lines, render_plan, warnings_of

BYTES = 10 * (40 << 20)  # of one range
FILE = SeenFile("a.parquet", "m:R", {"run": "uint64"}, 2, 1000, 50, 500, 40, 8, 90, 0.8)


def job_of(files, **seen):
    return plan_job(files.config, SourceLook(**seen))


def words(job):
    return " ".join(render_plan(job).split())


def test_events_are_scaled_from_the_files_that_were_read(tmp_path):
    files = CampaignFiles(tmp_path, ranges=2)
    job = job_of(files, listed={files.name(0): (4, 20_000), files.name(1): (4, 60_000)}, file=FILE)
    events = estimate_events(job)
    assert (events.events, events.items, events.exact) == (4000, 40_000, False)
    # 80 % are no outliers, and 5 % are held out.
    assert list(events.trained.values()) == pytest.approx([760, 2280])
    assert steps_of_links(job, events) == [1, 1]
    assert "events about 4,000 with 40,000" in words(job)
    assert "estimated from 50 events in 2 files" in words(job)


def test_ranges_that_are_split_are_counted_and_others_are_like_them(tmp_path):
    files = CampaignFiles(tmp_path, ranges=2)
    files.claim()
    files.split(0)
    events = estimate_events(job_of(files))
    assert (events.events, events.exact) == (2 * EVENTS, False)
    files.split(1)
    assert estimate_events(job_of(files)).exact


def test_nothing_is_known_without_a_file_and_without_a_split_range(tmp_path):
    job = job_of(CampaignFiles(tmp_path, ranges=2))
    assert estimate_events(job) is None
    assert estimate_hours(job, None).training_s is None
    assert "events known once a file is read" in words(job)


def test_few_steps_are_warned_about_with_the_key_that_helps(tmp_path):
    files = CampaignFiles(tmp_path, ranges=1, overrides=("train.fresh_batches=false",))
    big = replace(FILE, events=40_000, below=1.0)
    job = job_of(files, listed={files.name(0): (4, 1000)}, file=big)
    assert steps_of_links(job, estimate_events(job)) == [9]
    assert better_batch(job, 9) == 64  # 38,000 events make 594 batches of 64
    said = next(text for text in warnings_of(plan_lines(job)) if "steps only" in text)
    assert "a link has about 9 steps only" in said
    assert "load.batch_events: 64" in said
    enough = CampaignFiles(tmp_path, ranges=1, overrides=("load.batch_events=64",))
    assert "steps only" not in words(job_of(enough, listed={files.name(0): (4, 1000)}, file=big))


@pytest.mark.parametrize(
    ("keys", "steps"),
    [
        (("load.batch_events=38",), 1000),
        (("load.batch_events=38", "train.epochs=3"), 3000),
        (("load.batch_events=38", "train.fresh_batches=true", "model.critic_steps=5"), 200),
        (("load.batch_events=38", "train.nodes=2", "train.gpus=2"), 250),
        (("load.batch_events=38", "train.gpus=0", "train.processes=4"), 250),
        (("load.batch_events=38", "train.ranges_per_link=2"), 2000),
    ],
)
def test_steps_follow_epochs_ranks_and_ranges_of_a_link(tmp_path, keys, steps):
    files = CampaignFiles(tmp_path, ranges=2, overrides=("train.fresh_batches=false", *keys))
    big = replace(FILE, events=40_000, below=1.0)
    job = job_of(files, listed={files.name(place): (4, 1000) for place in (0, 1)}, file=big)
    assert set(steps_of_links(job, estimate_events(job))) == {steps}


def test_an_event_above_the_budget_is_warned_about(tmp_path):
    files = CampaignFiles(tmp_path, ranges=1, overrides=("load.budget_items=89",))
    job = job_of(files, listed={files.name(0): (4, 1000)}, file=FILE)
    assert "WARNING an event of 90 items is larger than load.budget_items: 89" in words(job).replace(
        job.view.item, "items"
    )


def test_few_held_out_groups_are_warned_about_before_anything_is_split(tmp_path):
    files = CampaignFiles(tmp_path, ranges=1)
    seen = {"listed": {files.name(0): (4, 20_000)}, "file": FILE}
    # 1,000 events, of which 40 had 8 groups: 200 groups, and 5 % of them.
    assert "WARNING about 10 groups of held-out events are expected: not enough for" in words(
        job_of(files, **seen)
    )
    many = replace(FILE, groups=40)
    assert "about 50 groups of them, enough for every number" in words(
        job_of(files, **{**seen, "file": many})
    )


def test_hours_follow_from_what_was_measured_here(tmp_path):
    files = CampaignFiles(tmp_path, ranges=4)
    files.claim()
    assert "no rate of training is measured yet" in words(job_of(files))
    for index in range(2):
        files.staged(index)
    name = files.split(0)
    files.trained(name)
    job = job_of(files)
    hours = estimate_hours(job, estimate_events(job))
    assert hours.rate.events_per_s == pytest.approx(20 * 90 / 10)
    assert hours.rate.where == f"run default, link {name}"
    assert hours.training_s == pytest.approx(4 * (EVENTS - EVENTS // 20 - 100) / 180, rel=1e-3)
    assert hours.range_s == {"stage": 60.0, "split": 60.0}
    assert hours.data_s == 4 * 120.0
    other = CampaignFiles(tmp_path, ranges=4, overrides=("run=second",))
    assert estimate_hours(job_of(other), None).rate.where == f"run default, link {name}"
