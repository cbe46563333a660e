"""Status, page, summary, plan and messages where a link is not the same as a range."""

import json
import os

import pytest

from campaign_files import STEPS, STOPPED, CampaignFiles, linked
from crpipe.core.files import read_json, write_json
from crpipe.core.lease import lease
from crpipe.report.evaluations import evaluations
from crpipe.report.notify import subject_of
from crpipe.report.page import render_page
from crpipe.report.series import chain_rows
from crpipe.report.status import render_status, status_json
from crpipe.report.summary import render_summary
from crpipe.report.work_state import State

FIRST, SECOND, THIRD, LAST = (f"{place:07d}-{place + 1999:07d}" for place in (0, 2000, 4000, 6000))
CHAIN = [FIRST, SECOND, THIRD, LAST, *(f"{name}.2" for name in (FIRST, SECOND, THIRD, LAST)), "outliers"]


@pytest.fixture
def files(tmp_path):
    return linked(tmp_path)


def links(files):
    return {link.name: link for link in files.state.links}


def test_links_have_states_of_their_own_beside_the_data_states_of_ranges(files):
    status = files.state
    assert not status.one_to_one
    assert [link.name for link in status.links] == CHAIN
    assert [link.state for link in status.links] == [
        State.TRAINED, State.TRAINED, State.INTERRUPTED, State.WAITING,
        State.SPLIT, State.SPLIT, State.SPLIT, State.WAITING, State.WAITING,
    ]  # fmt: skip
    # A range is trained once its link of the last round is.
    assert [item.state for item in status.ranges] == [
        *[State.SPLIT] * 4, *[State.INTERRUPTED] * 2, State.STAGED, State.WAITING, State.WAITING
    ]  # fmt: skip
    assert (links(files)[THIRD].step, links(files)[THIRD].attempt) == (STEPS // 4, 1)
    assert links(files)[FIRST].stopped == STOPPED
    assert (links(files)[f"{SECOND}.2"].round, len(links(files)[f"{SECOND}.2"].ranges)) == (2, 2)


def test_a_range_is_trained_with_its_last_round(files):
    files.trained(f"{FIRST}.2")
    states = [item.state for item in files.state.ranges]
    assert states[:4] == [State.TRAINED, State.TRAINED, State.SPLIT, State.SPLIT]


def test_a_held_lease_shows_training_on_the_link_and_on_its_ranges(files):
    with lease(files.paths.store(THIRD), wait_s=0, say=str):
        status = files.state
    assert links(files)[THIRD].state is State.INTERRUPTED
    assert status.links[2].state is State.TRAINING
    assert status.links[2].eta_s == pytest.approx(0.5 * STEPS * 3 / 4)
    assert [item.state for item in status.ranges[4:6]] == [State.TRAINING] * 2
    assert [item.step for item in status.ranges[4:6]] == [None] * 2


def test_the_time_left_weighs_links_by_their_ranges(tmp_path):
    """Five ranges: links of two, two and one, one of them trained every 100 s."""
    files = CampaignFiles(tmp_path, 5, ("train.ranges_per_link=2",))
    files.claim()
    names = [link.name for link in files.campaign.chain.links]
    for index in range(5):
        files.split(index)
    for place, name in enumerate(names[:2]):
        files.trained(name)
        os.utime(files.paths.receipt(name), (1e9 + 100 * place, 1e9 + 100 * place))
    status = files.state
    assert (status.pace_s, status.eta_s) == (50.0, 50.0)


def test_text_json_page_and_messages_count_links(files):
    text = render_status(files.state, 160)
    assert "2 of 8 links trained" in text
    assert f"early stop  1 link; {FIRST}: {STOPPED}" in text
    assert "ETA" in text
    assert "a range" in text
    status = json.loads(status_json(files.state))
    assert [link["name"] for link in status["links"]] == CHAIN
    assert status["links"][0]["stopped"] == STOPPED
    page = render_page(files.state, short=True)
    assert "2 of 8 links trained" in page
    assert '<section id="links"><h2>Links</h2>' in page
    assert f'title="{THIRD}; interrupted; 2 ranges; round 1; step 100 of 400"' in page
    assert f"{FIRST}; trained; 2 ranges; round 1; {STOPPED}" in page
    assert subject_of(files.state, "stall") == "crpipe default: stall, 2 of 8 links trained"


def test_the_table_of_links_fits_any_width_and_folds(tmp_path):
    files = linked(tmp_path, 40)
    for width in (40, 60, 80, 100, 160):
        text = render_status(files.state, width)
        assert max(map(len, text.splitlines())) <= width
        assert "\x1b" not in text
    assert "17 links" in render_status(files.state, 160)
    unfolded = render_status(files.state, 160, unfold=True)
    assert all(name in unfolded for name in files.campaign.chain.names)
    assert "\x1b[33minterrupted" in render_status(files.state, 160, colour=True)


def test_one_link_for_each_range_is_shown_as_ranges_alone(tmp_path):
    files = CampaignFiles(tmp_path, 3)
    files.trained(files.split(0))
    text = render_status(files.state, 120)
    assert "1 of 3 ranges trained" in text
    assert "link" not in text
    assert 'id="links"' not in render_page(files.state, short=True)
    first, second, *_ = json.loads(status_json(files.state))["links"]
    assert (first["state"], second["state"]) == ("trained", "waiting")


def test_a_failed_range_blocks_its_link_and_a_failed_link_the_later_ones(files):
    name = files.name(7)
    files.journal("stage", name, "start")
    files.journal("stage", name, "failed", error="no route to host")
    assert f"{name}: 5 links cannot be trained before" in render_status(files.state, 160)
    files.journal("train", THIRD, "failed", error="losses left their band", kind="DivergenceError")
    text = render_status(files.state, 160)
    assert f"FAILED      {name}, {THIRD}: 5 links cannot be trained before" in text
    assert "losses left their band" in text
    assert links(files)[THIRD].error == "losses left their band"
    assert "losses left their band" in render_page(files.state, short=True)


def test_a_receipt_of_other_ranges_is_stale(files):
    path = files.paths.receipt(SECOND)
    write_json(path, {**read_json(path), "ranges": [files.name(2)]})
    assert links(files)[SECOND].state is State.STALE


def test_the_summary_shows_why_a_link_ended_and_its_best_checkpoint(files):
    text = render_summary(files.state)
    assert "2 of 8 links" in text
    assert "best          critic/loss 0.125 at step 100" in text
    assert "best-k-0000000100-0.pt" in text
    assert "early stop" not in text  # it is the second link that the summary is about
    files.paths.receipt(SECOND).unlink()
    text = render_summary(files.state)
    assert "early stop    no better validation/critic/loss for 3 validations" in text
    assert "at step 100" not in text


def test_plan_series_and_evaluations_follow_the_links(files):
    assert files.plan().jobs["train"] == (8, 2)
    assert files.plan().jobs["split"] == (8, 6)
    assert [row["range"] for row in chain_rows(files.campaign)][:: STEPS // 20] == [FIRST, SECOND, THIRD]
    files.evaluated(f"{FIRST}.2", {"w1_time": 1.0})
    files.evaluated(SECOND, {"w1_time": 2.0})
    assert [(one.link, one.name) for one in evaluations(files.campaign)] == [(5, f"{FIRST}.2"), (2, SECOND)]
