"""The one workflow process of a directory."""

import json
from pathlib import Path

import pytest

from crpipe.campaign.raw_files import lease_folder
from crpipe.core import lease
from crpipe.core.errors import ConfigError, DiskError, LeaseError
from crpipe.core.lease import Mount
from crpipe.core.paths import Paths
from crpipe.workflow import head
from crpipe.workflow.head import (
    check_folder,
    drop_spent_tables,
    refused_write,
    remove_locks,
    remove_marks,
    resume_deletions,
    take_lease,
)

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
