"""The verbs of the first hour."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from crpipe.cli import start
from crpipe.cli.app import app
from crpipe.core.errors import ConfigError, SetupError
from crpipe.workflow.run import TARGETS

SYNTHETIC = ("init", "trial", "--workload", "muons", "--uri", "synthetic://", "--yes")


@pytest.fixture
def call(tmp_path, monkeypatch):
    """Call the command line in an empty folder, with answers where it may ask."""
    monkeypatch.chdir(tmp_path)

    def typed(*words, answers=()):
        monkeypatch.setattr(start, "_can_ask", lambda: bool(answers))
        done = CliRunner().invoke(app, words, input="\n".join([*answers, ""]), catch_exceptions=True)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done.stdout

    return typed


@pytest.fixture
def data(tmp_path):
    for name in ("0000000-0000003", "0000004-0000007"):
        (tmp_path / "data" / name).mkdir(parents=True)
        (tmp_path / "data" / name / "a.parquet").touch()
    return tmp_path / "data"


def settings(folder):
    return yaml.safe_load((folder / "crpipe.yaml").read_text())


def test_a_folder_that_is_ready_and_the_next_commands(call, tmp_path):
    said = call(*SYNTHETIC)
    assert settings(tmp_path / "trial")["run"] == "muons"
    assert (tmp_path / "trial" / "workflow" / "rules" / "common.smk").exists()
    assert [line.split("#")[0].strip() for line in said.splitlines()[-5:]] == [
        "cd trial",
        "(edit crpipe.yaml)",
        "crpipe doctor",
        "crpipe plan",
        "crpipe run",
    ]


def test_options_become_keys(call, tmp_path, data):
    uri = "data/{range}/*.parquet"
    more = ["--run", "first", "--results", "/scratch/first", "--first", "4", "--last", "7", "--size", "4"]
    call("init", "--workload", "muons", "--uri", uri, "--yes", *more)
    tree = settings(tmp_path)
    assert tree["source"]["uri"] == uri
    assert (tree["run"], tree["results"]) == ("first", "/scratch/first")
    assert tree["ranges"] == {"first": 4, "last": 7, "size": 4}


def test_a_profile_is_added_to_a_campaign_that_is_there(call, tmp_path, data):
    call("init", "--workload", "muons", "--uri", "data/{range}/*.parquet", "--yes")
    before = (tmp_path / "crpipe.yaml").read_text()
    call("init", "--profile", "htcondor")
    assert (tmp_path / "crpipe.yaml").read_text() == before
    assert (tmp_path / "htcondor" / "config.yaml").exists()


def test_the_workflow_of_another_version_is_replaced_and_all_else_stays(call, tmp_path, data):
    """What doctor names for it: it asked for the files, and replaced what a person had edited."""
    call("init", "--workload", "muons", "--uri", "data/{range}/*.parquet", "--profile", "slurm", "--yes")
    edited = [tmp_path / name for name in ("crpipe.yaml", "slurm/config.yaml", "workflow/Snakefile")]
    for path in edited:
        path.write_text(path.read_text() + "# mine\n")
    assert "nothing to change" in call("init")
    call("init", "--force")
    assert [path.read_text().endswith("# mine\n") for path in edited] == [True, True, False]
    assert (tmp_path / "workflow/Snakefile.old").read_text().endswith("# mine\n")
    (tmp_path / "workflow/rules/common.smk").unlink()
    (tmp_path / "workflow/Snakefile").unlink()
    assert "wrote in .: workflow/" in call("init")


def test_a_typo_writes_nothing(call, tmp_path, data):
    with pytest.raises(ConfigError, match="did you mean"):
        call("init", "trial", "--workload", "muons", "--uri", f"{tmp_path}/dato/*.parquet", "--yes")
    assert not (tmp_path / "trial").exists()


def test_side_tables_are_asked_for(call):
    words = ["init", "--workload", "direction", "--uri", "pelican://host/b_{number}.parquet", "--yes"]
    with pytest.raises(ConfigError, match="add --table geometry=URI --table meta=URI"):
        call(*words)
    call(*words, "--table", "geometry=/g.csv", "--table", "meta=/m.parquet")


@pytest.mark.parametrize(
    ("option", "said"),
    [(("--first", "x"), "--first x: expected a number"), (("--table", "meta"), "--table meta: expected")],
)
def test_wrong_options(call, option, said):
    with pytest.raises(ConfigError, match=said):
        call(*SYNTHETIC, *option)


def test_questions_have_defaults_and_a_wrong_answer_is_asked_again(call, tmp_path, data):
    answers = [f"{data}x", str(data), "", "", "mions", "muons", "", "", "", "", "first", ""]
    said = call("init", "trial", answers=answers)
    assert f"[{data}/{{range}}/*.parquet]" in said
    assert said.count("an answer is needed here") == 1  # of the workload: no reader reads an empty file
    assert "did you mean" in said
    assert "--workload mions: not known" in said
    tree = settings(tmp_path / "trial")
    assert tree["source"]["uri"] == f"{data}/{{range}}/*.parquet"
    assert tree["ranges"] == {"first": 0, "last": 7, "size": 4}
    assert (tree["run"], tree["results"]) == ("first", "results/first")


def test_the_end_of_the_answers_writes_nothing_and_says_so(call, tmp_path, data):
    assert "nothing was written" in call("init", "trial", answers=[str(data)])
    assert not (tmp_path / "trial").exists()


def test_doctor_without_a_configuration_says_so(call):
    said = call("doctor")
    assert "warn  configuration   none is named" in said
    assert " python  " in said


def test_doctor_fails_with_what_to_type(call, tmp_path):
    call(*SYNTHETIC)
    named = ("--config", "trial/crpipe.yaml")
    assert "fail  " not in call(*named, "doctor")
    found = json.loads(call(*named, "doctor", "--json"))["findings"]
    assert {"configuration", "results", "runs", "source", "token"} <= {one["name"] for one in found}
    with pytest.raises(SetupError, match="source: will stop a campaign"):
        call(*named, "--set", "source.uri=/nowhere/*.x", "doctor")
    with pytest.raises(SetupError, match="configuration: will stop a campaign"):
        call(*named, "--set", "sorce=1", "doctor")


def test_doctor_imports_no_torch(tmp_path):
    imported = "import sys; from crpipe.setup.doctor import examine"
    code = f"{imported}; examine([], []); print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(Path(__file__).parents[3] / "src"), "PATH": ""},
    )
    assert done.stdout == "False\n"


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """Call `crpipe run` in a directory with a Snakefile; give the request that would be run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Snakefile").touch()
    requests = []
    monkeypatch.setattr("crpipe.workflow.run.run_workflow", lambda request, _: requests.append(request))

    def call(*words):
        done = CliRunner().invoke(app, ["run", *words])
        return requests.pop() if requests else done

    return call


def test_targets_and_options_of_snakemake_are_told_apart(asked):
    request = asked("train_all", "-j", "2", "--", "--retries", "3")
    assert (request.targets, request.cores, request.more) == (("train_all",), "2", ("--retries", "3"))
    request = asked("--profile", "slurm", "--", "--retries", "3", "-n")
    assert (request.targets, request.more, request.dry_run) == ((), ("--retries", "3"), True)


def test_the_configuration_is_that_of_every_verb(asked):
    (request) = asked("--config", "a.yaml", "--set", "run=b")
    assert [str(path) for path in request.files] == ["a.yaml"]
    assert request.overrides == ("run=b",)


def test_pauses_are_asked_for_by_name(asked):
    assert asked().pause_s == 0.0
    assert asked("--keep-trying").pause_s == 60.0
    assert asked("--keep-trying", "--pause-minutes", "5").pause_s == 300.0


def test_a_word_that_is_no_target_is_refused_before_snakemake(asked, tmp_path):
    (tmp_path / "workflow" / "rules").mkdir(parents=True)
    (tmp_path / "workflow" / "rules" / "own.smk").write_text(
        "if True:\n\n    rule mine:\n        shell: 'true'\n"
    )
    (tmp_path / "workflow" / "Snakefile").write_text("use rule mine as trains_all with:\n    priority: 1\n")
    assert asked("trains_all").targets == ("trains_all",)
    assert asked("mine", "runs/a/report.html").targets == ("mine", "runs/a/report.html")
    refused = asked("train_al").exception
    assert isinstance(refused, ConfigError)
    assert str(refused).endswith("did you mean train_all?")


def test_the_targets_are_rules_of_the_workflow():
    rules = Path(__file__).parents[3] / "workflow"
    texts = [(rules / "Snakefile").read_text(), *(path.read_text() for path in rules.glob("rules/*.smk"))]
    assert set(TARGETS) <= set(re.findall(r"^rule (\w+):", "".join(texts), re.MULTILINE))


def test_a_target_beside_links_is_refused(asked):
    assert asked("--links", "2").links == 2
    assert asked("train_all", "--links", "2").exit_code == 2


@pytest.mark.parametrize("cores", ["0", "-1", "many"])
def test_without_a_core_nothing_would_ever_run(asked, cores):
    done = asked("--cores", cores)
    assert (done.exit_code, asked("--cores", "all").cores) == (2, "all")


def test_another_directory_is_refused_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["run"])
    assert isinstance(done.exception, ConfigError)
    assert "no Snakefile here" in str(done.exception)
