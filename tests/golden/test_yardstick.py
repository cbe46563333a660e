"""What the verbs make and print is what it was, to the byte: the yardstick for every change of shape.

A commit that changes a line of products.txt or words.txt says why; `make golden` writes both anew.
"""

import difflib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(1800)
HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TEXTS = ("products.txt", "words.txt")
SHOWN = 40  # lines of a difference


def run(root, folder):
    """Run the yardstick of a checkout; give its texts as lines."""
    environment = os.environ | {"PYTHONPATH": str(root / "src"), "OMP_NUM_THREADS": "1"}
    script = root / "tests" / "golden" / "yardstick.py"
    ended = subprocess.run(
        [sys.executable, script, folder], env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-4000:]
    return [(folder / each).read_text().splitlines() for each in TEXTS]


def committed(folder):
    """Check out the commit that wrote the texts."""

    def git(*words):
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout

    commit = git("log", "-1", "--format=%H", "--", *(f"tests/golden/{each}" for each in TEXTS)).strip()
    folder.mkdir()
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
    return folder


def test_products_and_words_are_those_of_the_commit_that_wrote_them_down(tmp_path):
    seen = run(ROOT, tmp_path / "now")
    wanted = [(HERE / each).read_text().splitlines() for each in TEXTS]
    if seen[0][0] != wanted[0][0]:  # this machine computes in another way
        if not shutil.which("git") or not (ROOT / ".git").exists():
            pytest.skip(f"written with {wanted[0][0]}, this is {seen[0][0]}: a git checkout could compare")
        wanted = run(committed(tmp_path / "commit"), tmp_path / "then")
    for name, old, new in zip(TEXTS, wanted, seen, strict=True):
        lines = list(difflib.unified_diff(old, new, f"{name}, committed", f"{name}, now", n=1, lineterm=""))
        assert not lines, "\n".join(lines[:SHOWN])
