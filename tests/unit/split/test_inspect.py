"""What a person reads about a file, in bounded memory and text, with "…" for what cannot be shown."""

import datetime as dt
import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from crpipe.campaign.raw_files import Entry, write_manifest
from crpipe.campaign.readers import ReaderChoice
from crpipe.core.errors import FormatError
from crpipe.split.inspect import facts_of, inspect_file
from named import READERS
from plain_reader import make_hits, write_events
from raw_files import (
    NAME,
    campaign,
    consolidate,
    raw_folder,
    split,
    write_hdf5,
    write_parquet,
    write_staged,
)

DOCS = Path(__file__).parents[3] / "docs" / "data.md"
MULTIPLICITY = [0, 3, 25, 1]
SUMMARY = (
    "multiplicity: 4 events, 29 muons, 1 (25%) without; quantiles 0.5: 1, 0.9: 25, 0.99: 25, "
    "0.999: 25; largest 25"
)


@pytest.mark.parametrize(("write", "name"), [(write_parquet, "bundles"), (write_hdf5, "bundles_hdf5")])
def test_a_raw_file_of_the_reader_shows_its_first_events_with_items(tmp_path, write, name):
    text = inspect_file(write(tmp_path / "a", MULTIPLICITY), 2, ReaderChoice(READERS[name]))
    assert f"raw file, read by {READERS[name]}: 4 events with 29 muons" in text
    assert SUMMARY in text
    assert "  zenith_rad: float32 rad" in text
    assert "  muons.x_m: float32 m" in text
    shown = [line for line in text.splitlines() if "primary_major_id 7" in line]
    assert [line.split("depth_m ")[1].split(" [")[0] for line in shown] == ["1100, 3 muons", "1200, 25 muons"]
    assert "first 2 events with muons (1 of all are empty):" in text


def test_events_without_items_are_shown_last(tmp_path):
    path = write_events(tmp_path / "a.npz", make_hits([0, 0, 0, 2, 0, 1]))
    text = inspect_file(path, 4, ReaderChoice("plain_reader:Plain"))
    shown = [line.split(", ")[3].split(" [")[0] for line in text.splitlines()[-4:]]
    assert shown == ["2 hits", "1 hits", "0 hits", "0 hits"]
    assert "first 2 events with hits, and 2 without (4 of all are empty):" in text
    nothing = inspect_file(
        write_events(tmp_path / "b.npz", make_hits([0, 0])), 1, ReaderChoice("plain_reader:Plain")
    )
    assert "no event has hits: first events (2 of all are empty):" in nothing


def test_a_raw_parquet_of_another_width_shows_its_columns_and_why_the_reader_refuses_it(tmp_path):
    path = write_parquet(tmp_path / "a.parquet", MULTIPLICITY, primary=["energy_gev", "zenith_rad"])
    text = inspect_file(path, 2, ReaderChoice(READERS["bundles"]))
    assert "4 rows in 1 row group" in text
    assert "muons: list<element: list<element: float>>" in text
    assert "as a raw file it is refused" in text
    assert "primary: expected 4 values" in text
    assert len([line for line in text.splitlines() if "3 muons [[" in line]) == 1


def test_files_that_are_joined_are_named_with_and_without_a_reader(tmp_path):
    parts = [write_parquet(tmp_path / f"{name}.parquet", MULTIPLICITY) for name in "ab"]
    both = tmp_path / "both.parquet"
    both.write_bytes(b"".join(part.read_bytes() for part in parts))
    for choice in (None, ReaderChoice(READERS["bundles"])):
        text = inspect_file(both, 1, choice)
        assert "both.parquet: Parquet, 4 rows" in text
        assert "as a raw file it is refused" in text
        assert "would be left unread" in text


def test_without_a_reader_the_schema_is_shown(tmp_path):
    text = inspect_file(write_parquet(tmp_path / "a.parquet", MULTIPLICITY), 1, None)
    assert "a.parquet: Parquet, 4 rows" in text
    assert "primary: list<element: float>" in text


def test_what_crpipe_wrote_is_recognised_whatever_the_reader(tmp_path):
    config = campaign(tmp_path, "split.validation_fraction=0")
    write_parquet(raw_folder(config) / "a.parquet", MULTIPLICITY)
    write_staged(config)
    split(config)
    consolidate(config)
    paths = config.paths()
    files = {
        paths.shards(NAME) / "train-00000.events.parquet": "events of a shard, 3 rows",
        paths.shards(NAME) / "train-00000.muons.parquet": "muons of a shard, 4 rows",
        paths.multiplicity(NAME): "multiplicity table of a range, 4 rows",
        paths.outliers("consolidated") / "index.parquet": "index of outliers, 1 row",
    }
    for path, expected in files.items():
        for choice in (None, ReaderChoice(READERS["bundles"]), ReaderChoice("no.such:Reader")):
            assert expected in inspect_file(path, 1, choice)
    text = inspect_file(paths.multiplicity(NAME), 1, None)
    assert "multiplicity: 4 events, 29 items" in text
    assert "source_row 1, " in text.splitlines()[-1]  # row 0 is empty
    write_manifest(paths.manifest(NAME), [Entry("first.parquet", "first.parquet", 1, None)])
    for path in (paths.multiplicity(NAME), paths.shards(NAME) / "train-00000.events.parquet"):
        assert "source_file 0 (first.parquet)" in inspect_file(path, 1, None)


def test_the_facts_are_frozen_and_documented(tmp_path):
    facts = asdict(facts_of(write_parquet(tmp_path / "a", MULTIPLICITY), 1, ReaderChoice(READERS["bundles"])))
    assert list(facts) == [
        *("file", "kind", "events", "row_groups", "columns", "reader", "read_as", "refused", "notes", "item"),
        *("items", "empty", "quantiles", "largest", "first"),
    ]
    assert (facts["events"], facts["items"], facts["empty"], facts["largest"]) == (4, 29, 1, 25)
    assert facts["quantiles"] == {"0.5": 1, "0.9": 25, "0.99": 25, "0.999": 25}
    assert facts["first"][0]["muons"]["count"] == 3
    assert [name for name in facts if f"`{name}`" not in DOCS.read_text()] == []


def test_no_events(tmp_path):
    path = write_parquet(tmp_path / "empty.parquet", [])
    assert "no events" in inspect_file(path, 1, ReaderChoice(READERS["bundles"]))


def test_something_else(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("hello")
    with pytest.raises(FormatError, match=r"notes\.txt: this is a text file.*source\.reader=module:Name"):
        inspect_file(path, 1, None)
    with pytest.raises(FormatError, match=r"notes\.txt: no \.npz file"):
        inspect_file(path, 1, ReaderChoice("plain_reader:Plain"))
    path.write_text("PAR1 and then nothing")
    with pytest.raises(FormatError, match=r"notes\.txt: cannot be read whole"):
        inspect_file(path, 1, None)
    with pytest.raises(FormatError, match="cannot be read whole .*; it is missing"):
        inspect_file(tmp_path / "none", 1, None)


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


@pytest.mark.parametrize("values", [["a", "b"], [1, None], [{"a": 1}, None], [dt.date(2026, 1, 1)] * 2])
def test_columns_with_the_names_of_crpipes_own_are_values_like_others(tmp_path, values):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"multiplicity": values, "source_file": values}), path)
    facts = facts_of(path, 5, None)
    assert (facts.items, len(facts.first)) == (None, 2)
    assert all(row["multiplicity"] == row["source_file"] for row in facts.first)


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
    for name in ("b.parquet", "a b.parquet", "a"):  # the last: as the lease beside shards
        (tmp_path / name).touch()
    (tmp_path / "0").mkdir()
    with pytest.raises(FormatError, match=r"a folder; name a file in it: crpipe inspect '.*/a b\.parquet'$"):
        inspect_file(tmp_path, 1, None)
    with pytest.raises(FormatError, match=r"a folder; name a file in it \(it holds none\)$"):
        inspect_file(tmp_path / "0", 1, None)
    (tmp_path / "0" / "c.parquet").touch()
    (tmp_path / "b.parquet").unlink()
    (tmp_path / "a b.parquet").unlink()
    with pytest.raises(FormatError, match=r"crpipe inspect .*/0/c\.parquet$"):
        inspect_file(tmp_path, 1, None)
