"""docs/xec.md has every key and script of xec-ml-wl, and its tables name keys and verbs that exist."""

import re
from fnmatch import fnmatchcase
from pathlib import Path

from crpipe.workloads.xec import InpainterOptions, MaskedAutoencoderOptions, RegressorOptions
from crpipe.workloads.xec.reading.options import RootFilesOptions

FROZEN = Path(__file__).parent / "frozen"
PAGE = (Path(__file__).parents[2] / "docs" / "xec.md").read_text()
SPAN = re.compile(r"`([^`]+)`")


def section(title):
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def rows():
    """Return the patterns of the left column, and the right one."""
    lines = [line for line in section("Coming from xec-ml-wl").splitlines() if line.startswith("| `")]
    cells = [line.strip("| ").split(" | ") for line in lines]
    return [(SPAN.findall(left), right) for left, right in cells]


def test_every_key_and_script_is_in_one_row():
    head, *names = (FROZEN / "xec-ml-wl.txt").read_text().splitlines()
    assert "cfa1a5c22beae485e2fb19fc8d0fedab8b49b9c0" in head
    assert len(names) == 100 + 102
    matching = {
        name: [left for left, _ in rows() if any(fnmatchcase(name, pattern) for pattern in left)]
        for name in names
    }
    assert {name: found for name, found in matching.items() if len(found) != 1} == {}
    patterns = {pattern for left, _ in rows() for pattern in left}
    assert {each for each in patterns if not any(fnmatchcase(name, each) for name in names)} == set()


def test_every_row_says_what_to_write_or_why_there_is_nothing():
    for left, right in rows():
        assert SPAN.search(right) or right.startswith("none: "), left


def test_every_key_and_verb_exists():
    keys = {*(FROZEN / "config-keys.txt").read_text().split()}
    options = (RegressorOptions, MaskedAutoencoderOptions, InpainterOptions)
    keys |= {f"model.{name}" for each in options for name in each.model_fields}
    keys |= {f"reader.{name}" for name in RootFilesOptions.model_fields}
    sections = {key.partition(".")[0] for key in keys}
    verbs = {line.split()[0] for line in (FROZEN / "verbs.txt").read_text().splitlines()}
    text = section("When something goes wrong") + "".join(right for _, right in rows())
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
