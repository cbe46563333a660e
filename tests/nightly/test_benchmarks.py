"""Each benchmark runs in its smallest form; the checklist for a GPU is rehearsed on the CPU, as docs say."""

import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.catalogue import BENCHMARKS

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.parametrize("name", [name for name in BENCHMARKS if not name.startswith("gpu")])
def test_the_smallest_form_runs(name):
    peer = ["--peer", "before=HEAD"] if name == "against" else []
    words = [sys.executable, "-m", "benchmarks", name, "--smallest", *peer]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=REPOSITORY)
    assert done.returncode == 0, done.stdout + done.stderr
