"""The command line as a whole: one message and an exit code for every mistake, and what is imported."""

import gc
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import jwt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from crpipe.__main__ import forget_ranks, name_user
from crpipe.cli import importing
from fault_campaign import LEFT_OUT, STEPS
from named import READERS, SIMULATOR
from raw_files import write_parquet

CRPIPE = Path(sys.executable).with_name("crpipe")


SMALL = [
    "--set",
    "source.uri=synthetic://",
    "--set",
    "ranges.last=1",
    "--set",
    "ranges.size=1",
    "--set",
    f"source.reader={READERS['bundles']}",
    "--set",
    f"source.simulator={SIMULATOR}",
    "--set",
    "train.workload=crpipe.workloads.muons:MuonGan",
    "--set",
    "simulator.files_per_range=1",
]


@pytest.fixture
def crpipe(call):
    """Call the command line in an empty working directory: crpipe(*words) -> (exit code, stderr)."""
    return lambda *words: call(*words)[::2]


def installed(*words, folder):
    """Start the installed command as a user does."""
    return subprocess.run([CRPIPE, *words], cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (
            ["--set", "sorce=1", "status"],
            2,
            "crpipe: --set sorce=1: sorce: unknown key; did you mean source?",
        ),
        (["--config", "nowhere.yaml", "status"], 2, "crpipe: nowhere.yaml: cannot be read"),
        (
            ["list", "0042000"],
            2,
            "0042000: not a range of this campaign (0000000-0000000, 0000001-0000001); ",
        ),
        (["list", "0000009-0000001"], 2, "range 9-1: needs 0 <= first <= last"),
        (
            ["stage", "00"],
            2,
            "00: begins 2 ranges of this campaign: 0000000-0000000, 0000001-0000001; name one",
        ),
        (["stage", "1"], 65, "missing; run `crpipe list 0000001-0000001` first"),
        (["split", "0000001"], 65, "run `crpipe stage 0000001-0000001` first"),
        (["export", "--events", "1", "--out", "x"], 65, "0000001-0000001/manifest.json: missing"),
        (["check", "0000042"], 2, "not a range or link of this campaign (0000000-0000000, "),
        (["plan", "--probe", "--range", "1"], 2, "--range 0000001-0000001: not split"),
        (
            ["--set", "train.precision=float16", "--set", "train.device=cpu", "plan", "--probe"],
            2,
            "crpipe: train.precision: float16 is for GPUs alone; on a CPU set bfloat16",
        ),
        (["train", "7"], 2, "7: not a link of this campaign (0000000-0000000, 0000001-0000001, outliers); "),
        (["evaluate", "out"], 65, "outliers.json"),
        (["fork", "--from", "0000005-0000009", "--run", "b"], 2, "--from 0000005-0000009: not a link"),
        (["stage", "0000000-0000000"], 65, "missing; run `crpipe list 0000000-0000000` first"),
        (["inspect", "nowhere.parquet"], 66, "nowhere.parquet"),
        (["train", "0000005-0000009"], 2, "not a link of this campaign"),
    ],
)
def test_bad_input_ends_in_one_message_and_an_exit_code(crpipe, words, code, said):
    ended, told = crpipe(*SMALL, *words)
    assert said in told
    assert ended == code


def test_the_installed_command_ends_bad_input_without_a_traceback(tmp_path):
    done = installed("--config", "nowhere.yaml", "status", folder=tmp_path)
    assert done.stderr.startswith("crpipe: nowhere.yaml: cannot be read")
    assert "Traceback" not in done.stderr
    assert done.returncode == 2


@pytest.mark.parametrize(
    "words", [["list"], ["list", "--fast", "0000000-0000000"], ["inspect", "--rows", "-1", "x.parquet"]]
)
def test_a_wrong_call_shows_how_to_call(crpipe, words):
    ended, told = crpipe(*words)
    assert ended == 2
    assert "Usage: crpipe" in told


def test_json_of_a_file_with_nan_is_json_for_every_parser(call, tmp_path):
    pq.write_table(pa.table({"a": [float("nan"), 1.5]}), tmp_path / "a.parquet")
    code, out, _ = call("inspect", "--json", str(tmp_path / "a.parquet"))
    assert (code, json.loads(out, parse_constant=pytest.fail)["first"]) == (0, [{"a": None}, {"a": 1.5}])


def test_the_configuration_of_the_working_directory_is_read(crpipe, tmp_path):
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "config.yaml").write_text("seed: none-at-all\n")
    ended, told = crpipe("status")
    assert ended == 2
    assert "config/config.yaml: seed" in told


LOOKING = [
    *(
        ["status"],
        ["status", "--json"],
        ["summary"],
        ["report"],
        ["figures"],
        ["compare", "a", "b"],
        ["logs"],
    ),
    *(["check"], ["plan"], ["clean"], ["notify", "failure"], ["sync"], ["config", "check"]),
    ["export", "--events", "0000000-0000999", "--out", "x"],
]


@pytest.mark.parametrize(
    ("words", "configured"),
    [(words, "crpipe.yaml") for words in LOOKING]
    + [([verb], way) for verb in ("status", "check", "sync") for way in ("config/config.yaml", "")],
)
def test_a_folder_without_a_campaign_is_refused_with_the_nearest_one(
    crpipe, tmp_path, monkeypatch, words, configured
):
    here = tmp_path / "the campaign" / "notes" / "deeper"
    (here / "results").mkdir(parents=True)  # of something else
    if configured:
        (here.parents[1] / configured).parent.mkdir(exist_ok=True)
        (here.parents[1] / configured).write_text("run: mine\n")
    monkeypatch.chdir(here)
    ended, said = crpipe(*words)
    assert ended == 2
    assert f"{here}: no campaign here: crpipe.yaml is missing; " in said
    assert (f"cd '{here.parents[1]}'" in said) == bool(configured)
    assert [path.name for path in here.rglob("*")] == ["results"]


def test_a_campaign_without_a_named_configuration_says_whose_it_is(crpipe, tmp_path):
    made = tmp_path / "results" / "campaign.json"
    made.parent.mkdir()
    made.write_text("{}")
    assert "no configuration is named: this is crpipe's default campaign" in crpipe("summary")[1]
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "config.yaml").write_text("run: theirs\n")
    said = crpipe("summary")[1]
    assert said == (
        "crpipe: no configuration is named: this is the campaign of config/config.yaml; "
        "name yours with --config FILE\n"
    )
    assert crpipe("--config", "config/config.yaml", "summary") == (0, "")
    (tmp_path / "crpipe.yaml").write_text("run: mine\n")
    assert crpipe("summary") == (0, "")


def test_the_variable_names_the_configuration(crpipe, tmp_path, monkeypatch):
    (tmp_path / "crpipe.yaml").write_text("seed: many\n")
    (tmp_path / "mine.yaml").write_text("run: mine\n")
    monkeypatch.setenv("CRPIPE_CONFIG", "mine.yaml")
    assert crpipe("summary") == (0, "")
    monkeypatch.setenv("CRPIPE_CONFIG", "lost.yaml")
    ended, told = crpipe("summary")
    assert ended == 2
    assert told.startswith("crpipe: CRPIPE_CONFIG: lost.yaml does not exist")


def test_an_attempt_stands_in_the_journal(tmp_path):
    assert installed(*SMALL, "list", "0000000-0000000", folder=tmp_path).returncode == 0
    rows = [json.loads(line) for line in (tmp_path / "results" / "journal.jsonl").read_text().splitlines()]
    assert [(row["what"], row["verb"], row["range"]) for row in rows] == [
        ("start", "list", "0000000-0000000"),
        ("finished", "list", "0000000-0000000"),
    ]


def test_data_of_another_configuration_is_refused_and_left_alone(crpipe, tmp_path):
    assert crpipe(*SMALL, "list", "0000000-0000000")[0] == 0
    before = {path: path.read_bytes() for path in (tmp_path / "results").rglob("*") if path.is_file()}
    ended, told = crpipe(*SMALL, "--set", "seed=2", "list", "0000000-0000000")
    assert ended == 2
    assert "seed: results 1, config 2" in told
    assert {path: path.read_bytes() for path in (tmp_path / "results").rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("form", [["--json"], ["--html", "page.html"], []])
def test_status_tells_when_the_token_ends_and_never_its_text(tmp_path, form):
    claims = {"exp": time.time() + 2 * 3600 + 30, "scope": "storage.read:/"}
    secret = jwt.encode(claims, "a key that is long enough to sign with", algorithm="HS256")
    (tmp_path / "token").write_text(secret)
    pelican = ["--set", "source.uri=pelican://h/{range}/*.parquet", "--set", "source.token_file=token"]
    done = installed(*pelican, "status", *form, folder=tmp_path)
    shown = (tmp_path / "page.html").read_text() if "--html" in form else done.stdout
    assert "source.token_file (token)" in shown
    assert f'"ends": {claims["exp"]}' in shown or "ends in 2 h 00 min: renew it in time" in shown
    assert not any(part in shown + done.stderr for part in secret.split("."))
    (tmp_path / "token").unlink()
    done = installed(*pelican, "status", *form, folder=tmp_path)
    shown = (tmp_path / "page.html").read_text() if "--html" in form else done.stdout
    assert "source.token_file: token cannot be read (No such file or directory)" in shown
    assert done.returncode == 0


@pytest.mark.parametrize("verb", ["status", "summary"])
def test_looking_needs_neither_torch_nor_a_campaign(tmp_path, verb):
    code = (
        "import sys; sys.argv = ['crpipe', *sys.argv[1:]]\n"
        "from crpipe.cli.app import app\n"
        "app(standalone_mode=False)\n"
        "heavy = {'torch', 'snakemake', 'pelicanfs', 'aiohttp', 'matplotlib', 'pandas'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *SMALL, verb], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("verb", "text"), [(["status"], "\nprogress    ░"), (["config", "default"], "\nresults: für\n")]
)
def test_text_is_in_utf8_whatever_the_locale(tmp_path, verb, text):
    (tmp_path / "crpipe.yaml").write_text("results: für\n", encoding="utf-8")
    other = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}  # ascii, as others have latin-1
    words = [sys.executable, "-m", "crpipe", *SMALL, *verb]
    done = subprocess.run(words, cwd=tmp_path, env=os.environ | other, capture_output=True, check=False)
    assert done.returncode == 0
    assert text in done.stdout.decode()


@pytest.mark.parametrize(
    ("library", "words"), [("typer", ["--version"]), ("pyarrow", ["inspect", "x.parquet"])]
)
def test_an_interruption_while_libraries_are_imported_prints_no_traceback(tmp_path, library, words):
    """A library of this name that is interrupted while it is imported, as by Ctrl-C."""
    (tmp_path / f"{library}.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGINT)")
    paths = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-m", "crpipe", *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode not in (0, 2)
    assert "Traceback" not in done.stderr


def test_control_characters_of_a_name_never_reach_the_terminal(crpipe, tmp_path):
    """A name that clears the screen, or begins a line of its own."""
    (tmp_path / "red\x1b[31m.yaml").write_text("seed: many\n")
    ended, told = crpipe("--config", "red\x1b[31m.yaml", "status")
    assert ended == 2
    assert "red\\x1b[31m.yaml: seed" in told
    assert "\x1b" not in told


@pytest.fixture
def production(crpipe, tmp_path):
    """The campaign of config/config.yaml, which nobody named."""
    (tmp_path / "config").mkdir()
    (tmp_path / "raw" / "0000000-0000009").mkdir(parents=True)
    write_parquet(tmp_path / "raw" / "0000000-0000009" / "a.parquet", [1, 2, 3])
    (tmp_path / "config" / "config.yaml").write_text(
        f"source: {{uri: 'raw/{{range}}/*.parquet', reader: '{READERS['bundles']}'}}\n"
        "ranges: {last: 9, size: 10}\ntrain: {workload: 'crpipe.workloads.muons:MuonGan'}\n"
    )
    return crpipe


@pytest.mark.parametrize("verb", ["plan", "status"])
def test_without_a_named_configuration_plan_and_status_say_whose_campaign_it_is(production, verb):
    line = (
        "crpipe: no configuration is named: this is the campaign of config/config.yaml; "
        "name yours with --config FILE\n"
    )
    assert production(verb) == (0, line)
    assert production("--config", "config/config.yaml", verb) == (0, "")


def test_plan_ends_with_what_would_fail(production):
    code, said = production("--config", "config/config.yaml", "--set", "ranges.last=19", "plan", "--json")
    assert code == 66
    assert "the workflow would fail:\nrange 0000010-0000019: " in said
    assert "set ranges.last to 9 if that is all" in said


READER = ["--set", f"source.reader={READERS['bundles_hdf5']}", "--set", "ranges.last=999"]


WITHOUT = """\
import sys
sys.modules[{library!r}] = None
from crpipe.cli.app import main
sys.argv = ["crpipe", *{words!r}]
main()
"""


@pytest.mark.parametrize(
    ("library", "extra", "words"),
    [
        ("h5py", "hdf5", [*READER, "inspect", "raw.h5"]),
        ("safetensors.torch", "export", [*READER, "export", "--checkpoint", "x.pt", "--out", "model"]),
    ],
)
def test_a_missing_library_ends_with_the_command_that_installs_it(tmp_path, library, extra, words):
    (tmp_path / "raw.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100))
    script = WITHOUT.format(library=library, words=words)
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 69, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"crpipe: {library.partition('.')[0]} is needed to ")
    assert line.endswith(f"install it with pip install 'crpipe[{extra}]'")
    assert [path.name for path in tmp_path.iterdir()] == ["raw.h5"]


def test_garbage_is_collected_after_an_import_also_one_that_failed():
    gc.unfreeze()
    with importing():
        assert not gc.isenabled()
    assert gc.isenabled()
    assert gc.get_freeze_count() > 1000
    with pytest.raises(ImportError), importing():
        raise ImportError
    assert gc.isenabled()


def test_every_verb_is_disturbed_by_failing_file_operations_or_left_out_with_a_reason():
    """The slow tests disturb the verbs of STEPS: what is in neither list would never be tried."""
    groups = ("config", "tb")

    def verbs(lines):
        return {tuple(words[: 2 if words[0] in groups else 1]) for words in lines}

    every = (Path(__file__).parents[1] / "frozen" / "verbs.txt").read_text().splitlines()
    disturbed = verbs(words for _, words in STEPS)
    left_out = verbs(name.split() for names in LEFT_OUT for name in names.split(", "))
    assert verbs(line.split() for line in every) == disturbed | left_out
    assert disturbed & left_out == set()


def test_a_user_whom_a_container_does_not_know_has_a_name_and_a_home(monkeypatch):
    for name in ("LOGNAME", "USER", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000_000)
    name_user()
    assert (os.environ["LOGNAME"], os.environ["HOME"]) == ("4000000000", "/")


def test_closed_input_and_output_are_no_error():
    """As cron, a daemon or `>&-` leave them: a file that is opened must not get the number of one of them."""
    code = (
        "import os, sys; from crpipe.__main__ import open_streams; open_streams(); "
        "print(sys.stdout.isatty(), file=sys.stderr); sys.exit(os.open('/', os.O_RDONLY))"
    )
    closed = ["sh", "-c", 'exec "$0" -c "$1" <&- >&- 2>&-', sys.executable, code]
    assert subprocess.run(closed, check=False).returncode == 3


def test_signs_that_the_output_s_encoding_lacks_are_replaced():
    code = "from crpipe.__main__ import open_streams; open_streams(); print('half a bar: \u2588')"
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=False)
    assert done.stdout == b"half a bar: ?\n"


def test_ranks_are_those_of_torchrun_alone(monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    for run, size in (("none", "2"), ("", None)):  # the second: exported for another program
        monkeypatch.setenv("WORLD_SIZE", "2")
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", run) if run else monkeypatch.delenv("TORCHELASTIC_RUN_ID")
        forget_ranks()
        assert os.environ.get("WORLD_SIZE") == size
