"""A ROOT file holds any columns of numbers and texts, in bounded memory, and the same bytes each time."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from crpipe.core import errors
from crpipe.core.errors import ConfigError, MissingExtra
from crpipe.inference import output_file
from crpipe.inference.output_file import check_suffix, refuse_columns, write_root

uproot = pytest.importorskip("uproot")
pytest.importorskip("awkward")

TYPES = [
    "bool",
    *(f"{sign}int{size}" for sign in ("", "u") for size in (8, 16, 32, 64)),
    "float32",
    "float64",
]
META = {"crpipe": "1", "step": 7, "share": 0.5}


def table(rows, seed=0):
    rng = np.random.default_rng(seed)
    columns = {name: rng.integers(0, 100, rows).astype(name) for name in TYPES}
    texts = [["", "é/b.root", "x" * 300][place] for place in rng.integers(0, 3, rows)]
    return pa.table({**columns, "text": pa.array(texts, pa.string()), "a name": columns["float64"]})


def write(path, tables, meta=META):
    write_root(path, tables[0].schema, tables, meta)
    return path


def read(path):
    with uproot.open(path) as file:
        trees = {name: file[name] for name in ("predictions", "metadata")}
        return {name: tree.arrays(library="np") for name, tree in trees.items()}


@pytest.mark.parametrize("portion", [1, 7, 1 << 16])
def test_types_and_values_come_back_however_they_are_cut(tmp_path, monkeypatch, portion):
    monkeypatch.setattr(output_file, "_PORTION", portion)
    tables = [table(5, 1), table(0), table(3, 2), table(9, 3)]
    found = read(write(tmp_path / "out.root", tables))
    whole = pa.concat_tables(tables)
    assert [*found["predictions"]] == whole.column_names
    for name in TYPES:
        assert found["predictions"][name].dtype == np.dtype(name)
        assert found["predictions"][name].tolist() == whole[name].to_pylist()
    assert found["predictions"]["text"].tolist() == whole["text"].to_pylist()
    assert {name: values.tolist() for name, values in found["metadata"].items()} == {
        name: [value] for name, value in META.items()
    }


def test_equal_rows_give_equal_bytes_under_any_name_and_at_any_time(tmp_path):
    first = write(tmp_path / "a.root", [table(50)]).read_bytes()
    time.sleep(1.1)  # dates in ROOT files count seconds
    assert write(tmp_path / "longer.root", [table(50)]).read_bytes() == first
    assert write(tmp_path / "c.root", [table(50)], {**META, "step": 8}).read_bytes() != first
    assert write(tmp_path / "d.root", [table(50, 1)]).read_bytes() != first


@pytest.mark.parametrize(
    "column",
    [
        pa.array([[1.0], []]),
        pa.array(["a", "a"]).dictionary_encode(),
        pa.array([1, 2], pa.timestamp("s")),
        pa.array([1.0, 2.0], pa.float16()),
        pa.nulls(2),
    ],
)
def test_what_a_branch_cannot_hold_is_named(column):
    schema = pa.table({"good": pa.array([1, 2]), "bad": column}).schema
    with pytest.raises(
        ConfigError, match=r"out.root: .* cannot hold bad \(.*\); choose .*\.parquet, or other col"
    ):
        refuse_columns(schema, Path("out.root"))


def test_missing_values_are_refused_and_leave_a_file_that_is_closed(tmp_path):
    rows = pa.table({"x": pa.array([1.0, None])})
    with pytest.raises(ConfigError, match=r"x lacks 1 value, which a ROOT tree cannot hold"):
        write(tmp_path / "out.root", [rows])


def test_without_uproot_the_extra_is_named_before_anything_is_computed(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr(errors, "import_module", missing)
    with pytest.raises(MissingExtra, match=r"to write ROOT files .* pip install 'crpipe\[root\]'"):
        check_suffix(Path("out.root"))


PROGRAM = """
import pathlib, resource, sys
import numpy as np, pyarrow as pa
from crpipe.inference.output_file import write_root

def portion(seed):
    columns = {f"x{i}": np.random.default_rng(seed + i).random(1 << 16) for i in range(8)}
    return pa.table({**columns, "path": pa.array(["some/file.root"] * (1 << 16))})

def portions(count):
    global before
    for number in range(count):
        yield portion(number)
        if number == 4:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

write_root(pathlib.Path(sys.argv[1]), portion(0).schema, portions(int(sys.argv[2])), {"a": 1})
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_rows(tmp_path):
    """35 portions more are 150 MB of numbers, and the file is as large."""
    path = tmp_path / "out.root"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path), "40"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert path.stat().st_size > 100 << 20
    assert int(done.stdout) < 30
