"""One job on a node, without a Snakemake there."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from crpipe.workflow import node_job
from crpipe.workflow.node_job import command_environment, pack, prepare, step_environment, unpack


@pytest.fixture
def job(tmp_path):
    return {
        "srun": "-n1",
        "folder": str(tmp_path),
        "command": "true",
        "input": [],
        "output": [str(tmp_path / "made" / "out")],
        "log": [str(tmp_path / "logs" / "log")],
        "benchmark": [str(tmp_path / "benchmarks" / "one.tsv")],
        "threads": 3,
        "latency_wait": 0,
    }


def begin(job, **variables):
    """Start the job as it is started within a step."""
    words = [sys.executable, "-I", "-S", node_job.__file__, pack(job), "inside"]
    return subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, **variables}
    )


def ended(job, **variables):
    process = begin(job, **variables)
    told = process.communicate(timeout=60)[0]
    return process.returncode, told


def test_a_job_travels_as_one_word_that_no_shell_changes(job):
    word = pack(job | {"command": "crpipe --set 'source.uri=raw/{range}/$HOME `x` \"'"})
    assert unpack(word)["command"].endswith("`x` \"'")
    assert subprocess.check_output(["sh", "-c", f'echo "{word}"'], text=True).strip() == word


def test_the_command_runs_in_bash_with_its_threads_and_says_what_it_is(job):
    out = Path(job["output"][0])
    job["command"] = f"exec sh -c 'echo $OMP_NUM_THREADS $MKL_NUM_THREADS $CRPIPE_WORKFLOW > {out}'"
    code, told = ended(job, CRPIPE_WORKFLOW="1")
    assert (code, out.read_text()) == (0, "3 3 1\n")
    assert told.strip() == job["command"]


def test_it_writes_the_table_that_snakemake_writes(job):
    job["command"] = "sleep 0.2"
    assert ended(job)[0] == 0
    heads, values = (
        line.split("\t") for line in Path(job["benchmark"][0]).read_text().removesuffix("\n").split("\n")
    )
    row = dict(zip(heads, values, strict=True))
    assert list(row)[:3] == ["s", "h:m:s", "max_rss"]
    assert float(row["s"]) >= 0.2
    assert row["h:m:s"] == "0:00:00"
    assert float(row["max_rss"]) > 0


@pytest.mark.parametrize(("command", "code"), [("exit 75", 75), ("false | true", 1), ("kill -KILL $$", 137)])
def test_its_exit_code_is_that_of_the_command(job, command, code):
    job["command"] = command
    assert ended(job)[0] == code


def test_what_an_earlier_attempt_left_is_removed_and_folders_are_made(job):
    for path in map(Path, (*job["output"], *job["log"])):
        path.parent.mkdir()
        path.write_text("old")
    assert prepare(job) == []
    assert not Path(job["output"][0]).exists()
    assert not Path(job["log"][0]).exists()
    assert Path(job["benchmark"][0]).parent.is_dir()


def test_a_missing_input_is_waited_for_and_named(job, tmp_path):
    job["input"] = [str(tmp_path / "late")]
    code, told = ended(job)
    assert code == 66
    assert str(tmp_path / "late") in told
    with begin(job | {"latency_wait": 30}) as process:
        (tmp_path / "late").touch()
        assert process.wait(timeout=30) == 0


def test_a_signal_leaves_the_end_to_the_command(job, tmp_path):
    job["command"] = (
        f"trap 'echo saved; exit 75' TERM; touch {tmp_path}/begun; while true; do sleep 0.1; done"
    )
    words = [sys.executable, "-I", "-S", node_job.__file__, pack(job), "inside"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True)
    while not (tmp_path / "begun").exists():
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGTERM)  # as Slurm does
    assert process.communicate(timeout=30)[0].endswith("saved\n")
    assert process.returncode == 75


@pytest.mark.parametrize(("srun", "times"), [(None, 1), ("-n1", 0)])
def test_a_signal_is_passed_on_where_no_srun_does_that(job, tmp_path, srun, times):
    """HTCondor signals the first process alone; the job's folder is the command's."""
    job |= {"srun": srun, "folder": str(tmp_path)}
    job["command"] = "trap 'echo saved; exit 75' TERM; touch begun; for i in 1 2 3 4; do sleep 0.2; done"
    words = [sys.executable, "-I", "-S", node_job.__file__, pack(job), *(["inside"] if srun else [])]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd="/")
    while not (tmp_path / "begun").exists():
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=30)[0].count("saved\n") == times
    assert process.returncode == (75 if times else 0)


def test_a_step_keeps_of_slurm_what_names_its_job():
    given = {"SLURM_JOB_ID": "7", "SLURM_CPUS_PER_TASK": "2", "SBATCH_X": "1", "SRUN_Y": "1", "HOME": "/h"}
    assert step_environment(given) == {"SLURM_JOB_ID": "7", "HOME": "/h"}


def test_temporary_files_go_where_the_node_wants_them():
    found = command_environment({"HOME": "/h"}, 2)
    assert found["TMPDIR"] == found["TMP"]
    assert Path(found["TMPDIR"]).is_dir()
    assert found["OPENBLAS_NUM_THREADS"] == "2"
