"""What keeps the house readable: one name for one thing, no workload's words in the engine, small rooms."""

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
SOURCE = REPOSITORY / "src" / "crpipe"
ENGINE = [
    path
    for path in sorted(SOURCE.rglob("*"))
    if path.suffix in (".py", ".j2", ".css", ".html") and not path.is_relative_to(SOURCE / "workloads")
]
WORDS = re.compile(
    r"muon|bundle|primar(?:y|ies)|shower|pulse|sensor|gamma|xenon|photon|scintill|neutrino", re.IGNORECASE
)
# An environment variable, and SQL.
EXEMPT = re.compile(r"REQUESTS_CA_BUNDLE|PRIMARY KEY")
# What a docstring must not begin with: Return, Format, Run, Recreate and other usual verbs say more.
DIALECT = re.compile(r"(Give|Say|Spell|Let|Tell|Take note)\b|Make\b.*\bagain\b")
# Names that name nothing: a reader needs the noun, such as files, receipt, index or path.
EMPTY_NAMES = frozenset(("found", "made", "told", "own", "place"))
# Modules and lines of each room, at most; a commit that needs more says for what. The aim is 38,000 lines.
BUDGET = {
    "core": (12, 2795),
    "config": (9, 1840),
    "events": (12, 1990),
    "campaign": (13, 2940),
    "source": (28, 7105),
    "split": (14, 3595),
    "loading": (5, 1115),
    "report": (23, 5785),
    "train": (22, 4930),
    "inference": (15, 3345),
    "statistics": (6, 910),
    "check": (7, 1730),
    "packs": (6, 1430),
    "setup": (6, 1675),
    "author": (2, 480),
    "workloads": (74, 15565),
    "workflow": (11, 2485),
    "cli": (9, 2790),
    "api": (2, 525),
    "contract": (12, 2060),
}


@cache  # not when this file is imported, as by each process that runs tests
def trees():
    """Parse all modules."""
    return {path: ast.parse(path.read_text()) for path in sorted(SOURCE.rglob("*.py"))}


def test_a_class_name_means_one_thing():
    places = defaultdict(list)
    for path, tree in trees().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path.relative_to(SOURCE)))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_docstrings_begin_with_usual_verbs():
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    odd = [
        f"{path.relative_to(SOURCE)}: {text.splitlines()[0]}"
        for path, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, kinds) and (text := ast.get_docstring(node)) and DIALECT.match(text)
    ]
    assert odd == []


def test_names_are_nouns():
    """Except in comprehensions, of fields (they are on disk), and of the parameter ``made`` of exports."""
    odd = []
    for path, tree in trees().items():
        free = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.comprehension):
                free |= {id(part) for part in ast.walk(node.target)}
            elif isinstance(node, ast.ClassDef):
                free |= {id(field.target) for field in node.body if isinstance(field, ast.AnnAssign)}
        for node in ast.walk(tree):
            if isinstance(node, ast.arg):
                name = node.arg if node.arg != "made" else ""
            else:
                name = node.id if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) else ""
            if name in EMPTY_NAMES and id(node) not in free:
                odd.append(f"{path.relative_to(SOURCE)}, line {node.lineno}: {name}")
    assert odd == []


def test_the_engine_speaks_of_no_workload():
    assert len(ENGINE) > 20
    named = [
        f"{path.relative_to(SOURCE)}, line {number}: {line.strip()}"
        for path in ENGINE
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if WORDS.search(EXEMPT.sub("", line))
    ]
    assert named == []


def test_make_runs_every_test():
    """`make test` and `make test-all` share folders, one without the slow tests and one with them alone."""
    makefile = (REPOSITORY / "Makefile").read_text()
    unnamed = [
        folder.name
        for folder in (REPOSITORY / "tests").iterdir()
        if any(folder.rglob("test_*.py")) and f"tests/{folder.name}" not in makefile
    ]
    assert unnamed == []
    runs = dict(re.findall(r"^(test|test-all): \$\(READY\)\n((?:\t.*\n)+)", makefile, re.MULTILINE))
    assert '-m "not slow" $(TESTS)\n' in runs["test"]
    assert " -m slow " in runs["test-all"]
    assert "$$(grep -rlw slow --include='test_*.py' $(TESTS))\n" in runs["test-all"]
    assert {"\t$(MAKE) test\n", "\t$(MAKE) test-all\n"} <= {
        f"{line}\n" for line in makefile.partition("\ncheck:")[2].partition("\n\n")[0].splitlines()
    }


def test_every_room_keeps_to_its_budget():
    rooms = {path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists()}
    assert rooms == {*BUDGET}
    over = []
    for room, (modules, lines) in BUDGET.items():
        paths = list((SOURCE / room).rglob("*.py"))
        sizes = [len(path.read_text().splitlines()) for path in paths]
        count = len([path for path in paths if path.name != "__init__.py"])
        if count > modules or sum(sizes) > lines:
            over.append(f"{room}: {count} modules, {sum(sizes)} lines")
    assert over == []
