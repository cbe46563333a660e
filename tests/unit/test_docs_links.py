"""The pages name what exists: linked files and headings, verbs of the command line, modules of the tree."""

import functools
import re
import subprocess
import sys
from pathlib import Path

from typer.main import get_command

from crpipe.cli.app import app

REPOSITORY = Path(__file__).parents[2]
SOURCE = REPOSITORY / "src" / "crpipe"
PAGES = [*sorted(REPOSITORY.glob("*.md")), *sorted((REPOSITORY / "docs").rglob("*.md"))]
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?\n(.*?)^```", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"^    .*$", re.MULTILINE)
INLINE = re.compile(r"`([^`]+)`")
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
CALL = re.compile(r"(?<![\w./-])crpipe (?:(?:-c|--config|-s|--set) \S+ )*([a-z]+)(?: ([a-z]+))?")


def name_of(page):
    return str(page.relative_to(REPOSITORY))


@functools.cache
def headings(page):
    """List the anchors that GitHub gives to the headings of a page."""
    text = FENCE.sub("", page.read_text())
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def code(text):
    """Yield each piece of code on a page: blocks, indented lines, and words in the running text."""
    yield from FENCE.findall(text)
    rest = FENCE.sub("", text)
    yield from INDENTED.findall(rest)
    for span in INLINE.findall(INDENTED.sub("", rest)):
        yield " ".join(span.split())


def commands(group, prefix=()):
    for name, command in group.commands.items():
        yield (*prefix, name)
        if hasattr(command, "commands"):
            yield from commands(command, (*prefix, name))


def test_every_link_leads_somewhere():
    lost = []
    for page in PAGES:
        for link in LINK.findall(FENCED.sub("", page.read_text())):
            path, _, anchor = link.partition("#")
            if "://" in path:
                continue
            target = (page.parent / path).resolve() if path else page
            if not target.exists() or (anchor and anchor not in headings(target)):
                lost.append(f"{name_of(page)}: {link}")
    assert lost == []


def test_every_command_is_a_verb():
    known = {*commands(get_command(app))}
    groups = {name[0] for name in known if len(name) > 1}
    called = [
        (name_of(page), (verb, second) if verb in groups and second else (verb,))
        for page in PAGES
        for piece in code(page.read_text())
        for verb, second in CALL.findall(piece)
    ]
    assert [f"{page}: crpipe {' '.join(call)}" for page, call in called if call not in known] == []
    assert {("plan",), ("status",), ("export",), ("token",)} <= {call for _, call in called}


def test_the_tree_shows_every_module():
    script = [sys.executable, str(REPOSITORY / "docs" / "modules.py")]
    tree = subprocess.run(script, capture_output=True, text=True, check=True).stdout
    assert f"src/crpipe/\n{tree}```" in (REPOSITORY / "docs" / "architecture.md").read_text(), (
        "type: python docs/modules.py --write"
    )


def test_every_test_that_a_page_names_exists():
    lost = []
    for page in PAGES:
        for file, name in TEST.findall(page.read_text()):
            path = REPOSITORY / file
            if not path.exists() or f"\ndef {name}(" not in path.read_text():
                lost.append(f"{name_of(page)}: {file}::{name}")
    assert lost == []


def test_every_promise_about_security_has_its_test():
    rows = [line for line in (REPOSITORY / "SECURITY.md").read_text().splitlines() if line.startswith("| ")]
    promises = [row for row in rows if row != "| promise | test |"]
    assert len(promises) > 25
    assert [row for row in promises if not TEST.search(row.split(" | ")[-1])] == []
    # A test that is not written as path::name would not be looked up.
    assert all(row.count("`tests/") == len(TEST.findall(row)) for row in promises)
