"""Why a workflow did not finish, from the texts that Snakemake and Slurm really write."""

import json
import signal
import subprocess
import sys

import pytest

from crpipe.config.loading import load_config
from crpipe.core.journal import ends_of
from crpipe.report.failures import explain, failures_in, kinds_of

NAME = "0000000-0000999"
ERROR = """\
Error in rule train:
    message: {message}
    jobid: 9
    input: results/shards/{name}/manifest.json
    output: {runs}/default/ranges/{name}.json
    log: {runs}/default/logs/train/{name}.log, {runs}/slurm/5.log (check log file(s) for error details)
    shell:
        exec crpipe train {name}
        (command exited with non-zero exit code)
    external_jobid: 5
Logfile {runs}/default/logs/train/{name}.log:
======
Error in rule train:
    message: None
    jobid: 0
    log: {runs}/default/logs/train/{name}.log (check log file(s) for error details)
======
"""
ENDED = "SLURM-job '5' failed, SLURM status is: '{state}'. Detailed failure reason unavailable."
REFUSED = """SLURM sbatch failed. The error message was 'sbatch: error: Memory specification: no
sbatch: error: Requested node configuration is not available'.
    sbatch call:
        sbatch --parsable"""


@pytest.fixture
def campaign(tmp_path):
    config = load_config((), (f"results={tmp_path}/results", f"runs={tmp_path}/runs"))
    log = config.paths().run_dir() / "logs" / "train" / f"{NAME}.log"
    log.parent.mkdir(parents=True)
    log.write_text("range starts\nstep 20\n")
    return config


def said(config, message):
    return ERROR.format(message=message, name=NAME, runs=config.runs)


def note(config, what, time, **more):
    with config.paths().train_journal().open("a") as journal:
        row = {"time": time, "what": what, "host": "node7", "pid": 1, "verb": "train", "range": NAME, **more}
        journal.write(json.dumps(row) + "\n")


def test_an_error_of_crpipe_is_reported_with_its_code_its_node_and_the_log(campaign):
    note(campaign, "start", 10.0)
    note(campaign, "failed", 11.0, kind="ShardError", error="shard x: damaged")
    lines = explain(campaign.paths(), said(campaign, ENDED.format(state="FAILED")), {})
    assert lines[0] == f"train {NAME} (exit 65): shard x: damaged"
    assert lines[1].endswith("Slurm job 5 on node7")
    assert lines[2:] == ["  | range starts", "  | step 20"]


def test_the_end_of_a_log_does_not_repeat_the_cause(campaign):
    note(campaign, "start", 10.0)
    note(campaign, "failed", 11.0, kind="DiskError", error="x: the disk is full")
    log = campaign.paths().run_dir() / "logs" / "train" / f"{NAME}.log"
    log.write_text("step 20\ncrpipe: x: the disk is full\n")
    lines = explain(campaign.paths(), said(campaign, ENDED.format(state="FAILED")), {})
    assert lines[0] == f"train {NAME} (exit 74): x: the disk is full"
    assert lines[2:] == ["  | step 20"]


@pytest.mark.parametrize(
    ("state", "cause"),
    [
        ("TIMEOUT", "ran into its time limit"),
        ("OUT_OF_MEMORY", "needed more memory than it asked for"),
        ("NODE_FAIL", "lost its node"),
        ("FAILED", "ended without a message"),
    ],
)
def test_a_job_that_died_in_silence_is_explained_by_slurm(campaign, state, cause):
    note(campaign, "failed", 1.0, kind="ShardError", error="of an earlier workflow")
    ends = ends_of(campaign.paths().train_journal())
    note(campaign, "start", 10.0)
    lines = explain(campaign.paths(), said(campaign, ENDED.format(state=state)), ends)
    assert lines[0].startswith(f"train {NAME}: {cause}")


def test_a_node_whose_clock_is_an_hour_behind_is_heard(campaign):
    note(campaign, "start", 90_000.0)
    note(campaign, "failed", 90_001.0, kind="ShardError", error="of an earlier workflow")
    ends = ends_of(campaign.paths().data_journal(), campaign.paths().train_journal())
    note(campaign, "start", 86_400.0)
    note(campaign, "failed", 86_401.0, kind="CheckpointError", error="of this one")
    lines = explain(campaign.paths(), said(campaign, ENDED.format(state="FAILED")), ends)
    assert lines[0] == f"train {NAME} (exit 65): of this one"


def test_a_directory_with_commas_and_brackets_is_no_end_of_a_path(tmp_path):
    log = tmp_path / "new (v2), final" / "logs" / "split" / f"{NAME}.log"
    text = said(load_config((), ()), "None").replace(f"runs/default/logs/train/{NAME}.log", str(log))
    (failure,) = failures_in(text)
    assert (failure.verb, failure.name, failure.log) == ("split", NAME, log)
    assert str(failure.slurm_log) == "runs/slurm/5.log"


def test_memory_is_named_where_only_slurms_log_does(campaign, tmp_path):
    note(campaign, "start", 10.0)
    log = tmp_path / "runs" / "slurm" / "5.log"
    log.parent.mkdir()
    log.write_text("slurmstepd-n1: error: Exceeded job memory limit\n")
    lines = explain(campaign.paths(), said(campaign, ENDED.format(state="FAILED")), {})
    assert lines[0] == f"train {NAME}: needed more memory than it asked for"


def test_a_job_that_slurm_refuses_is_reported_in_slurms_words(campaign):
    (line, *_) = explain(campaign.paths(), said(campaign, REFUSED), {})
    assert "Slurm refused the job: sbatch: error: Memory specification: no" in line
    assert line.endswith("Requested node configuration is not available")


@pytest.mark.parametrize(
    "message",
    [
        "Job 4 with HTCondor Cluster ID 5 is held: Error from slot1@n1: no disk there",
        "HTCondor job 5. Hold reason: Error from slot1@n1: No 'x' with arguments -I job: 7: No disk there",
    ],
)
def test_a_job_that_htcondor_holds_is_reported_in_its_words(campaign, message):
    (line, log, *_) = explain(campaign.paths(), said(campaign, message), {})
    assert line.startswith(f"train {NAME}: HTCondor held the job: Error from slot1@n1: ")
    assert line.lower().endswith("no disk there")
    assert "with arguments" not in line
    assert log.endswith("HTCondor job 5")


def test_a_failure_that_a_retry_repaired_is_not_reported(campaign):
    text = said(campaign, ENDED.format(state="FAILED"))
    assert len(list(failures_in(text))) == 1
    assert not list(failures_in(f"{text}Finished jobid: 9 (Rule: train)\n"))


def test_a_job_that_did_its_work_is_not_blamed_for_what_snakemake_met_after_it(campaign):
    note(campaign, "start", 10.0)
    note(campaign, "finished", 11.0)
    full = "WorkflowError:\nOSError: [Errno 28] No space left on device\n[Sat Nov 21 19:38:04 2026]\n"
    lines = explain(campaign.paths(), full + said(campaign, "None"), {})
    assert "Snakemake failed afterwards: OSError: [Errno 28] No space left on device" in lines[0]


def test_a_job_killed_after_its_work_is_reported_so(campaign):
    note(campaign, "start", 10.0)
    note(campaign, "finished", 11.0)
    lines = explain(campaign.paths(), said(campaign, "None"), {})
    assert lines[0].startswith(f"train {NAME}: finished its work, but its job failed afterwards; the next")


def test_a_job_that_ended_without_its_output_names_what_is_missing(campaign):
    receipt, here = campaign.paths().receipt(NAME), campaign.paths().run_dir() / "logs"
    text = (
        f"Waiting at most 5 seconds for missing files:\n{receipt} (missing locally)\n"
        "MissingOutputException in rule train in file shared.smk, line 38:\n"
        "Job 1  completed successfully, but some output files are missing. "
        f"Missing files after 5 seconds:\n{receipt} (missing locally, parent dir contents: )\n"
        f"{here} (missing locally, parent dir not present)\n"
    )
    (line,) = explain(campaign.paths(), text, {})
    assert line.startswith(f"{receipt}: missing, though its job ended well: it was deleted")


def test_the_kind_of_a_failure_is_known_where_the_job_could_say_it(campaign):
    (silent,) = kinds_of(campaign.paths(), said(campaign, ENDED.format(state="TIMEOUT")), {})
    about = {"attempts": 0, "log": silent["log"]}
    assert silent == {"verb": "train", "name": NAME, "kind": "", "cause": "ran into its time limit", **about}
    assert silent["log"].endswith(f"logs/train/{NAME}.log")
    for time in (10.0, 10.5):
        note(campaign, "start", time)
    note(campaign, "failed", 11.0, kind="ShardError", error="shard x: damaged")
    (failure,) = kinds_of(campaign.paths(), said(campaign, ENDED.format(state="FAILED")), {})
    assert (failure["kind"], failure["cause"]) == ("ShardError", "(exit 65): shard x: damaged")
    assert failure["attempts"] == 2


def test_a_split_that_was_killed_is_reported_with_the_file_that_it_read(campaign):
    paths = campaign.paths()
    (paths.shards(NAME) / ".scatter").mkdir(parents=True)
    row = {"time": 1.0, "what": "start", "host": "node7", "pid": 1, "verb": "split", "range": NAME}
    paths.data_journal().write_text(json.dumps(row) + "\n")
    notes = paths.shards(NAME) / ".scatter" / "working-on"
    log = paths.results / "logs" / "split" / f"{NAME}.log"
    messages = f"Error in rule split:\n    jobid: 3\n    log: {log} (check log file(s) for error details)\n"
    program = (
        "import os, sys\nfrom pathlib import Path\nfrom crpipe.split.workers import in_order, working_on\n"
        "def work(path):\n    working_on(path)\n    os.abort()\n"
        "list(in_order(work, ['/data/b.parquet'], 1, notes=Path(sys.argv[1])))"
    )
    assert subprocess.run([sys.executable, "-c", program, notes], check=False).returncode == -signal.SIGABRT
    told = "ended without a message: killed, or out of memory (while it read /data/b.parquet)"
    assert explain(paths, messages, {})[0] == f"split {NAME}: {told}"
    assert [each["cause"] for each in kinds_of(paths, messages, {})] == [told]
