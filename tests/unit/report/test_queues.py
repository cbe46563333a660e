"""The jobs of this directory in the queue of a cluster."""

import json

import pytest

from crpipe.core.errors import QueueError
from crpipe.report.queues import (
    HTCONDOR_LOG,
    QUEUES,
    SLURM_LOGS,
    jobs_here,
    read_htcondor_queue,
    read_slurm_queue,
)
from slurm_stand_in import put_programs

SQUEUE = """\
7|RUNNING|n1|None|crpipe_a|{here}|rule_train_wildcards_0000000-0000999
8|PENDING||Priority|crpipe_a|{here}|rule_outliers_consolidated
9|RUNNING|n1|None|crpipe_b|{here}/elsewhere|rule_train_wildcards_0000000-0000999
10|RUNNING|n2|None|head|{here}|(null)
"""


def condor_q(here):
    def job(number, status, name, folder, log=HTCONDOR_LOG, **more):
        about = {"ClusterId": number, "JobStatus": status, "JobBatchName": name, "Iwd": str(folder)}
        return {**about, "UserLog": f"{folder}/{log}", **more}

    jobs = [
        job(7, 2, "train-3", here, RemoteHost="slot1@n1"),
        job(8, 5, "split-12", here, HoldReason="no disk there", LastRemoteHost="slot1@n2"),
        job(9, 2, "train-3", here / "elsewhere", RemoteHost="slot1@n1"),
        job(10, 2, "head-1", here, "head.log", RemoteHost="slot1@n1"),
        job(11, 4, "stage-1", here),
        job(12, 1, "outliers_consolidated-0", here),
    ]
    return json.dumps(jobs)


def test_jobs_in_slurm_are_named_with_their_node_or_what_they_wait_for(tmp_path):
    running, pending = read_slurm_queue(SQUEUE.format(here=tmp_path), str(tmp_path.resolve()))
    assert (running.work, running.state, running.where) == ("train 0000000-0000999", "running", "n1")
    assert (pending.work, pending.state, pending.where) == ("outliers_consolidated", "pending", "Priority")


def test_comments_of_other_jobs_may_hold_anything(tmp_path):
    noise = f"11|RUNNING|n2|None|mine|{tmp_path}|a|b\nsecond line of a comment\n"
    found = read_slurm_queue(noise + SQUEUE.format(here=tmp_path), str(tmp_path.resolve()))
    assert [job.number for job in found] == ["7", "8"]


def test_jobs_in_htcondor_are_named_with_their_node_or_why_they_are_held(tmp_path):
    running, held, waiting = read_htcondor_queue(condor_q(tmp_path), str(tmp_path.resolve()))
    about = (running.number, running.work, running.state, running.where)
    assert about == ("7", "train", "running", "slot1@n1")
    assert (held.number, held.work, held.state, held.where) == ("8", "split", "held", "no disk there")
    assert (waiting.work, waiting.state, waiting.where) == ("outliers_consolidated", "idle", "")


def test_a_log_may_be_named_from_the_folder_of_the_job(tmp_path):
    (row, *_) = json.loads(condor_q(tmp_path))
    row["UserLog"] = str(HTCONDOR_LOG)
    assert len(read_htcondor_queue(json.dumps([row]), str(tmp_path.resolve()))) == 1


def test_an_empty_queue_has_an_empty_answer():
    assert read_htcondor_queue("\n", "/") == ()


QUEUED = [("Slurm", "squeue", ["7", "8"]), ("HTCondor", "condor_q", ["7", "8", "12"])]


@pytest.fixture
def campaign(tmp_path, monkeypatch):
    """A directory from which jobs were submitted to both queues."""
    monkeypatch.chdir(tmp_path)
    SLURM_LOGS.mkdir(parents=True)
    HTCONDOR_LOG.parent.mkdir(parents=True)
    HTCONDOR_LOG.touch()
    return tmp_path


@pytest.mark.parametrize(("queue", "program", "_"), QUEUED)
def test_a_campaign_without_a_queue_asks_nobody(tmp_path, monkeypatch, queue, program, _):
    monkeypatch.chdir(tmp_path)
    put_programs(tmp_path / "bin", monkeypatch, **{program: "touch asked\n"})
    has_queue, _, _ = QUEUES[queue]
    assert not has_queue()
    assert jobs_here() == ()
    assert not (tmp_path / "asked").exists()


@pytest.mark.parametrize(("queue", "program", "numbers"), QUEUED)
def test_the_queue_is_what_its_program_answers(campaign, monkeypatch, queue, program, numbers):
    answer = {"squeue": SQUEUE.format(here=campaign), "condor_q": f"{condor_q(campaign)}\n"}[program]
    put_programs(campaign / "bin", monkeypatch, **{program: f"cat <<'END'\n{answer}END\n"})
    has_queue, ask, _ = QUEUES[queue]
    assert has_queue()
    assert [job.number for job in ask(10)] == numbers
    assert jobs_here() == ask(10)


@pytest.mark.parametrize(("queue", "program", "_"), QUEUED)
def test_no_answer_is_an_error_for_who_needs_one_and_an_empty_queue_for_who_looks(
    campaign, monkeypatch, queue, program, _
):
    put_programs(campaign / "bin", monkeypatch, **{program: "echo 'nobody is there' >&2; exit 1\n"})
    with pytest.raises(QueueError, match=f"{program} failed: nobody is there"):
        QUEUES[queue][1](10)
    assert jobs_here() == ()


@pytest.mark.parametrize(("queue", "program", "_"), QUEUED)
def test_an_answer_that_takes_too_long_is_none(campaign, monkeypatch, queue, program, _):
    put_programs(campaign / "bin", monkeypatch, **{program: "exec sleep 10\n"})
    with pytest.raises(QueueError, match=rf"{program} does not answer within 0\.1 s"):
        QUEUES[queue][1](0.1)


def test_both_queues_are_asked_and_one_without_an_answer_hides_no_other(campaign, monkeypatch):
    htcondor = f"cat <<'END'\n{condor_q(campaign)}\nEND\n"
    slurm = f"cat <<'END'\n{SQUEUE.format(here=campaign)}END\n"
    put_programs(campaign / "both", monkeypatch, squeue=slurm, condor_q=htcondor)
    assert [job.number for job in jobs_here()] == ["7", "8", "7", "8", "12"]
    put_programs(campaign / "one", monkeypatch, squeue="exit 1\n", condor_q=htcondor)
    assert [job.number for job in jobs_here()] == ["7", "8", "12"]
