"""The jobs of this directory in Slurm's queue."""

import pytest

from crpipe.core.errors import QueueError
from crpipe.report.slurm_queue import LOGS, ask_slurm, has_slurm, jobs_here, read_queue
from slurm_stand_in import put_programs

ANSWER = """\
7|RUNNING|n1|None|crpipe_a|{here}|rule_train_wildcards_0000000-0000999
8|PENDING||Priority|crpipe_a|{here}|rule_outliers_consolidated
9|RUNNING|n1|None|crpipe_b|{here}/elsewhere|rule_train_wildcards_0000000-0000999
10|RUNNING|n2|None|head|{here}|(null)
"""


@pytest.fixture
def campaign(tmp_path, monkeypatch):
    """A directory from which Slurm jobs were submitted."""
    monkeypatch.chdir(tmp_path)
    LOGS.mkdir(parents=True)
    return tmp_path


def test_jobs_of_this_directory_are_named_with_their_node_or_what_they_wait_for(tmp_path):
    running, pending = read_queue(ANSWER.format(here=tmp_path), str(tmp_path.resolve()))
    assert (running.work, running.state, running.where) == ("train 0000000-0000999", "running", "n1")
    assert (pending.work, pending.state, pending.where) == ("outliers_consolidated", "pending", "Priority")


def test_comments_of_other_jobs_may_hold_anything(tmp_path):
    noise = f"11|RUNNING|n2|None|mine|{tmp_path}|a|b\nsecond line of a comment\n"
    found = read_queue(noise + ANSWER.format(here=tmp_path), str(tmp_path.resolve()))
    assert [job.number for job in found] == ["7", "8"]


def test_a_campaign_without_slurm_asks_nobody(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    put_programs(tmp_path / "bin", monkeypatch, squeue="touch asked\n")
    assert not has_slurm()
    assert jobs_here() == ()
    assert not (tmp_path / "asked").exists()


def test_the_queue_is_what_squeue_answers(campaign, monkeypatch):
    put_programs(campaign / "bin", monkeypatch, squeue=f"cat <<END\n{ANSWER.format(here=campaign)}END\n")
    assert [job.number for job in ask_slurm(10)] == ["7", "8"]
    assert jobs_here() == ask_slurm(10)


def test_no_answer_is_an_error_for_who_needs_one_and_an_empty_queue_for_who_looks(campaign, monkeypatch):
    put_programs(campaign / "bin", monkeypatch, squeue="echo 'controller is down' >&2; exit 1\n")
    with pytest.raises(QueueError, match="squeue failed: controller is down"):
        ask_slurm(10)
    assert jobs_here() == ()


def test_an_answer_that_takes_too_long_is_none(campaign, monkeypatch):
    put_programs(campaign / "bin", monkeypatch, squeue="exec sleep 10\n")
    with pytest.raises(QueueError, match=r"does not answer within 0\.1 s"):
        ask_slurm(0.1)
