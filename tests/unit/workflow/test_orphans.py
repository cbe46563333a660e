"""Slurm jobs whose workflow was killed; programs in the place of Slurm's keep the queue in files."""

import pytest

from crpipe.report.slurm_queue import LOGS
from crpipe.workflow import head
from crpipe.workflow.head import cancel_orphans, jobs_left
from slurm_stand_in import put_programs

# Answers with the files in queue/, and fails as often as there are files in down/.
SQUEUE = """\
set -- down/*
if [ -e "$1" ]; then rm "$1"; echo 'Unable to contact slurm controller' >&2; exit 1; fi
for job in queue/*; do
  [ -e "$job" ] && echo "${job#queue/}|RUNNING|n1|None|crpipe_a|$PWD|rule_split"
done
exit 0
"""
SCANCEL = 'echo "$@" >> cancelled; for job in "$@"; do mv "queue/$job" "ending-$job"; done\n'


@pytest.fixture
def queue(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(head, "ASK_AGAIN_S", 0.0)
    monkeypatch.setattr(head, "CHECK_S", 0.0)
    LOGS.mkdir(parents=True)
    for name in ("queue", "down"):
        (tmp_path / name).mkdir()
    put_programs(tmp_path / "bin", monkeypatch, squeue=SQUEUE, scancel=SCANCEL)
    return tmp_path / "queue"


def test_orphans_are_cancelled_and_gone_before_anything_else_begins(queue, tmp_path):
    for job in ("7", "8"):
        (queue / job).touch()
    said = []
    cancel_orphans("", said.append)
    assert said == ["A workflow in this directory was killed: cancelling its Slurm jobs 7 8."]
    assert (tmp_path / "cancelled").read_text() == "7 8\n"
    assert list(queue.iterdir()) == []


def test_the_job_that_the_workflow_itself_is_lives_on(queue, tmp_path):
    (queue / "9").touch()
    cancel_orphans("9", pytest.fail)
    assert not (tmp_path / "cancelled").exists()


def test_slurm_is_asked_until_it_answers(queue, tmp_path):
    (queue / "7").touch()
    for number in range(2):
        (tmp_path / "down" / str(number)).touch()
    said = []
    assert jobs_left("", said.append) == ["7"]
    again = "squeue failed: Unable to contact slurm controller; asking again in 0 s which jobs are left here"
    assert said == [again, again]


def test_without_slurm_nothing_is_asked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cancel_orphans("", pytest.fail)
