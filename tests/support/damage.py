"""Ways to damage a file."""

import json

import pyarrow as pa
import pyarrow.parquet as pq


def flip(path, place=None):
    """Change one byte, in the middle if no place is given."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2 if place is None else place] ^= 1
    path.write_bytes(data)


def cut(path):
    path.write_bytes(path.read_bytes()[:-1])


def swap(one, other):
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


def edit(path, change):
    """Change a JSON file in place, so that a second name of it changes too."""
    tree = json.loads(path.read_text())
    change(tree)
    path.write_text(json.dumps(tree, indent=1, sort_keys=True) + "\n")


def edit_rows(path, change):
    """Change the rows of a Parquet file."""
    table = pq.read_table(path)
    rows = table.to_pylist()
    change(rows)
    path.write_bytes(b"")
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), path)
