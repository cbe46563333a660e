"""Any Parquet file can be looked at: in bounded memory and text, with "…" for what cannot be shown."""

import datetime as dt
import json
import subprocess
import sys
from dataclasses import asdict

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from crpipe.core.errors import FormatError
from crpipe.split.inspect import facts_of, inspect_file

_FAR = 2**62  # a date, or a time, that Python's have no year for

COLUMNS = {
    "nested structs": pa.array(
        [{"a": {"b": [{"c": 1}]}}],
        pa.struct([("a", pa.struct([("b", pa.list_(pa.struct([("c", pa.int8())])))]))]),
    ),
    "map": pa.array([[("k", 1), ("l", None)]], pa.map_(pa.string(), pa.int32())),
    "empty map": pa.array([[]], pa.map_(pa.string(), pa.int32())),
    "a map in a list": pa.array([[[("k", [1.0])]]], pa.list_(pa.map_(pa.string(), pa.list_(pa.float32())))),
    "a far date": pa.array([2**31 - 1], pa.int32()).cast(pa.date32()),
    "far times": pa.array([_FAR], pa.int64()).cast(pa.timestamp("ms")),
    "nanoseconds": pa.array([_FAR + 1], pa.int64()).cast(pa.timestamp("ns", "UTC")),
    "durations": pa.array([_FAR], pa.int64()).cast(pa.duration("s")),
    "far times in a list": pa.array([[_FAR]], pa.list_(pa.int64())).cast(pa.list_(pa.timestamp("us"))),
    "decimals": pa.array([1], pa.decimal256(70, 3)),
    "bytes": pa.array([b"\xff" * 10_000]),
    "fixed bytes": pa.array([b"0123456789abcdef"], pa.binary(16)),
    "large text": pa.array(["µ" * 1_000_000], pa.large_string()),
    "text view": pa.array(["a" * 1000], pa.string_view()),
    "dictionary": pa.array(["a"]).dictionary_encode(),
    "nulls": pa.array([None], pa.null()),
    "a null list": pa.array([None], pa.list_(pa.int8())),
    "times": pa.array([dt.time(1, 2)]),
    "fixed list": pa.array([[1, 2]], pa.list_(pa.int8(), 2)),
    "deep": pa.array([[[[[[[[[1]]]]]]]]]),
    "nan": pa.array([np.nan]),
    "uuid": pa.array([b"0123456789abcdef"], pa.uuid()),
    "a dot in. its name": pa.array([1]),
    "uint64": pa.array([2**64 - 1], pa.uint64()),
}


@pytest.mark.parametrize("kind", COLUMNS)
def test_a_value_of_any_type_is_shown_or_is_dots(tmp_path, kind):
    pq.write_table(pa.table({kind: COLUMNS[kind], "beside": [7]}), tmp_path / "a.parquet")
    text = inspect_file(tmp_path / "a.parquet", 3, None)
    assert "beside 7" in text
    assert f"{kind} " in text
    assert max(map(len, text.splitlines())) < 400
    assert len(json.dumps(asdict(facts_of(tmp_path / "a.parquet", 3, None)), default=str)) < 2000


def test_two_columns_of_one_name(tmp_path):
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2]), pa.array([3])], names=["a", "a", "b"])
    pq.write_table(table, tmp_path / "a.parquet")
    assert "a …, b 3" in inspect_file(tmp_path / "a.parquet", 1, None)


def test_a_column_whose_bytes_are_damaged_hides_no_other(tmp_path):
    path = tmp_path / "a.parquet"
    table = pa.table({"good": [1], "bad": ["x" * 10_000]})
    pq.write_table(table, path, compression=None, use_dictionary=False, write_page_checksum=True)
    path.write_bytes(path.read_bytes().replace(b"x" * 5000, b"y" * 5000, 1))
    assert "good 1, bad …" in inspect_file(path, 1, None)


def test_a_codec_that_is_not_there_hides_no_other_column(tmp_path):
    """The byte of the footer that names the codec: LZO, which nothing here unpacks."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"good": [1], "bad": [2.0]}), path, compression={"good": "none", "bad": "brotli"})
    whole = path.read_bytes()
    assert b"bad\x15\x08" in whole
    path.write_bytes(whole.replace(b"bad\x15\x08", b"bad\x15\x06"))
    assert "good 1, bad …" in inspect_file(path, 1, None)


def test_a_small_file_of_huge_values_takes_little_memory(tmp_path):
    """A codec packs a hundred megabytes of one letter into some kilobytes."""
    path = tmp_path / "a.parquet"
    huge = pa.array(["a" * (1 << 20)] * 150)
    table = pa.table({"huge": pa.MapArray.from_arrays([*range(151)], huge, huge), "beside": [7] * 150})
    pq.write_table(table, path, compression="zstd", use_dictionary=False)
    del table, huge
    assert path.stat().st_size < 1 << 20
    code = (
        "import sys; from pathlib import Path; from crpipe.split.inspect import inspect_file\n"
        "print(inspect_file(Path(sys.argv[1]), 2, None))\n"
        "print(Path('/proc/self/status').read_text().split('VmHWM:')[1].split()[0])"
    )
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
    *lines, kib = done.stdout.split("\n")[:-1]
    assert lines[-1].strip() == "huge …, beside 7"
    assert int(kib) < 400 << 10


def test_a_folder_names_its_first_file(tmp_path):
    for name in ("b.parquet", "a b.parquet"):
        (tmp_path / name).touch()
    (tmp_path / "0").mkdir()
    with pytest.raises(FormatError, match=r"a folder; name a file in it: crpipe inspect '.*/a b\.parquet'$"):
        inspect_file(tmp_path, 1, None)
    with pytest.raises(FormatError, match=r"a folder; name a file in it \(it holds none\)$"):
        inspect_file(tmp_path / "0", 1, None)
