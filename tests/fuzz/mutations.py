"""Seeded changes of files: bytes, trees of JSON and YAML, Parquet, HDF5, checkpoints."""

import hashlib
import io
import json
import random
import re

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import yaml

EXTREMES = (0, 1, -1, 2**31, -(2**31), 2**32, 2**40, 2**63, -(2**63), 2**64, 10**30, 0.5, -0.0, 1e300, 1e-300)
SPECIAL = (
    float("nan"),
    float("inf"),
    float("-inf"),
    None,
    True,
    "",
    "x",
    "\x00",
    "é\u202e\x1b[0m",
    "../../x",
    "7",
)
TREES = ([], {}, [[]], {"a": {"a": 1}}, [1, "a", None])
TOKENS = re.compile(rb"[A-Za-z_]{2,}|[0-9]+(?:\.[0-9]+)?")


def change_bytes(content, rng):
    """Change the bytes of a file, once to four times."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        content = rng.choice(BYTES)(bytes(content), rng)
    return content


def _place(content, rng):
    """Choose a place; the ends of a file, where headers and footers are, more often."""
    size = len(content)
    if not size:
        return 0
    near = rng.randrange(min(size, 300))
    return rng.choice((rng.randrange(size), near, size - 1 - near))


def _flip(content, rng):
    if not content:
        return b"x"
    at = _place(content, rng)
    return content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :]


def _cut(content, rng):
    return content[: _place(content, rng)]


def _cut_start(content, rng):
    return content[_place(content, rng) :]


def _remove(content, rng):
    at = _place(content, rng)
    return content[:at] + content[at + rng.choice((1, 2, 4, 8, 64, 4096)) :]


def _insert(content, rng):
    at = _place(content, rng)
    return content[:at] + rng.randbytes(rng.choice((1, 4, 100))) + content[at:]


def _fill(content, rng):
    at, size = _place(content, rng), rng.choice((1, 4, 8, 64, 512))
    size = min(size, len(content) - at)
    value = rng.choice((b"\0", b"\xff", b"\x7f", b"\x80"))
    return content[:at] + value * size + content[at + size :]


def _number(content, rng):
    """Write a number of 4 or 8 bytes, of either order."""
    size, order = rng.choice((4, 8)), rng.choice(("little", "big"))
    at = min(_place(content, rng), max(len(content) - size, 0))
    value = rng.choice((0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**64 - 1)) % 2 ** (8 * size)
    return content[:at] + value.to_bytes(size, order) + content[at + size :]


def _repeat(content, rng):
    at, size = _place(content, rng), rng.choice((1, 16, 512, 5000))
    return content[: at + size] + content[at:]


def _swap(content, rng):
    size = rng.choice((1, 4, 64, 1024))
    one, other = sorted((_place(content, rng), _place(content, rng)))
    if one + size > other:
        return content
    first, second = content[one : one + size], content[other : other + size]
    return content[:one] + second + content[one + size : other] + first + content[other + size :]


def _token(content, rng):
    """Replace a word or a number of the text in a file."""
    found = list(TOKENS.finditer(content))
    if not found:
        return content
    match = rng.choice(found)
    other = rng.choice(
        [b"", b"x", b"-1", b"1e999", b"9" * 30, b"nan", b"null", rng.choice(found)[0], b"\xff"]
    )
    return content[: match.start()] + other + content[match.end() :]


BYTES = (_flip, _flip, _cut, _cut_start, _remove, _insert, _fill, _number, _repeat, _swap, _token, _token)


def change_tree(tree, rng):
    """Change one to three values, keys or lists of a tree of JSON values."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        tree = _changed(tree, rng)
    return tree


def _changed(node, rng):
    if isinstance(node, dict) and node and rng.random() < 0.9:
        name = rng.choice(list(node))
        rest = dict(node)
        way = rng.random()
        if way < 0.15:
            del rest[name]
        elif way < 0.25:
            rest[rng.choice(["", "x", f"{name}x", *map(str, node)])] = rest.pop(name)
        else:
            rest[name] = _changed(node[name], rng)
        return rest
    if isinstance(node, list) and node and rng.random() < 0.85:
        at = rng.randrange(len(node))
        way = rng.random()
        if way < 0.15:
            return node[:at] + node[at + 1 :]
        if way < 0.3:
            return [*node, node[at]]
        return [*node[:at], _changed(node[at], rng), *node[at + 1 :]]
    if isinstance(node, int | float) and rng.random() < 0.3:
        return node + rng.choice((-1, 1, 0.5))
    return rng.choice(rng.choice((EXTREMES, SPECIAL, TREES)))


def change_json(content, rng):
    """Change a JSON file, or one line of a file of JSON lines."""
    try:
        return json.dumps(change_tree(json.loads(content), rng)).encode()
    except ValueError:
        lines = content.splitlines(keepends=True)
        if not lines:
            return b"{}"
        at = rng.randrange(len(lines))
        try:
            lines[at] = json.dumps(change_tree(json.loads(lines[at]), rng)).encode() + b"\n"
        except ValueError:
            return change_bytes(content, rng)
        return b"".join(lines)


def change_yaml(content, rng):
    """Change a YAML file."""
    return yaml.safe_dump(change_tree(yaml.safe_load(content), rng), allow_unicode=True).encode()


def change_parquet(content, rng):
    """Write a Parquet file again: another column, type, order or number of rows."""
    table = pq.read_table(io.BytesIO(content))
    for _ in range(rng.choice((1, 1, 2))):
        table = rng.choice(TABLES)(table, rng)
    out = io.BytesIO()
    groups = rng.choice((1, 2, 1000))
    pq.write_table(table, out, row_group_size=groups, use_dictionary=rng.random() < 0.5)
    return out.getvalue()


def _any_column(table, rng):
    at = rng.randrange(table.num_columns)
    return at, table.schema.field(at).name, table.column(at).combine_chunks()


def _drop(table, rng):
    return table.remove_column(_any_column(table, rng)[0]) if table.num_columns > 1 else table


def _double(table, rng):
    _, name, column = _any_column(table, rng)
    return table.append_column(name, column)


def _rename(table, rng):
    at = rng.randrange(table.num_columns)
    names = list(table.column_names)
    names[at] = rng.choice([*names, "", "x", "é\u202e"])
    return table.rename_columns(names)


def _null(table, rng):
    at, name, column = _any_column(table, rng)
    if not len(column):
        return table
    values = column.to_pylist()
    values[rng.randrange(len(values))] = None
    return table.set_column(at, name, pa.array(values, column.type))


def _other_type(table, rng):
    at, name, column = _any_column(table, rng)
    kind = rng.choice(
        (pa.float64(), pa.float32(), pa.int64(), pa.uint8(), pa.string(), pa.bool_(), pa.binary())
    )
    try:
        return table.set_column(at, name, column.cast(kind, safe=False))
    except (pa.ArrowException, ValueError):
        return table.set_column(at, name, pa.nulls(len(column), kind))


def _extreme(table, rng):
    at, name, column = _any_column(table, rng)
    values = column.to_pylist()
    if not values:
        return table
    row = rng.randrange(len(values))
    values[row] = (
        _changed(values[row], rng) if isinstance(values[row], list) else rng.choice(EXTREMES + SPECIAL)
    )
    try:
        return table.set_column(at, name, pa.array(values, column.type))
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        return table


def _rows(table, rng):
    if not table.num_rows:
        return table
    way = rng.choice(("none", "cut", "double", "swap"))
    if way == "none":
        return table.slice(0, 0)
    if way == "cut":
        return table.slice(rng.randrange(table.num_rows))
    order = list(range(table.num_rows))
    if way == "swap":
        rng.shuffle(order)
    else:
        order.append(rng.choice(order))
    return table.take(order)


TABLES = (_drop, _double, _rename, _null, _other_type, _extreme, _extreme, _rows)


def change_hdf5(content, rng):
    """Write an HDF5 file again: a dataset of other values, type, shape or storage, or a link."""
    held = io.BytesIO(content)
    with h5py.File(held, "r+") as file:
        name = rng.choice(list(file))
        values = file[name][()]
        del file[name]
        rng.choice(DATASETS)(file, name, np.asarray(values), rng)
    return held.getvalue()


def _sparse(file, name, values, rng):
    rows = rng.choice((len(values) + 1, 2**20, 2**40, 2**62))
    table = file.create_dataset(
        name, values.shape, values.dtype, maxshape=(None, *values.shape[1:]), chunks=True
    )
    if rng.random() < 0.7:
        table[...] = values
    table.resize(rows, axis=0)


def _cast(file, name, values, rng):
    kind = rng.choice(("f8", "f4", "i4", "i8", "u8", "u1", "i1", ">f4", "S4", "c8", "?"))
    with np.errstate(all="ignore"):
        file[name] = values.view("f4").ravel().astype(kind) if values.dtype.names else values.astype(kind)


def _shape(file, name, values, rng):
    file[name] = rng.choice((values[:-1], values.ravel(), values[..., None], values[:0], values[::-1]))


def _other_values(file, name, values, rng):
    flat = values.copy()
    if flat.size and flat.dtype.kind in "iuf":
        with np.errstate(all="ignore"):
            value = np.float64(rng.choice([each for each in EXTREMES if abs(each) < 2**63]))
            flat.ravel()[rng.randrange(flat.size)] = value.astype(flat.dtype)
    file[name] = flat


def _link(file, name, values, rng):
    links = (h5py.SoftLink(name), h5py.SoftLink("/nowhere"), h5py.ExternalLink("/etc/passwd", "/x"))
    way = rng.randrange(5)
    if way < 3:
        file[name] = links[way]
    elif way == 3:
        file.create_group(name)
    else:
        file[name] = h5py.Empty("f4")


def _gone(file, name, values, rng):
    file["elsewhere"] = values


DATASETS = (_sparse, _cast, _shape, _other_values, _other_values, _link, _gone)


def change_state(content, rng):
    """Write a checkpoint again with other fields; tensors change, too."""
    state = torch.load(io.BytesIO(content), weights_only=True)
    for _ in range(rng.choice((1, 1, 2, 3))):
        state = _changed_state(state, rng)
    out = io.BytesIO()
    torch.save(state, out)
    return out.getvalue()


def _changed_state(node, rng):
    if isinstance(node, torch.Tensor):
        return rng.choice(
            (
                lambda: node * float("nan"),
                node.double,
                lambda: node.reshape(-1)[:0],
                lambda: torch.zeros(1).expand(10**12),
                lambda: node.to_sparse() if node.dim() else node,
                lambda: node + 1,
                lambda: 1.0,
            )
        )()
    if isinstance(node, dict) and node and rng.random() < 0.95:
        name = rng.choice(list(node))
        if isinstance(node[name], dict | torch.Tensor) and rng.random() < 0.85:
            return {**node, name: _changed_state(node[name], rng)}
        return _changed(node, rng)
    return _changed(node, rng)


def named_by_hash(name, content):
    """Return a checkpoint the name that its content has a right to."""
    stem = name.rpartition("-")[0]
    return f"{stem}-{hashlib.sha256(content).hexdigest()[:16]}.pt"


def seeded(*parts):
    """Make a random generator from some words."""
    return random.Random("/".join(map(str, parts)))
