import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs" / "data.md"
BLOCKS = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
OPTIONAL = ("polars", "duckdb")


def package(block):
    return re.search(r"(?:pyarrow|pandas|polars|duckdb|crpipe)", block).group()


@pytest.fixture(scope="module")
def folder(tmp_path_factory, write_shards):
    shards = [[[2, 0, 5] * 40, [1, 0] * 20], [[3] * 50]]
    return write_shards(tmp_path_factory.mktemp("shards"), shards)


def test_the_page_shows_each_tool_once():
    assert [package(block) for block in BLOCKS] == ["pyarrow", "pandas", "polars", "duckdb", "crpipe"]


@pytest.mark.parametrize("block", BLOCKS, ids=package)
def test_a_block_runs_as_it_stands(folder, block):
    if package(block) in OPTIONAL and find_spec(package(block)) is None:
        pytest.skip(f"pip install {package(block)}")
    done = subprocess.run(
        [sys.executable, "-c", block], cwd=folder, capture_output=True, text=True, check=False, env=os.environ
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
