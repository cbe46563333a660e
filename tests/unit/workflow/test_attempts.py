"""`crpipe run` around the workflow: its targets, and when it is started again."""

import os
import signal
from dataclasses import replace

import pytest

from crpipe.campaign.campaign import Campaign
from crpipe.core.errors import ConfigError, ListingError
from crpipe.workflow import attempts as module
from crpipe.workflow.attempts import RunRequest, next_links, run_until_done
from crpipe.workflow.run import WorkflowResult
from named import READERS, SIMULATOR


class Lines(list):
    """A screen that keeps its lines."""

    tty = False
    say = show = list.append


@pytest.fixture
def request_(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    changes = (
        *("ranges.last=2999", "source.uri=synthetic://", f"source.simulator={SIMULATOR}"),
        f"source.reader={READERS['bundles']}",
    )
    return RunRequest((), changes, (), 0, "", "", dry_run=True, more=(), typed=("crpipe", "run"), pause_s=0.0)


@pytest.fixture
def ends(monkeypatch):
    """Script how each start of the workflow ends: an end, or an error; returns the targets of each start."""
    script, started = [], []

    def run_head(call, typed, stop, receive, tick, *, notify):
        started.append((call.targets, notify))
        end = script.pop(0)
        if isinstance(end, Exception):
            raise end
        return end

    monkeypatch.setattr(module, "run_head", run_head)
    return script, started


def failure(kind):
    rows = [{"verb": "list", "name": "a", "kind": kind, "cause": f"(exit 66): {kind}"}]
    return WorkflowResult(code=1, began=True, failures=rows, text="why it failed")


def test_the_next_links_are_those_without_a_receipt(request_):
    campaign = Campaign.open(request_.config())
    receipts = [str(campaign.paths.receipt(name)) for name in campaign.chain.names]
    assert next_links(campaign, 2) == tuple(receipts[:2])
    campaign.paths.receipt(campaign.chain.names[0]).parent.mkdir(parents=True)
    for name in campaign.chain.names[:3]:
        campaign.paths.receipt(name).touch()
    assert next_links(campaign, 2) == tuple(receipts[3:])
    campaign.paths.receipt("outliers").touch()
    with pytest.raises(ConfigError, match=r"all 4 links are trained; add ranges \(ranges.last\)"):
        next_links(campaign, 1)


def test_links_are_counted_from_what_is_there(request_, ends):
    script, started = ends
    script.append(WorkflowResult())
    assert run_until_done(replace(request_, links=1), Lines()) == 0
    assert started == [(("runs/default/ranges/0000000-0000999.json",), True)]


def test_a_failure_ends_it_and_its_own_words_are_printed(request_, ends):
    ends[0].append(failure("ListingError"))
    screen = Lines()
    assert run_until_done(request_, screen) == 1
    assert screen == ["why it failed"]


def test_it_keeps_trying_what_may_pass_and_says_so(request_, ends):
    script, started = ends
    script += [failure("ListingError"), ListingError("the source is away"), WorkflowResult()]
    screen = Lines()
    assert run_until_done(replace(request_, pause_s=0.05), screen) == 0
    assert [notify for _, notify in started] == [False] * 3
    assert screen[0] == "failed: list a (exit 66): ListingError"
    assert screen[1].startswith("trying again in 0 s, at ")
    assert screen[2] == "failed: the source is away"


def test_it_stops_at_once_where_waiting_is_no_use(request_, ends):
    ends[0].append(failure("PluginError"))
    screen = Lines()
    assert run_until_done(replace(request_, pause_s=0.05), screen) == 1
    assert screen == ["why it failed"]
    with pytest.raises(ConfigError):
        run_until_done(replace(request_, overrides=("ranges.last=x",), pause_s=0.05), screen)


def test_a_killed_workflow_ends_with_the_code_of_its_signal(request_, ends):
    ends[0].append(WorkflowResult(code=-9, output="the last words"))
    screen = Lines()
    assert run_until_done(request_, screen) == 137
    assert screen == ["the last words"]


def test_trying_again_trains_no_more_links_than_were_asked_for(request_, ends, monkeypatch):
    script, started = ends
    script += [failure("ListingError"), WorkflowResult()]
    receipt = Campaign.open(request_.config()).paths.receipt("0000000-0000999")

    def pause(*_):  # meanwhile the first link was trained
        receipt.parent.mkdir(parents=True)
        receipt.touch()

    monkeypatch.setattr(module, "_pause", pause)
    assert run_until_done(replace(request_, links=2, pause_s=0.05), Lines()) == 0
    first, second = (targets for targets, _ in started)
    assert first == second
    assert [name[-len("0000000-0000999.json") :] for name in first] == [
        "0000000-0000999.json",
        "0001000-0001999.json",
    ]


def test_a_notification_that_fails_does_not_hide_why_the_workflow_failed(request_, ends, monkeypatch):
    def refused(*_):
        raise ConfigError("the files are not counted yet")

    ends[0].append(failure("PluginError"))
    monkeypatch.setattr(module, "notify", refused)
    screen = Lines()
    changes = (*request_.overrides, "notify.failure='true'")
    assert run_until_done(replace(request_, overrides=changes, pause_s=0.05), screen) == 1
    assert screen == ["warning: notify.failure: the files are not counted yet", "why it failed"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("place", ["counting", "pause"])
def test_a_signal_while_no_workflow_runs_ends_it_at_once(request_, ends, monkeypatch, number, place):
    def interrupted(*_):
        os.kill(os.getpid(), number)
        pytest.fail("it went on")

    ends[0].append(failure("ListingError"))
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    if place == "counting":
        monkeypatch.setattr(module, "ensure_counted", interrupted)
    else:
        monkeypatch.setattr(module.time, "sleep", interrupted)
    screen = Lines()
    try:
        code = run_until_done(replace(request_, dry_run=False, pause_s=60.0), screen)
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    assert code == 128 + number
    assert screen[-1] == "Stopped as asked; continue with: crpipe run"
