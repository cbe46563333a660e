"""Every flag of cr_muons and iceaggr has a row, and what the rows name exists."""

import os
import re
import subprocess
import sys
from pathlib import Path

from crpipe.workloads.direction import FlatTransformerOptions, HierarchicalTransformerOptions
from crpipe.workloads.muons import MuonGanOptions

REPOSITORY = Path(__file__).parents[2]
FROZEN = Path(__file__).parent / "frozen"
PAGE = (REPOSITORY / "docs" / "migration.md").read_text()
SPAN = re.compile(r"`([^`]+)`")
ICEAGGR = (REPOSITORY / "docs" / "direction.md").read_text().partition("## Coming from iceaggr")[2]
TEXT = re.sub(r"^```.*?^```", "", PAGE, flags=re.MULTILINE | re.DOTALL)


def rows():
    """The rows of the tables with three columns: those of the flags."""
    cells = [
        line.strip("| ").split(" | ") for line in PAGE.splitlines() if line.startswith(("| `-", "| `--"))
    ]
    return [(SPAN.findall(row[0]), SPAN.findall(row[1])) for row in cells]


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
    found = [flag for first, _ in rows() for flag in first]
    assert sorted(found) == sorted(" ".join(flags).split())


def test_every_script_with_its_options_and_every_document_is_on_the_page():
    """The list has each file of cr_muons but its packages' `__init__`, and two that only its README names."""
    named = {}
    for line in PAGE.splitlines():
        if line.startswith("| `"):
            spans = SPAN.findall(line.split(" | ")[0])
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
    assert [first for first, second in rows() if not second] == [
        first for first, second in rows() if f"| {' '.join(f'`{each}`' for each in first)} | none |" in PAGE
    ]


def test_every_key_exists():
    keys = {*(FROZEN / "config-keys.txt").read_text().split()}
    keys |= {f"model.{name}" for name in MuonGanOptions.model_fields}  # of the earlier system's model
    named = {span.split(":")[0] for span in SPAN.findall(TEXT)}
    sections = {key.split(".")[0] for key in keys if "." in key}
    dotted = {
        name
        for name in named
        if re.fullmatch(r"[a-z]+\.(?!py$)[a-z_]+", name) and name.split(".")[0] in sections
    }
    assert len(dotted) > 30
    assert dotted - keys == set()
    whole = {span for _, second in rows() for span in second if "." not in span and " " not in span}
    assert whole <= keys | {*verbs()}


def test_every_key_flag_and_script_of_iceaggr_has_one_row_that_says_what_to_write():
    head, *names = (FROZEN / "iceaggr-keys.txt").read_text().splitlines()
    page, _, asked = ICEAGGR.partition("\n### What its documents ask for\n")
    assert f"at {re.search('[0-9a-f]{40}', head)[0][:7]}" in page
    cells = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| `")]
    assert {len(row) for row in cells} == {2}
    listed = [span for row in cells for span in SPAN.findall(row[0])]
    assert len(names) == 65 + 15 + 7
    assert [name for name in names if listed.count(name) != 1] == []
    keys = {*(FROZEN / "config-keys.txt").read_text().split()}
    kinds = (FlatTransformerOptions, HierarchicalTransformerOptions)
    keys |= {f"model.{name}" for kind in kinds for name in kind.model_fields}
    named = {span.split(":")[0] for row in cells for span in SPAN.findall(row[1])}
    named |= {*SPAN.findall(asked)}
    dotted = {name for name in named if re.fullmatch(r"[a-z]+(\.(?!md$)[a-z_]+)+", name)}
    assert len(dotted) > 30
    assert dotted - keys == set()


def test_every_document_of_iceaggr_has_a_row_that_says_in_which_way():
    asked = ICEAGGR.partition("\n### What its documents ask for\n")[2]
    cells = [line.strip("| ").split(" | ") for line in asked.splitlines() if line.startswith("| `")]
    named = {span for row in cells for span in SPAN.findall(row[0].partition(": ")[0])}
    assert named == {*(FROZEN / "iceaggr-documents.txt").read_text().split()}
    assert {way for _, way, _ in cells} == {"by itself", "command", "not"}


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
