"""What all verbs share: lines on a terminal, and the names that a shell completes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from crpipe.cli.terminal import Terminal, keys, show
from crpipe.config.loading import load_config
from crpipe.config.reference import entries


def test_a_message_is_one_line_whatever_names_it_holds(capsys):
    Terminal().message("a\x1b[2Jb\ncrpipe: all is well\x07: missing")
    assert capsys.readouterr().err == "a\\x1b[2Jb\\ncrpipe: all is well\\x07: missing\n"


def test_progress_is_one_line_whatever_names_it_holds(capsys):
    Terminal().update("copy x\x1b]0;title\x07", 1, 1, "a\rb")
    assert capsys.readouterr().err == "copy x\\x1b]0;title\\x07 100%    a\\rb\n"


def test_a_report_keeps_its_lines_and_nothing_that_steers_a_terminal(capsys):
    show("range\tstate\n\u202eelif\x9b31m été ±")
    assert capsys.readouterr().out == "range\tstate\n\\u202eelif\\x9b31m été ±\n"


REPOSITORY = Path(__file__).parents[3]


CRPIPE = Path(sys.executable).with_name("crpipe")


LINKS = ["0000000-0000009", "0000010-0000019", "outliers"]


@pytest.fixture
def folder(tmp_path):
    """A directory with a configuration, two trained links, and a best checkpoint of the first."""
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "config.yaml").write_text((REPOSITORY / "config" / "config.yaml").read_text())
    (tmp_path / "mine.yaml").write_text("run: mine\nranges: {last: 19, size: 10}\n")
    for name in (*LINKS[:2], f"{LINKS[0]}.best"):
        path = tmp_path / "runs" / "mine" / "ranges" / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "runs" / "mine" / "campaign.json").touch()
    return tmp_path


def ask(folder, line, shell="bash"):
    """Return what the shell gets for a line whose last word is not finished."""
    words = {
        "bash": {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))},
        "zsh": {"_TYPER_COMPLETE_ARGS": line},
        "fish": {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
    }[shell]
    paths = os.pathsep.join([str(REPOSITORY / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    variables = {**os.environ, "PYTHONPATH": paths, "_CRPIPE_COMPLETE": f"complete_{shell}", **words}
    done = subprocess.run([CRPIPE], cwd=folder, env=variables, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.stdout.strip().splitlines()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("crpipe st", ["status", "stage", "steps"]),
        ("crpipe -c mine.yaml stage 00000", []),
        ("crpipe train -c mine.yaml ", LINKS),
        ("crpipe -c mine.yaml train o", ["outliers"]),
        ("crpipe -c mine.yaml predict --checkpoint ", ["latest", "best", *LINKS[:2], f"{LINKS[0]}.best"]),
        ("crpipe -c mine.yaml fork --from ", LINKS[:2]),
        ("crpipe compare m", ["mine"]),
        ("crpipe plan --set ranges.f", ["ranges.first="]),
        ("crpipe fork --set train.gradient", ["train.gradient_clip_norm="]),
        ("crpipe notify s", ["success", "stall"]),
        ("crpipe -c missing.yaml train ", []),
        ("crpipe -c mine.yaml -s seed=many train ", []),
    ],
)
def test_bash_gets_the_names_that_begin_so(folder, line, words):
    assert ask(folder, line) == words


def test_zsh_and_fish_get_the_same_names_with_their_meaning(folder):
    line = "crpipe plan --set source.ur"
    (found,) = ask(folder, line, "fish")
    assert found.startswith("source.uri=\twhere the raw files are")
    (found,) = ask(folder, line, "zsh")
    assert found.startswith('_arguments \'*: :(("source.uri=":"where the raw files are')


def test_every_key_is_completed():
    config = load_config([REPOSITORY / "config" / "config.yaml"])
    known = {f"{entry.dotted}=" for entry in entries(config) if not entry.section}
    assert {name for name, _ in keys(config)} - {"reader=", "simulator=", "model="} == known


def test_a_completed_word_costs_no_heavy_library(folder):
    code = (
        "import sys\n"
        "from crpipe.cli import terminal\n"
        "from crpipe.cli.app import app\n"
        "from crpipe.config.loading import load_config\n"
        "from pathlib import Path\n"
        "config = load_config([Path('config/config.yaml'), Path('mine.yaml')], options=False)\n"
        "found = [*terminal.links(config), *terminal.checkpoints(config), *terminal.keys(config)]\n"
        "heavy = {'torch', 'pyarrow', 'numpy', 'polars', 'matplotlib', 'snakemake'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy or not found else 0)"
    )
    paths = os.pathsep.join([str(REPOSITORY / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
