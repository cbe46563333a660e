"""docs/xec.md has every key, flag and script of xec-ml-wl, and its tables name keys and verbs that exist."""

import re
from fnmatch import fnmatchcase
from pathlib import Path

from crpipe.workloads.xec import InpainterOptions, MaskedAutoencoderOptions, RegressorOptions
from crpipe.workloads.xec.reading.options import RootFilesOptions

FROZEN = Path(__file__).parent / "frozen"
PAGE = (Path(__file__).parents[2] / "docs" / "xec.md").read_text()
SPAN = re.compile(r"`([^`]+)`")
HEAD, *LINES = (FROZEN / "xec-ml-wl.txt").read_text().splitlines()
FLAGS = {script: flags for script, *flags in map(str.split, LINES) if "/" in script}
KEYS = [line for line in LINES if "/" not in line]


def section(title):
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def rows():
    """Return the patterns of the left column, and the right one."""
    return [(SPAN.findall(left), right) for left, right in cells(0)]


def cells(part):
    """Return the rows of the flags (0), or of what the documents ask for (1)."""
    text = section("Coming from xec-ml-wl").split("\n### What its documents ask for\n")[part]
    return [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| `")]


def of(name):
    """Return the right column of each row that has ``name``."""
    return [right for left, right in rows() if any(fnmatchcase(name, pattern) for pattern in left)]


def flags():
    """Return the flags that need a row: not named as a key, not of scripts without anything here."""
    named = {key.rpartition(".")[2] for key in KEYS}
    used = {flag for script, each in FLAGS.items() if not of(script)[0].startswith("none: ") for flag in each}
    return sorted(flag for flag in used if flag.removeprefix("--").replace("-", "_") not in named)


def test_every_key_flag_and_script_is_in_one_row():
    assert "cfa1a5c22beae485e2fb19fc8d0fedab8b49b9c0" in HEAD
    assert (len(FLAGS), len(KEYS), sum(map(len, FLAGS.values()))) == (101, 102, 531)
    names = [*FLAGS, *KEYS, *flags()]
    assert {name: found for name in names if len(found := of(name)) != 1} == {}
    patterns = {pattern for left, _ in rows() for pattern in left}
    assert {each for each in patterns if not any(fnmatchcase(name, each) for name in names)} == set()


def test_every_row_says_what_to_write_or_why_there_is_nothing():
    for left, right in rows():
        assert SPAN.search(right) or right.startswith("none: "), left


def test_every_document_has_a_row_that_says_in_which_way():
    named = {span for left, *_ in cells(1) for span in SPAN.findall(left.partition(": ")[0])}
    documents = {*(FROZEN / "xec-ml-wl-documents.txt").read_text().split()}
    assert named == documents - {"docs/operations/troubleshooting.md"}  # "When something goes wrong"
    assert {way for _, way, _ in cells(1)} == {"by itself", "command", "not"}


def test_every_key_and_verb_exists():
    keys = {*(FROZEN / "config-keys.txt").read_text().split()}
    options = (RegressorOptions, MaskedAutoencoderOptions, InpainterOptions)
    keys |= {f"model.{name}" for each in options for name in each.model_fields}
    keys |= {f"reader.{name}" for name in RootFilesOptions.model_fields}
    sections = {key.partition(".")[0] for key in keys}
    verbs = {line.split()[0] for line in (FROZEN / "verbs.txt").read_text().splitlines()}
    text = section("When something goes wrong") + "".join(right for _, right in rows())
    text += "".join(right for *_, right in cells(1))
    checked = 0
    for span in SPAN.findall(text):
        name = span.partition(":")[0]
        if re.fullmatch(r"[a-z]+(\.[a-z0-9_]+)+", name) and name.partition(".")[0] in sections:
            assert name in keys or name.startswith(("model.codec.", "source.tables")), span
            checked += 1
        if span.startswith("crpipe "):
            assert span.split()[1] in verbs, span
            checked += 1
    assert checked > 80
