"""Every block of code in the documentation is run by a test, or says why not and when it was last tried.

A new block fails here until the register names the test that runs it, or the block (or the paragraph before
it) says ``not run in CI: REASON; last tried DATE``.
"""

import json
import re
from pathlib import Path

import yaml

from crpipe.config.loading import read_tree, validate
from crpipe.core.errors import ConfigError

REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"
PAGES = [*sorted(REPOSITORY.glob("*.md")), *sorted(DOCS.rglob("*.md"))]
BLOCK = re.compile(r"^```([^\n`]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
# What no person types: text, and what the site's builder reads.
SHOWN = ("text", "", "{eval-rst}", "{toctree}")
NOT_RUN = re.compile(r"[Nn]ot run in CI[:;][^\n]*(?:\n[^\n]+)?20\d\d-\d\d-\d\d")
BY_ITSELF = re.compile(r"CI runs (?:it by itself|these lines)|which CI runs|`tests/[\w/]+\.py::\w+`")
HERE = "tests/unit/test_docs_blocks.py"

STEPS = "tests/integration/test_docs_pages.py"
DIRECTION, XEC = "tests/integration/test_docs_direction.py", "tests/integration/test_docs_xec.py"
TRAINING, OPERATIONS = "tests/integration/test_docs_training.py", "tests/integration/test_docs_operations.py"
# The test that runs the blocks of a page, by their languages; it reads the page itself.
RUN_BY = {
    "CONTRIBUTING.md": {"bash": ".ci/run"},
    "README.md": {"bash": "tests/integration/test_workflow.py"},
    "docs/anywhere.md": {"bash": "tests/integration/test_packs.py"},
    "docs/api.md": {"python": "tests/integration/test_tutorial.py"},
    "docs/data.md": {"python": "tests/unit/test_docs_data.py", "yaml": HERE},
    "docs/direction.md": dict.fromkeys(("python", "yaml", "bash"), DIRECTION),
    "docs/export.md": dict.fromkeys(("python", "bash"), "tests/integration/test_docs_export.py"),
    # Its `sh` blocks are not run; this test reads the reason and the date after each.
    "docs/install.md": dict.fromkeys(("bash", "sh"), "tests/unit/test_docs_install.py"),
    "docs/migration.md": dict.fromkeys(("yaml", "bash"), "tests/unit/test_docs_migration.py"),
    "docs/operations.md": {"bash": OPERATIONS, "yaml": HERE},
    "docs/own-data.md": {"python": "tests/unit/test_docs_own_data.py"}
    | dict.fromkeys(("yaml", "bash"), STEPS),
    "docs/pelican.md": {"yaml": HERE},
    "docs/physics.md": {"yaml": HERE},
    "docs/training.md": dict.fromkeys(("yaml", "python", "bash"), TRAINING),
    "docs/weeks.md": dict.fromkeys(("yaml", "bash"), "tests/integration/test_weeks.py"),
    "docs/workload.md": dict.fromkeys(("yaml", "python", "bash"), "tests/outside/test_page.py"),
    "docs/xec.md": dict.fromkeys(("python", "yaml", "bash"), XEC),
}


def name_of(page):
    return str(page.relative_to(REPOSITORY))


def blocks_of(page):
    """Yield language, text and the paragraph before each block of a page."""
    text = page.read_text()
    for found in BLOCK.finditer(text):
        before = text[: found.start()].rstrip().rpartition("\n\n")[2]
        yield found[1].strip(), found[2], before


def silent_blocks(page):
    """Yield the blocks of a page that no test runs and that do not say why."""
    tests = RUN_BY.get(name_of(page), {})
    for language, text, before in blocks_of(page):
        marked = any(mark.search(each) for mark in (NOT_RUN, BY_ITSELF) for each in (text, before))
        if language not in SHOWN and language not in tests and not marked:
            yield f"{name_of(page)}, {language}: {text.splitlines()[0]}"


def test_every_block_is_run_by_a_test_or_says_why_not():
    assert [block for page in PAGES for block in silent_blocks(page)] == [], (
        "name the test that runs them in RUN_BY of tests/unit/test_docs_blocks.py, or write beside them "
        "`not run in CI: REASON; last tried DATE`"
    )


def wrong_in_register(page, language, test):
    """Yield what a line of the register says that is not so."""
    blocks = list(blocks_of(REPOSITORY / page))
    source = (REPOSITORY / test).read_text()
    if language not in {found for found, _, _ in blocks}:
        yield "the page has no such block"
    if test == ".ci/run":
        commands = [line.partition("#")[0].strip() for _, text, _ in blocks for line in text.splitlines()]
        yield from (line for line in commands if line != "make install" and line not in source)
        return
    if Path(page).name not in source:
        yield f"{test} does not name the page"
    if test != HERE and language not in source:
        yield f"{test} does not name the language"


def test_the_register_names_blocks_and_tests_that_exist():
    wrong = [
        f"{page}, {language}: {what}"
        for page, tests in RUN_BY.items()
        for language, test in tests.items()
        for what in wrong_in_register(page, language, test)
    ]
    assert wrong == []


def test_the_pieces_of_configuration_are_legal(tmp_path):
    pieces = [
        (name_of(page), text)
        for page in PAGES
        for language, text, _ in blocks_of(page)
        if RUN_BY.get(name_of(page), {}).get(language) == HERE
    ]
    assert pieces
    illegal = []
    for page, text in pieces:
        (tmp_path / "piece.yaml").write_text(text)
        try:
            assert yaml.safe_load(text), "empty"
            validate(*read_tree([REPOSITORY / "config" / "config.yaml", tmp_path / "piece.yaml"]))
        except (AssertionError, yaml.YAMLError, ConfigError) as error:
            illegal.append(f"{page}: {text.splitlines()[0]}: {error}")
    assert illegal == []


def test_the_tutorial_is_committed_without_outputs():
    cells = json.loads((DOCS / "tutorial.ipynb").read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert len(code) > 5
    assert [cell["outputs"] for cell in code] == [[]] * len(code)
    assert {cell["execution_count"] for cell in code} == {None}
