"""What can go wrong on the way: killed processes, full disks, damaged files. Each is survived or refused."""

import base64
import os
import re
import shutil
import signal
import subprocess
from contextlib import contextmanager, suppress

import psutil
import pytest

from raw_files import write_parquet
from runs import LINKS, RANGES, children, job_of, wait_for

pytestmark = pytest.mark.timeout(900)

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")


def test_a_killed_head_leaves_no_lock_that_a_person_must_remove(begun):
    target = f"results/manifests/{RANGES[0]}.parquet"
    with begun.running(target) as head:
        assert wait_for(lambda: job_of(head, ["list"]), head)
        head.kill()
        head.wait()
        assert list((begun.folder / ".snakemake" / "locks").iterdir())
    assert "its locks are removed" in begun.snakemake(target).stdout


def test_a_looking_call_disturbs_no_running_workflow(begun):
    with begun.running(f"results/staged/{RANGES[0]}.parquet") as head:
        assert wait_for(lambda: job_of(head, ["stage"]), head)
        begun.snakemake("--dry-run --quiet all")
        assert head.wait() == 0


def empty(path, campaign):
    """Empty a file; give the exit code of status, and what its message says to type."""
    path.write_bytes(b"")
    for verb in ("summary", "status"):
        told = campaign.crpipe(verb)
        assert told.returncode == 65
        assert "Traceback" not in told.stderr
    return re.search(r"delete it \((rm \S+)\) and run `crpipe (.+)` again", told.stderr).groups()


@pytest.mark.parametrize("way", ["workflow", "command"])
def test_an_empty_receipt_in_a_finished_campaign_has_a_remedy_that_works(finished, tmp_path, way):
    campaign = finished.copy(tmp_path / "campaign")
    remove, again = empty(campaign.run / "ranges" / f"{RANGES[1]}.json", campaign)
    subprocess.run(remove.split(), cwd=campaign.folder, check=True)
    if way == "command":
        assert campaign.crpipe(*again.split()).returncode == 0
    assert campaign.crpipe("status").returncode == 0
    campaign.snakemake()
    assert campaign.receipts() == finished.receipts()
    assert campaign.jobs("all") == {}


def test_an_empty_ledger_in_a_finished_campaign_has_a_remedy_that_works(finished, tmp_path):
    campaign = finished.copy(tmp_path / "campaign")
    ledger = campaign.results / "ledgers" / f"{RANGES[1]}.json"
    whole = ledger.read_bytes()
    remove, again = empty(ledger, campaign)
    subprocess.run(remove.split(), cwd=campaign.folder, check=True)
    assert campaign.crpipe(*again.split()).returncode == 0
    assert ledger.read_bytes() == whole
    assert campaign.crpipe("status").returncode == 0


def test_a_report_is_made_after_a_workflow_was_killed(split, tmp_path):
    """Killed in training; and, which cannot be aimed at, between the end of a job and its record."""
    campaign, target = split.copy(tmp_path / "campaign"), "runs/tiny/figures/losses.svg"
    with campaign.running(target) as head:
        assert wait_for((campaign.run / "ranges" / f"{LINKS[0]}.json").exists, head)
        marks = campaign.folder / ".snakemake" / "incomplete"
        assert wait_for(lambda: [path for path in marks.rglob("*") if path.is_file()], head)
        head.kill()
        head.wait()
    campaign.snakemake(target)
    marked = base64.urlsafe_b64encode(f"runs/tiny/ranges/{LINKS[0]}.json".encode()).decode()
    (marks / marked).write_text('{"external_jobid": null}')
    campaign.snakemake(f"{target} --report report.html")
    assert "Training" in (campaign.folder / "report.html").read_text()
    assert not [path for path in marks.rglob("*") if path.is_file()]


def test_a_staged_table_that_a_killed_workflow_left_does_not_stop_a_range_from_being_made_again(
    split, tmp_path
):
    """As docs/operations.md says of damaged shards: delete their directory."""
    campaign = split.copy(tmp_path / "campaign")
    stale = campaign.results / "staged" / f"{RANGES[0]}.parquet"
    stale.parent.mkdir(exist_ok=True)
    shutil.copy(campaign.results / "manifests" / f"{RANGES[0]}.parquet", stale)
    before = campaign.contents()
    shutil.rmtree(campaign.results / "shards" / RANGES[0])
    campaign.snakemake(f"results/shards/{RANGES[0]}/manifest.json")
    assert not stale.exists()
    del before[str(stale.relative_to(campaign.folder))]
    assert campaign.contents() == before


@pytest.mark.parametrize("place", ["shards", "outliers"])
def test_a_damaged_shard_is_made_again_once_its_directory_is_deleted(split, tmp_path, place):
    campaign = split.copy(tmp_path / "campaign")
    before = campaign.contents()
    folder = campaign.results / place / RANGES[0]
    shard = min(folder.glob("*.muons.parquet"))
    shard.write_bytes(shard.read_bytes()[:-9])
    (campaign.results / "outliers" / "consolidated" / "manifest.json").unlink()
    told = campaign.crpipe("check", RANGES[0])
    assert told.returncode == 65
    assert f"{shard.name}: " in told.stdout
    shutil.rmtree(folder)
    campaign.snakemake(f"outliers_consolidated results/shards/{RANGES[0]}/manifest.json")
    assert campaign.contents() == before
    assert campaign.crpipe("check", RANGES[0]).returncode == 0


@contextmanager
def mounted(folder, options):
    """Put a small disk of its own under ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


@needs_root
def test_a_full_disk_is_named_and_more_space_is_all_it_takes(begun):
    begun.change(ranges={"last": 1})
    with mounted(begun.results, "size=64k"):
        done = begun.snakemake("outliers_consolidated", check=False)
        assert done.returncode == 74
        told = done.stdout[done.stdout.index("crpipe: the workflow did not finish.") :]
        assert "(exit 74)" in told or "the disk is full" in told or "GiB free" in told
        assert "Traceback" not in told
        subprocess.run(["mount", "-o", "remount,size=400m", begun.results], check=True)
        begun.snakemake("outliers_consolidated")


@needs_root
def test_a_disk_without_room_for_locks_of_snakemake_is_named(begun):
    """The lease of the head needs no room where it was written before."""
    target = f"results/manifests/{RANGES[0]}.parquet"
    with mounted(begun.folder / ".snakemake", "size=300k"):
        begun.snakemake(f"{target} --unlock")
        with suppress(OSError), (begun.folder / ".snakemake" / "fill").open("wb", buffering=0) as file:
            while file.write(bytes(1 << 12)):
                pass
        done = begun.snakemake(target, check=False)
    assert done.returncode == 74
    assert "Traceback" not in done.stdout
    assert "crpipe: .snakemake: cannot write: the disk is full" in done.stdout


@needs_root
@pytest.mark.parametrize("program", ["crpipe", "snakemake"])
def test_a_disk_that_fills_up_while_a_link_trains_is_named_once(split, tmp_path, program):
    with mounted(tmp_path / "disk", "size=300m"):
        campaign = split.copy(tmp_path / "disk" / "campaign")
        (campaign.folder / "head.log").symlink_to(tmp_path / "head.log")
        with campaign.running("train_all", program) as head:
            assert wait_for(lambda: list(campaign.run.glob("store/*/snapshot-*.pt")), head)
            with suppress(OSError), (tmp_path / "disk" / "fill").open("wb", buffering=0) as file:
                while file.write(bytes(1 << 16)):
                    pass
            assert head.wait() == 74
    told = (tmp_path / "head.log").read_text()
    assert told[told.index("crpipe: the workflow did not finish.") :].count("disk is full") == 1
    assert "Traceback" not in told
    assert "write permissions" not in told


@needs_root
def test_a_results_directory_that_cannot_be_written_is_named(begun):
    with mounted(begun.results, "ro,size=1m"):
        done = begun.crpipe("list", RANGES[0])
    assert done.returncode == 74
    assert "results" in done.stderr
    assert "read-only" in done.stderr


def test_a_file_in_the_place_of_the_results_directory_is_named(begun):
    begun.results.write_text("")
    done = begun.crpipe("list", RANGES[0])
    assert done.returncode == 77
    assert "a file is where a directory is needed" in done.stderr


@pytest.mark.parametrize(("program", "number"), [("snakemake", signal.SIGTERM), ("crpipe", signal.SIGINT)])
def test_a_stopped_workflow_ends_with_a_snapshot_and_is_resumed(split, finished, tmp_path, program, number):
    """The signal goes to the head alone; the same command ends with the same checkpoints."""
    campaign = split.copy(tmp_path / "campaign")
    with campaign.running("train_all", program) as head:
        assert wait_for((campaign.run / "store" / RANGES[0] / "metrics.jsonl").exists, head)
        jobs = children(head)
        head.send_signal(number)
        head.wait()
        assert not [process for process in jobs if process.is_running()]
    assert head.returncode == 128 + number
    told = (campaign.folder / "head.log").read_text().strip().splitlines()
    words = "snakemake train_all --configfile" if program == "snakemake" else "crpipe run train_all --config"
    assert told[-1] == f"Stopped as asked; continue with: {words} config/tiny.yaml"
    assert not [line for line in told if "Fix the cause" in line or "Error in rule" in line]
    rows = [row for row in campaign.journal() if row.get("verb") == "train"]
    assert rows[-1]["kind"] == "Interrupted"
    with campaign.running("train_all", program) as head:
        assert head.wait() == 0
    assert campaign.receipts(RANGES) == finished.receipts(RANGES)


def test_a_stopped_workflow_whose_jobs_got_the_signal_too_is_resumed(split, finished, tmp_path):
    """As Ctrl-C in a terminal, which reaches the head and its jobs."""
    campaign = split.copy(tmp_path / "campaign")
    with campaign.running("train_all") as head:
        assert wait_for((campaign.run / "store" / RANGES[0] / "metrics.jsonl").exists, head)
        for process in [head, *children(head)]:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGINT)
        head.wait()
    assert not [process for process in children(head) if process.is_running()]
    assert campaign.jobs("train_all")["train"] >= 2
    campaign.snakemake("train_all")
    assert campaign.receipts(RANGES) == finished.receipts(RANGES)


def test_a_source_that_is_away_at_first_is_waited_for(begun):
    config = begun.folder / "config" / "tiny.yaml"
    config.write_text(config.read_text().replace("synthetic://", "raw/{range}/*.parquet"))
    (folder := begun.folder / "away" / RANGES[0]).mkdir(parents=True)
    write_parquet(folder / "a.parquet", [3, 0, 50])
    words = f"results/manifests/{RANGES[0]}.parquet --keep-trying --pause-minutes 0.02"
    with begun.running(words, "crpipe") as head:
        log = begun.folder / "head.log"
        assert wait_for(lambda: "trying again in" in log.read_text(), head)
        folder.parent.rename(begun.folder / "raw")
        assert head.wait() == 0
    told = log.read_text()
    assert f"failed: list {RANGES[0]} (exit 66): range {RANGES[0]}: " in told
    assert "1 job done" in told


def test_a_second_job_on_the_same_range_waits_and_adopts(split, tmp_path):
    campaign = split.copy(tmp_path / "campaign")
    with campaign.running(f"runs/tiny/ranges/{RANGES[0]}.json") as head:
        assert wait_for((campaign.run / "store" / RANGES[0] / "metrics.jsonl").exists, head)
        second = campaign.crpipe("train", RANGES[0])
        assert head.wait() == 0
    assert second.returncode == 0
    assert "its checkpoint is adopted" in second.stderr
    assert len(list((campaign.run / "store" / RANGES[0]).glob("checkpoint-*.pt"))) == 1
