"""The one workflow process of a directory: its lease, orphans, how it stops and what it says at its end."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from crpipe.campaign.campaign import Campaign
from crpipe.campaign.raw_files import lease_folder
from crpipe.config.loading import load_config
from crpipe.core import lease
from crpipe.core.errors import ConfigError, DiskError, LeaseError
from crpipe.core.lease import Mount
from crpipe.core.paths import Paths
from crpipe.report.queues import HTCONDOR_LOG, SLURM_LOGS
from crpipe.workflow import head
from crpipe.workflow.head import (
    cancel_orphans,
    check_folder,
    drop_spent_tables,
    is_page_due,
    jobs_left,
    refused_write,
    remove_locks,
    remove_marks,
    resume_deletions,
    take_lease,
    what_failed,
)
from crpipe.workflow.monitor import WorkflowRun
from named import READERS
from slurm_stand_in import put_programs

NAME = "0000000-0000999"


def test_a_second_head_is_refused_and_a_look_is_allowed(tmp_path, monkeypatch):
    monkeypatch.setattr(head, "WAIT_S", 0.0)
    said = []
    with take_lease(tmp_path, executes=True, say=said.append):
        assert take_lease(tmp_path, executes=False, say=said.append) is None
        with pytest.raises(LeaseError, match="already being worked on by process"):
            take_lease(tmp_path, executes=True, say=said.append)
    with take_lease(tmp_path, executes=True, say=said.append) as claim:
        assert claim is not None


def test_a_look_needs_no_lease_where_none_can_be_had(tmp_path):
    """As on a file system without locks, or in a directory of someone else."""
    (tmp_path / "lease").symlink_to(tmp_path / "elsewhere")
    assert take_lease(tmp_path, executes=False, say=pytest.fail) is None
    with pytest.raises(DiskError):
        take_lease(tmp_path, executes=True, say=pytest.fail)


def test_locks_are_removed_and_counted(tmp_path):
    locks = tmp_path / "locks"
    assert remove_locks(locks) == 0
    locks.mkdir()
    for name in ("0.input.lock", "0.output.lock"):
        (locks / name).touch()
    assert remove_locks(locks) == 2
    assert list(locks.iterdir()) == []


def test_marks_of_incomplete_outputs_are_removed_at_any_depth(tmp_path):
    marks = tmp_path / "incomplete"
    remove_marks(marks)
    (marks / "@cmVzdWx0").mkdir(parents=True)
    for path in (marks / "cmVzdWx0cw==", marks / "@cmVzdWx0" / "cw=="):
        path.touch()
    remove_marks(marks)
    assert [path for path in marks.rglob("*") if path.is_file()] == []


@pytest.fixture
def of_another_host(tmp_path, monkeypatch):
    """The lease of a head that was killed on another host, in a directory whose locks may be local."""
    monkeypatch.setattr(lease, "WATCH_S", 0.3)
    monkeypatch.setattr(head, "mount_of", lambda _: Mount("/data", "lustre", ("rw", "localflock")))
    (tmp_path / "lease").write_text(json.dumps({"host": "login2", "pid": 77, "id": "x", "beat": 3}))
    return tmp_path


def test_jobs_of_a_head_on_another_host_are_not_cancelled_unasked(of_another_host):
    before = (of_another_host / "lease").read_text()
    for _ in range(2):
        with pytest.raises(LeaseError) as caught:
            take_lease(of_another_host, executes=True, say=print, jobs=lambda: ["7", "8"])
        assert "process 77 on login2" in str(caught.value)
        assert "its jobs 7 8 would be cancelled" in str(caught.value)
        assert "lustre at /data with localflock" in str(caught.value)
        assert (of_another_host / "lease").read_text() == before
    asked = str(caught.value).partition("then: ")[2].partition(",")[0]
    assert asked == f"rm {of_another_host / 'lease'}"
    Path(asked.removeprefix("rm ")).unlink()
    with take_lease(of_another_host, executes=True, say=print, jobs=lambda: ["7", "8"]) as claim:
        assert claim is not None


@pytest.mark.parametrize("kind", ["none left", "locks of all hosts"])
def test_without_jobs_or_with_locks_that_all_hosts_see_nobody_is_asked(of_another_host, monkeypatch, kind):
    if kind != "none left":
        monkeypatch.setattr(head, "mount_of", lambda _: Mount("/data", "lustre", ("rw", "flock")))
    jobs = [] if kind == "none left" else ["7"]
    with take_lease(of_another_host, executes=True, say=print, jobs=lambda: jobs) as claim:
        assert claim is not None


def test_a_look_does_not_take_the_place_of_a_head_on_another_host(of_another_host):
    before = (of_another_host / "lease").read_text()
    assert take_lease(of_another_host, executes=False, say=print) is None
    assert (of_another_host / "lease").read_text() == before


@pytest.mark.parametrize("name", ["a$(touch x)", "a`b`", 'a"b', "a\\b", "50%", "a\nb"])
def test_a_directory_that_a_submission_would_execute_or_change_is_refused(name):
    with pytest.raises(ConfigError, match="move the campaign to a directory without it"):
        check_folder(Path("/data") / name)


def test_other_directories_can_submit():
    check_folder(Path("/data/été 'x' (new); & *"))


def test_jobs_that_see_no_file_of_the_workflow_need_packs():
    with pytest.raises(ConfigError, match="set packs: true"):
        check_folder(Path("/data"), is_shared=False)


@pytest.fixture
def spent(tmp_path):
    """A split range whose staged table was left; all outputs exist, and the raw copies do not."""
    paths = Paths(tmp_path, tmp_path / "runs", "default")
    outputs = (
        paths.shard_manifest(NAME),
        paths.outlier_manifest(NAME),
        paths.multiplicity(NAME),
        paths.histogram(NAME),
        paths.ledger(NAME),
        paths.split_record(NAME),
        paths.staged(NAME),
    )
    for path in outputs:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return paths


def test_a_staged_table_without_use_is_removed(spent):
    drop_spent_tables(spent, [NAME, "0001000-0001999"])
    assert not spent.staged(NAME).exists()


def test_a_staged_table_is_removed_when_the_shards_were_deleted(spent):
    spent.shard_manifest(NAME).unlink()
    spent.split_record(NAME).unlink()
    drop_spent_tables(spent, [NAME])
    assert not spent.staged(NAME).exists()


@pytest.mark.parametrize("case", ["raw copies", "outputs to restore"])
def test_a_staged_table_that_a_split_needs_is_kept(spent, case):
    if case == "raw copies":
        spent.raw(NAME).mkdir()
    else:
        spent.ledger(NAME).unlink()
    drop_spent_tables(spent, [NAME])
    assert spent.staged(NAME).exists()


def test_a_split_that_died_while_it_deleted_its_raw_copies_is_run_again(spent):
    """Its outputs exist: without a missing one the workflow would never come back to the copies."""
    spent.raw(NAME).mkdir()
    resume_deletions(spent, [NAME, "0001000-0001999"])
    assert not spent.ledger(NAME).exists()
    assert spent.staged(NAME).exists()
    assert spent.split_record(NAME).exists()


@pytest.mark.parametrize("case", ["nothing is left", "not split", "no record"])
def test_a_range_is_not_split_again_without_need(spent, case):
    if case != "nothing is left":
        spent.raw(NAME).mkdir()
    if case == "not split":
        spent.shard_manifest(NAME).unlink()
    if case == "no record":
        spent.split_record(NAME).unlink()
    resume_deletions(spent, [NAME])
    assert spent.ledger(NAME).exists()


@pytest.mark.parametrize("place", ["raw copies", "shards"])
def test_what_a_workflow_of_another_directory_works_on_is_left_alone(spent, place):
    """Runs in two directories may share their results."""
    spent.raw(NAME).mkdir()
    folder = lease_folder(spent.raw(NAME)) if place == "raw copies" else spent.shards(NAME)
    with lease.lease(folder, wait_s=0.0, say=print):
        resume_deletions(spent, [NAME])
        assert spent.ledger(NAME).exists()
    resume_deletions(spent, [NAME])
    assert not spent.ledger(NAME).exists()


def test_folders_that_cannot_be_written_are_found_and_nothing_is_left_in_the_others(tmp_path):
    assert refused_write([tmp_path / "not-there", tmp_path]) is None
    (tmp_path / "file").touch()
    assert "a file is where a directory is needed" in str(refused_write([tmp_path, tmp_path / "file"]))
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


# Answers with the files in queue/, and fails as often as there are files in down/.
SQUEUE = """\
set -- down/*
if [ -e "$1" ]; then rm "$1"; echo 'Unable to contact slurm controller' >&2; exit 1; fi
for job in queue/*; do
  [ -e "$job" ] && echo "${job#queue/}|RUNNING|n1|None|crpipe_a|$PWD|rule_split"
done
exit 0
"""


CONDOR_RM = 'echo "$@" >> removed; echo "[]" > answer\n'
SCANCEL = 'echo "$@" >> cancelled; for job in "$@"; do mv "queue/$job" "ending-$job"; done\n'


@pytest.fixture
def queue(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(head, "ASK_AGAIN_S", 0.0)
    monkeypatch.setattr(head, "CHECK_S", 0.0)
    SLURM_LOGS.mkdir(parents=True)
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


def test_orphans_in_another_queue_are_cancelled_there(queue, tmp_path, monkeypatch):
    row = {"ClusterId": 9, "JobStatus": 2, "JobBatchName": "train-1", "Iwd": str(tmp_path)}
    HTCONDOR_LOG.parent.mkdir(parents=True)
    HTCONDOR_LOG.touch()
    (tmp_path / "answer").write_text(json.dumps([{**row, "UserLog": str(HTCONDOR_LOG)}]))
    answers = {"squeue": "exit 0\n", "condor_q": "cat answer\n", "condor_rm": CONDOR_RM}
    put_programs(tmp_path / "others", monkeypatch, **answers)
    said = []
    assert jobs_left("9", said.append) == ["9"]  # the number of a Slurm job
    cancel_orphans("9", said.append)
    assert said == ["A workflow in this directory was killed: cancelling its HTCondor jobs 9."]
    assert (tmp_path / "removed").read_text() == "9\n"


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


CALL = WorkflowRun(("snakemake", "all", "--config", "split={outlier_above: 7}"))


@pytest.fixture
def campaign(tmp_path):
    places = (f"results={tmp_path}/results", f"runs={tmp_path}/runs")
    reader = f"source.reader={READERS['bundles']}"
    config = Campaign.open(load_config((), ("ranges.last=2999", reader, *places)))
    config.paths.receipt("0000000-0000999").parent.mkdir(parents=True)
    config.paths.receipt("0000000-0000999").touch()
    return config


def test_the_last_lines_are_the_command_that_continues(campaign):
    lines = what_failed(campaign, "", {}, CALL, training=False).splitlines()
    assert lines[1:] == [
        "crpipe: the workflow did not finish.",
        "  Fix the cause; the same command continues where this one stopped:",
        "    snakemake all --config 'split={outlier_above: 7}'",
    ]


def test_a_disk_that_the_workflow_cannot_write_is_all_that_is_told(campaign):
    full = DiskError(".snakemake: cannot write: the disk is full")
    messages = "Error in rule split:\n    jobid: 3\n    log: x/logs/split/a.log\n"
    text = what_failed(campaign, messages, {}, CALL, training=False, machine=full)
    assert text.splitlines()[2] == "  .snakemake: cannot write: the disk is full"
    assert "split a" not in text


def test_a_page_is_due_after_the_last_job(campaign):
    page, journal = campaign.paths.report(), campaign.paths.train_journal()
    assert is_page_due(campaign.paths)
    for path, time in ((page, 2), (journal, 1)):
        path.touch()
        os.utime(path, (time, time))
    assert not is_page_due(campaign.paths)
    os.utime(journal, (3, 3))
    assert is_page_due(campaign.paths)


def test_training_says_at_which_range_it_waits(campaign):
    text = what_failed(campaign, "", {}, CALL, training=True)
    assert "Training waits for range 0001000-0001999 (2 of 3 still to do)." in text


def test_a_range_that_is_skipped_is_named_and_training_does_not_wait_for_it(campaign):
    run = WorkflowRun(CALL.typed, skipped={"0001000-0001999": "why"})
    text = what_failed(campaign, "", {}, run, training=True, more=["b is not skipped"])
    assert "Training waits for range 0002000-0002999 (1 of 2 still to do)." in text
    assert "0001000-0001999 is skipped from now on (ranges.on_failure), as long as" in text
    assert "  b is not skipped\n  The same command continues where this one stopped:\n" in text


def test_failed_jobs_are_named_with_their_logs(campaign):
    log = campaign.paths.results / "logs" / "split" / "0001000-0001999.log"
    messages = f"Error in rule split:\n    jobid: 3\n    log: {log} (check log file(s) for error details)\n"
    text = what_failed(campaign, messages, {}, CALL, training=False)
    assert "split 0001000-0001999" in text
    assert str(log) in text


# How it stops, in processes of their own

PROGRAM = """
import os, sys, time
from crpipe.workflow.head import end_early, head_stop, stop_jobs
from crpipe.workflow.monitor import RUN
RUN.typed = ("crpipe", "run")
jobs, ended = {1}, []
def end(job):
    ended.append(job)
    jobs.discard(job)
stop = head_stop()
"""
EARLY = 'end_early(stop, lambda: os.write(1, b"clean\\n"))\nprint("ready", flush=True)\ntime.sleep(60)\n'
LATE = """
stop_jobs(stop, lambda: set(jobs), end)
try:
    print("ready", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    jobs.add(2)  # was about to begin
    until = time.monotonic() + 20
    while len(ended) < 2 and time.monotonic() < until:
        time.sleep(0.1)
    print("stopping", flush=True)
    sys.stdin.readline()
    print(sorted(ended), stop.exit_code, flush=True)
"""


def started(more):
    child = subprocess.Popen(
        ["env", "--default-signal=INT,HUP", sys.executable, "-c", PROGRAM + more],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout.readline() == "ready\n"
    return child


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_local_jobs_get_the_signal_once_also_those_that_were_about_to_begin(number):
    child = started(LATE)
    child.send_signal(number)
    assert child.stdout.readline() == "stopping\n"
    out, err = child.communicate("\n", timeout=30)
    assert out == f"[1, 2] {128 + number}\n"
    assert "crpipe: stopping: " in err


def test_a_second_signal_interrupts_nothing():
    child = started(LATE)
    child.send_signal(signal.SIGINT)
    assert child.stdout.readline() == "stopping\n"
    child.send_signal(signal.SIGINT)
    while "already stopping" not in (line := child.stderr.readline()):
        assert line
    out, _ = child.communicate("\n", timeout=30)
    assert out.startswith("[1, 2]")


@pytest.mark.parametrize("watched", [False, True])
def test_before_there_are_jobs_the_process_cleans_up_and_ends_at_once(watched):
    child = started(f"RUN.report = {1 if watched else None}\n{EARLY}")
    child.send_signal(signal.SIGTERM)
    out, err = child.communicate(timeout=30)
    assert (out, child.returncode) == ("clean\n", 143)
    assert err == ("" if watched else "\nStopped as asked; continue with: crpipe run\n")
