"""A scan of three runs that is killed as a whole: the same command ends in the bytes of runs made alone."""

import json
import subprocess
from contextlib import contextmanager

import pytest

from runs import BIN, Campaign, children, environment, kill, verb_of, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.compiler, pytest.mark.timeout(1800)]

SCAN = """\
runs:
  small:
  broken: {train.pretrained: nowhere.pt}
  large: &large {model.hidden: 12}
  clipped: {<<: *large, train.gradient_clip_norm: 0.1}
"""
ALONE = {
    "small": (),
    "large": ("--set", "model.hidden=12"),
    "clipped": ("--set", "model.hidden=12", "--set", "train.gradient_clip_norm=0.1"),
}
WORDS = ("--config", "config/tiny.yaml", "--set", "ranges.last=3", "--set", "train.validate_every=4")
WORDS += ("--set", "train.monitor=multiplicity/loss")


def scan_of(campaign, *words):
    """Run a scan to its end; return its exit code and what it printed."""
    done = campaign.process(BIN / "crpipe", *WORDS, "scan", "scan.yaml", *words)
    return done.returncode, done.stdout + done.stderr


@contextmanager
def scanning(campaign):
    """Start a scan, and leave no process behind."""
    with (campaign.folder / "head.log").open("a") as output:
        command = [BIN / "crpipe", *WORDS, "scan", "scan.yaml", "train_all", "--cores", "1"]
        head = subprocess.Popen(
            command, cwd=campaign.folder, env=environment({}), stdout=output, stderr=output
        )
    try:
        yield head
    finally:
        for process in [*children(head), head]:
            kill(process)
        head.wait()


def receipts(campaign, run):
    """Read the receipts of a run: checkpoints by link."""
    files = sorted((campaign.folder / "runs" / run / "ranges").glob("*[0-9].json"))
    return {path.stem: json.loads(path.read_text())["sha256"] for path in files}


def training_of(head, run):
    """Find the running job that trains a link of a run."""
    for process in children(head):
        if verb_of(process) == "train" and f"run={run}" in process.cmdline():
            return process
    return None


def attempts(campaign, run):
    """Name the links that a run began to train, in their order."""
    lines = (campaign.folder / "runs" / run / "journal.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if row["what"] == "start"]
    return [row["range"] for row in rows if row["verb"] == "train"]


def test_a_killed_scan_ends_in_the_bytes_of_runs_made_alone(tmp_path):
    campaign = Campaign.begin(tmp_path / "campaign")
    (campaign.folder / "scan.yaml").write_text(SCAN)
    with scanning(campaign) as head:
        log = campaign.folder / "head.log"
        victim = wait_for(lambda: training_of(head, "tiny-large"), head)
        assert victim is not None, log.read_text()
        snapshots = campaign.folder / "runs" / "tiny-large" / "store"
        assert wait_for(lambda: list(snapshots.glob("*/snapshot-*.pt")), head), log.read_text()
    assert len(receipts(campaign, "tiny-small")) == 2
    before = (campaign.results / "journal.jsonl").read_bytes()
    trained = attempts(campaign, "tiny-small")

    code, said = scan_of(campaign, "train_all", "--cores", "1")
    assert code == 65, said  # that of the one run that failed
    assert "1 of 4 runs failed: tiny-broken (exit code " in said
    assert "nowhere.pt does not exist" in said
    assert (campaign.results / "journal.jsonl").read_bytes() == before  # the data of all were made once
    assert attempts(campaign, "tiny-small") == trained

    alone = Campaign.begin(tmp_path / "alone")
    for name, words in ALONE.items():
        alone.in_one_process(*WORDS[2:], *words, "--set", f"run={name}", "train_all")
        theirs = receipts(alone, name)
        assert len(theirs) == 2
        assert receipts(campaign, f"tiny-{name}") == theirs

    lines = scan_of(campaign, "--summary", "--figure", "scan.svg")[1].splitlines()
    assert lines[0] == "ranked by best validation/multiplicity/loss, lower is better"
    assert [line.split()[0] for line in lines[2:6]] == ["1", "2", "3", "-"]
    assert {line.split()[1] for line in lines[2:5]} == {f"tiny-{name}" for name in ALONE}
    assert lines[-1] == "scan.svg"
    assert all(f">tiny-{name}<" in (campaign.folder / "scan.svg").read_text() for name in ALONE)
