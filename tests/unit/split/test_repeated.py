"""Events that occur twice in a range are counted and named; none is left out."""

import re
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crpipe.campaign.campaign import Campaign
from crpipe.events.batch import Events
from crpipe.split.hashing import SHOWN, event_hashes, find_repeated, identity_columns
from crpipe.split.split import split_range
from crpipe.workloads.direction.layout import pulses
from crpipe.workloads.muons.layout import BUNDLES
from raw_files import NAME, campaign, changed, ledger_of, raw_folder, split, write_parquet, write_staged
from told import Told

COUNTS = [0, 3, 25, 1, 0, 2]


@pytest.fixture
def config(tmp_path):
    """A range of three files, all different."""
    config = campaign(tmp_path)
    for number in range(3):
        write_parquet(raw_folder(config) / f"{number}.parquet", COUNTS, seed=number)
    return config


def test_a_range_without_repetitions_says_so(config):
    write_staged(config)
    split(config)
    assert ledger_of(config)["repeated"] == {
        "columns": [field.name for field in BUNDLES.events] + ["multiplicity"],
        "events": 0,
        "first": [],
    }


def test_a_file_under_two_names_is_counted_and_named(config):
    raw = raw_folder(config)
    shutil.copy(raw / "1.parquet", raw / "9.parquet")
    table = pq.read_table(raw / "2.parquet")
    last = [*table["primary"].to_pylist()[:-1], None]  # set aside after its first row groups were read
    table = table.set_column(0, "primary", pa.array(last, table.schema.field("primary").type))
    pq.write_table(table, raw / "2.parquet", row_group_size=2)
    write_staged(config)
    letting = changed(config, source={"on_bad_file": "quarantine", "max_quarantined": 1})
    told = Told()
    split_range(Campaign.open(letting), NAME, told)
    ledger = ledger_of(config)
    assert ledger["repeated"]["events"] == len(COUNTS)
    assert ledger["repeated"]["first"] == [
        {"file": "9.parquet", "row": row, "same_as": "1.parquet", "same_row": row} for row in range(6)
    ]
    assert ledger["balanced"]
    assert ledger["events"]["listed"] == 3 * len(COUNTS)
    assert ledger["quarantined"] == 1
    said = "6 events repeat an earlier one of the range .* row 0 of 9.parquet and row 0 of 1.parquet; all"
    assert re.search(said, str(told))


KEYED = pulses()


@given(st.lists(st.lists(st.integers(0, 12), max_size=12), min_size=1, max_size=5), st.integers(1, 40))
def test_what_is_counted_is_what_plain_python_counts(tmp_path_factory, tasks, at_once):
    folder = tmp_path_factory.mktemp("spills")
    numbers, tables, seen, first, count = [], [], {}, [], 0
    for number, ids in enumerate(tasks):
        columns = {"event_id": np.array(ids, np.int64)}
        events = Events(columns, np.zeros(len(ids), np.uint32), np.zeros((0, 4), np.float32))
        numbers.append(folder / f"{number}.numbers")
        numbers[-1].write_bytes(event_hashes(events, KEYED).tobytes())
        rows = np.arange(len(ids), dtype=np.uint32)
        table = pa.table({"source_file": np.full(len(ids), number, np.uint32), "source_row": rows})
        tables.append(folder / f"{number}.table")
        with pa.ipc.new_stream(tables[-1], table.schema) as stream:
            stream.write_table(table, max_chunksize=5)
        for row, each in enumerate(ids):
            if each in seen:
                same, same_row = seen[each]
                first.append({"file": f"f{number}", "row": row, "same_as": same, "same_row": same_row})
                count += 1
            seen.setdefault(each, (f"f{number}", row))
    names = {number: f"f{number}" for number in range(len(tasks))}
    found = find_repeated(numbers, tables, KEYED, names, at_once)
    assert found == {"columns": ["event_id"], "events": count, "first": first[:SHOWN]}


def test_events_are_known_by_the_key_or_by_all_columns():
    assert identity_columns(KEYED) == ("event_id",)
    columns = {field.name: np.arange(4).astype(field.dtype) for field in BUNDLES.events}
    counts = np.zeros(4, np.uint32)
    events = Events(columns, counts, np.zeros((0, 3), np.float32))
    own = event_hashes(events, BUNDLES)
    assert len(set(own.tolist())) == 4
    for name, values in columns.items():
        other = Events(columns | {name: values + 1}, counts, events.items)
        assert not (event_hashes(other, BUNDLES) == own).any()
    more = Events(columns, counts + np.uint32(1), np.zeros((4, 3), np.float32))
    assert not (event_hashes(more, BUNDLES) == own).any()
