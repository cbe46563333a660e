"""When a failed workflow is started again."""

import pytest

from crpipe.core.errors import ConfigError, ListingError
from crpipe.workflow.run import LONGEST_S, MOST, RetryPolicy, WorkflowResult, described


def failed(*kinds, finished=0):
    rows = [{"verb": "stage", "name": "a", "kind": kind, "cause": f"(exit 66): {kind}"} for kind in kinds]
    return WorkflowResult(code=1, began=True, finished=finished, failures=rows)


def test_pauses_grow_to_an_hour_and_end():
    patience = RetryPolicy(60.0)
    pauses = [patience.after(failed("TransferError")) for _ in range(MOST + 1)]
    assert pauses[:4] == [60.0, 120.0, 240.0, 480.0]
    assert pauses[-2:] == [LONGEST_S, 0.0]


def test_progress_makes_the_next_pause_short_again():
    patience = RetryPolicy(60.0)
    assert [patience.after(failed("DiskError")) for _ in range(3)][-1] == 240.0
    assert patience.after(failed("DiskError", finished=1)) == 60.0


@pytest.mark.parametrize("kind", ["PluginError", "ShardError", "DivergenceError", "AccessError", "TypeError"])
def test_what_no_waiting_repairs_is_not_tried_again(kind):
    assert RetryPolicy(60.0).after(failed("TransferError", kind)) == 0.0


@pytest.mark.parametrize("kind", ["TransferError", "DiskError", "QueueError", "Interrupted", "OSError", ""])
def test_what_may_pass_is_tried_again(kind):
    assert RetryPolicy(60.0).after(failed(kind)) == 60.0


@pytest.mark.parametrize(
    ("code", "began", "pause"), [(2, False, 0), (69, False, 0), (75, False, 60), (1, False, 0), (1, True, 60)]
)
def test_an_end_before_any_job_is_judged_by_its_code(code, began, pause):
    assert RetryPolicy(60.0).after(WorkflowResult(code=code, began=began)) == pause


def test_an_error_before_the_workflow_is_judged_by_its_class():
    assert RetryPolicy(60.0).after_error(ListingError("away")) == 60.0
    assert RetryPolicy(60.0).after_error(ConfigError("wrong")) == 0.0


def test_what_failed_is_said_in_one_line():
    assert described(failed("ListingError", "DiskError")) == "stage a (exit 66): ListingError (and 1 more)"
    assert described(WorkflowResult(code=-9)) == "workflow: ended with exit code -9"
    killed = WorkflowResult(
        failures=[{"verb": "train", "name": "a", "kind": "", "cause": "ran out of memory"}]
    )
    assert described(killed) == "train a: ran out of memory"
