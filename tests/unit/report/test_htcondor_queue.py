"""The jobs of this directory in HTCondor's queue."""

import json

import pytest

from crpipe.core.errors import QueueError
from crpipe.report.htcondor_queue import (
    LOG,
    ask_htcondor,
    has_htcondor,
    htcondor_jobs_here,
    read_htcondor_queue,
)
from slurm_stand_in import put_programs


def answer(here):
    def job(number, status, name, folder, log=LOG, **more):
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


@pytest.fixture
def campaign(tmp_path, monkeypatch):
    """A directory from which HTCondor jobs were submitted."""
    monkeypatch.chdir(tmp_path)
    LOG.parent.mkdir(parents=True)
    LOG.touch()
    return tmp_path


def test_jobs_of_this_directory_are_named_with_their_node_or_why_they_are_held(campaign):
    running, held, waiting = read_htcondor_queue(answer(campaign), str(campaign.resolve()))
    assert (running.number, running.work, running.state, running.where) == (
        "7",
        "train",
        "running",
        "slot1@n1",
    )
    assert (held.number, held.work, held.state, held.where) == ("8", "split", "held", "no disk there")
    assert (waiting.work, waiting.state, waiting.where) == ("outliers_consolidated", "idle", "")


def test_a_log_may_be_named_from_the_folder_of_the_job(campaign):
    (row, *_) = json.loads(answer(campaign))
    row["UserLog"] = str(LOG)
    assert len(read_htcondor_queue(json.dumps([row]), str(campaign.resolve()))) == 1


def test_an_empty_queue_has_an_empty_answer():
    assert read_htcondor_queue("\n", "/") == ()


def test_a_campaign_without_htcondor_asks_nobody(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    put_programs(tmp_path / "bin", monkeypatch, condor_q="touch asked\n")
    assert not has_htcondor()
    assert htcondor_jobs_here() == ()
    assert not (tmp_path / "asked").exists()


def test_the_queue_is_what_condor_q_answers(campaign, monkeypatch):
    put_programs(campaign / "bin", monkeypatch, condor_q=f"cat <<'END'\n{answer(campaign)}\nEND\n")
    assert [job.number for job in ask_htcondor(10)] == ["7", "8", "12"]
    assert htcondor_jobs_here() == ask_htcondor(10)


def test_no_answer_is_an_error_for_who_needs_one_and_an_empty_queue_for_who_looks(campaign, monkeypatch):
    put_programs(campaign / "bin", monkeypatch, condor_q="echo 'schedd is down' >&2; exit 1\n")
    with pytest.raises(QueueError, match="condor_q failed: schedd is down"):
        ask_htcondor(10)
    assert htcondor_jobs_here() == ()


def test_an_answer_that_takes_too_long_is_none(campaign, monkeypatch):
    put_programs(campaign / "bin", monkeypatch, condor_q="exec sleep 10\n")
    with pytest.raises(QueueError, match=r"does not answer within 0\.1 s"):
        ask_htcondor(0.1)
