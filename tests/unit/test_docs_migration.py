"""Every flag of cr_muons, iceaggr and xec-ml-wl has a row, and what the rows name exists."""

import os
import re
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from crpipe.workloads.direction import FlatTransformerOptions, HierarchicalTransformerOptions
from crpipe.workloads.muons import MuonGanOptions
from crpipe.workloads.xec import InpainterOptions, MaskedAutoencoderOptions, RegressorOptions
from crpipe.workloads.xec.reading.options import RootFilesOptions

REPOSITORY = Path(__file__).parents[2]
FROZEN = Path(__file__).parent / "frozen"
PAGE = (REPOSITORY / "docs" / "migration.md").read_text()
SPAN = re.compile(r"`([^`]+)`")
ASKED = "\n### What its documents ask for\n"
ICEAGGR, _, ICEAGGR_ASKED = (
    (REPOSITORY / "docs" / "direction.md").read_text().partition("## Coming from iceaggr")[2].partition(ASKED)
)
XEC_PAGE = (REPOSITORY / "docs" / "xec.md").read_text()
XEC, _, XEC_ASKED = (
    XEC_PAGE.partition("\n## Coming from xec-ml-wl\n")[2].partition("\n## ")[0].partition(ASKED)
)
XEC_HEAD, *XEC_LINES = (FROZEN / "xec-ml-wl.txt").read_text().splitlines()
XEC_FLAGS = {script: flags for script, *flags in map(str.split, XEC_LINES) if "/" in script}
XEC_KEYS = [line for line in XEC_LINES if "/" not in line]
CONFIG_KEYS = frozenset((FROZEN / "config-keys.txt").read_text().split())
TEXT = re.sub(r"^```.*?^```", "", PAGE, flags=re.MULTILINE | re.DOTALL)


def rows(text, begin="| `"):
    """The cells of each row of the tables."""
    return [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith(begin)]


def flag_rows():
    """The rows of the tables with three columns: those of the flags."""
    return [(SPAN.findall(row[0]), SPAN.findall(row[1])) for row in rows(PAGE, "| `-")]


def options(*kinds):
    return {f"model.{name}" for kind in kinds for name in kind.model_fields}


def xec_rows():
    """Return the patterns of the left column, and the right one."""
    return [(SPAN.findall(left), right) for left, right in rows(XEC)]


def of(name):
    """Return the right column of each row that has ``name``."""
    return [right for left, right in xec_rows() if any(fnmatchcase(name, pattern) for pattern in left)]


def xec_flags():
    """Return the flags that need a row: not named as a key, not of scripts without anything here."""
    named = {key.rpartition(".")[2] for key in XEC_KEYS}
    used = {
        flag for script, each in XEC_FLAGS.items() if not of(script)[0].startswith("none: ") for flag in each
    }
    return sorted(flag for flag in used if flag.removeprefix("--").replace("-", "_") not in named)


def verbs():
    """Each verb with its options."""
    known = {}
    for line in (FROZEN / "verbs.txt").read_text().splitlines():
        words = line.split(" -")[0].split()
        options = set(re.findall(r"--\S+", line))
        for name in (words[0], " ".join(words[:2])):
            known[name] = known.get(name, set()) | options
    return known


def test_every_flag_is_on_the_page_once():
    names = ("cr-muons-flags.txt", "cr-muons-token-flags.txt")  # of train.py and get_pelican_token.py
    flags = [line for name in names for line in (FROZEN / name).read_text().splitlines()]
    assert len(flags) == 77 + 13
    found = [flag for first, _ in flag_rows() for flag in first]
    assert sorted(found) == sorted(" ".join(flags).split())


def test_every_script_with_its_options_and_every_document_is_on_the_page():
    """The list has each file of cr_muons but its packages' `__init__`, and two that only its README names."""
    named = {}
    for left, *_ in rows(PAGE):
        spans = SPAN.findall(left)
        for script in [span for span in spans if re.search(r"\.(py|sh|md|txt|condor|apptainer)$", span)]:
            named.setdefault(script, set()).update(spans)
    lines = [line.split() for line in (FROZEN / "cr-muons-scripts.txt").read_text().splitlines()]
    assert len(lines) == 37
    for path, *options in lines:
        name = path if path.endswith("README.md") else Path(path).name
        of_flags = ["get_pelican_token.py"]  # their options have tables of their own
        assert name in {*named, *of_flags}, path
        assert {*options} <= named.get(name, set()), path


def test_every_row_says_what_to_write():
    assert [first for first, second in flag_rows() if not second] == [
        first
        for first, second in flag_rows()
        if f"| {' '.join(f'`{each}`' for each in first)} | none |" in PAGE
    ]


def test_every_key_exists():
    keys = CONFIG_KEYS | options(MuonGanOptions)  # of the earlier system's model
    named = {span.split(":")[0] for span in SPAN.findall(TEXT)}
    sections = {key.split(".")[0] for key in keys if "." in key}
    dotted = {
        name
        for name in named
        if re.fullmatch(r"[a-z]+\.(?!py$)[a-z_]+", name) and name.split(".")[0] in sections
    }
    assert len(dotted) > 30
    assert dotted - keys == set()
    whole = {span for _, second in flag_rows() for span in second if "." not in span and " " not in span}
    assert whole <= keys | {*verbs()}


def test_every_key_flag_and_script_of_iceaggr_has_one_row_that_says_what_to_write():
    head, *names = (FROZEN / "iceaggr-keys.txt").read_text().splitlines()
    assert f"at {re.search('[0-9a-f]{40}', head)[0][:7]}" in ICEAGGR
    cells = rows(ICEAGGR)
    assert {len(row) for row in cells} == {2}
    listed = [span for row in cells for span in SPAN.findall(row[0])]
    assert len(names) == 65 + 15 + 7
    assert [name for name in names if listed.count(name) != 1] == []
    keys = CONFIG_KEYS | options(FlatTransformerOptions, HierarchicalTransformerOptions)
    named = {span.split(":")[0] for row in cells for span in SPAN.findall(row[1])}
    named |= {*SPAN.findall(ICEAGGR_ASKED)}
    dotted = {name for name in named if re.fullmatch(r"[a-z]+(\.(?!md$)[a-z_]+)+", name)}
    assert len(dotted) > 30
    assert dotted - keys == set()


def test_every_key_flag_and_script_of_xec_ml_wl_is_in_one_row():
    assert "cfa1a5c22beae485e2fb19fc8d0fedab8b49b9c0" in XEC_HEAD
    assert (len(XEC_FLAGS), len(XEC_KEYS), sum(map(len, XEC_FLAGS.values()))) == (101, 102, 531)
    names = [*XEC_FLAGS, *XEC_KEYS, *xec_flags()]
    assert {name: found for name in names if len(found := of(name)) != 1} == {}
    patterns = {pattern for left, _ in xec_rows() for pattern in left}
    assert {each for each in patterns if not any(fnmatchcase(name, each) for name in names)} == set()


def test_every_row_of_xec_ml_wl_says_what_to_write_or_why_there_is_nothing():
    for left, right in xec_rows():
        assert SPAN.search(right) or right.startswith("none: "), left


@pytest.mark.parametrize(
    ("asked", "name", "elsewhere"),
    [
        (ICEAGGR_ASKED, "iceaggr", set()),
        # "When something goes wrong"
        (XEC_ASKED, "xec-ml-wl", {"docs/operations/troubleshooting.md"}),
    ],
)
def test_every_document_has_a_row_that_says_in_which_way(asked, name, elsewhere):
    named = {span for left, *_ in rows(asked) for span in SPAN.findall(left.partition(": ")[0])}
    assert named == {*(FROZEN / f"{name}-documents.txt").read_text().split()} - elsewhere
    assert {way for _, way, _ in rows(asked)} == {"by itself", "command", "not"}


def test_every_key_and_verb_of_xec_ml_wls_rows_exists():
    keys = CONFIG_KEYS | options(RegressorOptions, MaskedAutoencoderOptions, InpainterOptions)
    keys |= {f"reader.{name}" for name in RootFilesOptions.model_fields}
    sections, known = {key.partition(".")[0] for key in keys}, verbs()
    text = XEC_PAGE.partition("\n## When something goes wrong\n")[2].partition("\n## ")[0]
    text += "".join(right for _, right in xec_rows()) + "".join(right for *_, right in rows(XEC_ASKED))
    checked = 0
    for span in SPAN.findall(text):
        name = span.partition(":")[0]
        if re.fullmatch(r"[a-z]+(\.[a-z0-9_]+)+", name) and name.partition(".")[0] in sections:
            assert name in keys or name.startswith(("model.codec.", "source.tables")), span
            checked += 1
        if span.startswith("crpipe "):
            assert span.split()[1] in known, span
            checked += 1
    assert checked > 80


def test_every_verb_and_option_exists():
    known, checked = verbs(), 0
    for span in SPAN.findall(TEXT):
        words = span.removeprefix("crpipe ").split()
        name = next((each for each in (" ".join(words[:2]), words[0]) if each in known), None)
        if name is not None:
            assert {word for word in words if word.startswith("--")} <= known[name], span
            checked += 1
    assert checked > 12


def test_the_configuration_of_the_page_passes_its_check(tmp_path):
    yaml, command = (re.search(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)[1] for kind in ("yaml", "bash"))
    (tmp_path / "mine.yaml").write_text(yaml)
    (tmp_path / "config").symlink_to(REPOSITORY / "config")
    words = [sys.executable, "-m", "crpipe", *command.split()[1:]]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY / "src")}
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
