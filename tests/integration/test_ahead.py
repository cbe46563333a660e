"""Few raw files: one process does what jobs would do, is killed like them, and leaves the rest to them."""

import os
import re
import signal
from pathlib import Path

import pytest

from crpipe.campaign.campaign import Campaign as CampaignFiles
from crpipe.config.loading import load_config
from crpipe.workflow.ahead import GALLERY, commands
from kills import aimed, remaining
from runs import RANGES, Campaign, wait_for
from same_results import products

DEVNULL = Path(os.devnull)  # where the check of the configuration prints to, which is no job

pytestmark = [pytest.mark.compiler, pytest.mark.timeout(1800)]


def begin(folder, raw):
    """Begin a campaign that reads the raw files in a folder."""
    campaign = Campaign.begin(folder)
    campaign.change(source={"uri": f"{raw}/{{range}}/*.parquet", "prefetch_ranges": 1})
    return campaign


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    folder = tmp_path_factory.mktemp("raw")
    maker = Campaign.begin(folder / "maker")
    for name in RANGES:
        done = maker.crpipe("simulate", name, "--out", str(folder / name))
        assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def by_jobs(raw, tmp_path_factory):
    """One that copies its raw files: each step is a job."""
    campaign = begin(tmp_path_factory.mktemp("jobs") / "campaign", raw)
    campaign.change(source={"copy_local": True})
    assert "one process" not in campaign.snakemake("all").stdout
    return campaign


def promised(campaign):
    """Read what has promised bytes, and the figures of evaluations; the times of steps are in other ones."""
    evaluated = {
        name: data
        for name, data in campaign.contents().items()
        if name.startswith(("runs/tiny/evaluation/", "runs/tiny/figures/evaluation/"))
    }
    assert "runs/tiny/figures/evaluation" in {name.rpartition("/")[0] for name in evaluated}
    found = products(campaign) | evaluated
    kept = {name: data for name, data in found.items() if not name.endswith(".snakemake_timestamp")}
    assert len(kept) > 50
    return kept


def check_same(campaign, by_jobs):
    ours, theirs = promised(campaign), promised(by_jobs)
    assert [name for name in theirs if ours.get(name) != theirs[name]] == []
    assert {*ours} == {*theirs}
    assert campaign.jobs("all") == {}
    checked = campaign.crpipe("check")
    assert (checked.returncode, checked.stdout.splitlines()[-1:]) == (0, ["nothing is wrong"])


@pytest.mark.parametrize("target", ["all", "progress", "outliers_consolidated"])
def test_its_commands_and_logs_are_those_of_the_rules(raw, tmp_path, target):
    begun = begin(tmp_path / "campaign", raw)
    told = begun.snakemake(f"{target} --dry-run --printshellcmds").stdout
    rules = re.findall(r"exec crpipe (?:--\w+ \S+ )*((?!--).+?) +> (\S+) 2>&1", told)
    config = load_config([begun.folder / "config" / name for name in ("config.yaml", "tiny.yaml")], ())
    ahead = [command for command in commands(CampaignFiles.open(config), (target,)) if command.log != DEVNULL]
    ours = [(" ".join(each.words), str(each.log)) for each in ahead if each.words != (GALLERY,)]
    assert sorted(ours) == sorted(rules)
    assert len(ours) >= 10


def test_one_process_makes_what_jobs_make(raw, by_jobs, tmp_path):
    campaign = begin(tmp_path / "campaign", raw)
    told = campaign.snakemake("all").stdout
    assert "one process works on them" in told
    starts = [row for row in campaign.journal() if (row["what"], row["range"]) == ("start", RANGES[0])]
    assert {"list", "stage", "split", "train"} <= {row["verb"] for row in starts}
    assert len({row["pid"] for row in starts}) == 1
    # On a busy machine a minute may not do for all: jobs do the rest.
    assert ("Nothing to be done" in told) == ("steps done in one process" in told)
    assert "held-out evaluation" in told  # the summary
    assert (campaign.run / "report.html").exists()
    check_same(campaign, by_jobs)
    for name in RANGES:  # the logs of the jobs
        assert campaign.crpipe("logs", name, "--verb", "split").returncode == 0
    campaign.snakemake("--report report.html")
    (campaign.run / "report.html").unlink()  # killed, or on a full disk, after the last job
    assert "one process" not in campaign.snakemake("all").stdout
    assert (campaign.run / "report.html").exists()


AIMED = [
    ("results/shards/", 4, ("group", "KILL")),
    ("/store/", 9, ("head", "KILL")),
    ("/store/", 9, ("group", "TERM")),
    ("evaluation/outliers/", 3, ("job", "STOP then KILL")),
]


def test_it_is_killed_at_its_work_and_the_same_command_ends_in_the_same_bytes(raw, by_jobs, tmp_path):
    campaign = begin(tmp_path / "campaign", raw)
    for place, which, kind in AIMED:
        aimed(campaign, campaign.command("all --cores 2"), "ahead", place, which, kind, tmp_path)
    check_same(campaign, by_jobs)  # where it is killed alone, the workflow goes on with jobs


def test_a_signal_ends_it_with_a_snapshot_and_the_command_that_continues(raw, tmp_path):
    campaign = begin(tmp_path / "campaign", raw)

    def is_training():
        return any(campaign.run.glob("store/*/snapshot-*.pt"))

    with campaign.running("all") as head:
        assert wait_for(is_training, head)
        head.send_signal(signal.SIGINT)
        assert head.wait(120) == 128 + signal.SIGINT
        log = (campaign.folder / "head.log").read_text()
    assert "Stopped as asked; continue with: snakemake all" in log
    assert "Traceback" not in log
    assert remaining(campaign) == []


def test_a_damaged_file_fails_in_its_own_job_and_what_is_done_stays(raw, tmp_path):
    campaign = begin(tmp_path / "campaign", raw)
    copy = tmp_path / "copy"
    for name in RANGES:
        (copy / name).mkdir(parents=True)
        for path in sorted((raw / name).iterdir()):
            data = path.read_bytes()
            (copy / name / path.name).write_bytes(data[: len(data) // 2] if name == RANGES[1] else data)
    campaign.change(source={"uri": f"{copy}/{{range}}/*.parquet"})
    done = campaign.snakemake("all", check=False)
    assert done.returncode == 1
    assert "its own job tries again" in done.stdout
    assert done.stdout.count("the workflow did not finish") == 1
    assert (campaign.run / "ranges" / f"{RANGES[0]}.json").exists()
    assert "Traceback" not in done.stdout


def test_a_wrong_model_is_refused_before_any_work(raw, tmp_path):
    campaign = begin(tmp_path / "campaign", raw)
    campaign.change(train={"monitor": "no_such_metric"})
    done = campaign.snakemake("all", check=False)
    assert done.returncode == 2
    (said,) = [line for line in done.stdout.splitlines() if line.startswith("crpipe: ")]
    assert "no_such_metric" in said
    assert not list(campaign.results.glob("manifests/*"))
    assert not (campaign.results / "logs").exists()
