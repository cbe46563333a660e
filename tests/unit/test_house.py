"""What keeps the house readable: one name for one thing, no workload's words in the engine, small folders."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "crpipe"
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
MOST_MODULES = 15


def test_a_class_name_means_one_thing():
    places = defaultdict(list)
    for path in SOURCE.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path.relative_to(SOURCE)))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


@pytest.mark.parametrize("path", ENGINE, ids=lambda path: str(path.relative_to(SOURCE)))
def test_the_engine_speaks_of_no_workload(path):
    named = [
        f"line {number}: {line.strip()}"
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if WORDS.search(EXEMPT.sub("", line))
    ]
    assert named == []


def test_a_folder_holds_few_modules():
    folders = [SOURCE, *(path for path in SOURCE.rglob("*") if path.is_dir())]
    counts = {
        str(folder.relative_to(SOURCE)): len([path for path in folder.glob("*.py") if path.stem[0] != "_"])
        for folder in folders
    }
    assert {name: count for name, count in counts.items() if count > MOST_MODULES} == {}
