"""The readers of pulses give every event its own pulses, and refuse what does not fit, with file and row."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from crpipe.campaign.readers import ReaderChoice
from crpipe.core.errors import FormatError
from crpipe.events.batch import concatenate
from crpipe.events.validity import find_invalid_events
from crpipe.workloads.direction.reading import columns as columns_module
from pulse_files import (
    TEST_COLUMNS,
    make_pulses,
    metadata_table,
    pulse_table,
    write_folder,
    write_geometry,
    write_simulated,
)
from readings import read, refused

KAGGLE = "crpipe.workloads.direction.reading.kaggle:KaggleFiles"
SIMULATED = "crpipe.workloads.direction.reading.kaggle:SimulatedFiles"
SAMPLE = {2092: 299, 7344: 36, 9482: 43}  # the public three events of the challenge
MULTIPLICITY = np.array([5, 1, 0, 40, 7])
PULSES = int(MULTIPLICITY.sum())


def events_with(multiplicity, seed=0):
    columns, items = make_pulses(multiplicity, seed)
    return columns, np.asarray(multiplicity), items


def assert_same(events, columns, multiplicity, items):
    for name in events.columns:
        assert np.array_equal(events.columns[name], columns[name]), name
    assert np.array_equal(events.multiplicity, multiplicity)
    assert np.array_equal(events.items, items.astype(np.float32))


def folder_reader(folder, events, options=None, **changes):
    """Write a folder and give the reader of it and the path of its file 7."""
    tables = write_folder(folder, events, **changes)
    return ReaderChoice(KAGGLE, options or {}, tables).open(), folder / "train" / "batch_7.parquet"


@pytest.fixture
def broken(tmp_path):
    """Write changed pulses or metadata: broken(pulses=table -> table, meta=…) -> (reader, path)."""

    def build(pulses=lambda table: table, meta=lambda table: table, options=None):
        columns, multiplicity, items = events_with(MULTIPLICITY)
        reader, path = folder_reader(tmp_path, {7: (columns, multiplicity, items)}, options)
        pq.write_table(pulses(pulse_table(columns, multiplicity, items)), path)
        table = metadata_table(7, columns, multiplicity)
        pq.write_table(meta(table), tmp_path / "train_meta.parquet")
        return reader, path

    return build


def with_value(name, row, value):
    """Change one value of a column."""

    def change(table):
        found = table[name].to_pylist()
        found[row] = value
        index = table.schema.get_field_index(name)
        return table.set_column(index, name, pa.array(found, table.schema.field(name).type))

    return change


def cast(name, kind):
    def change(table):
        index = table.schema.get_field_index(name)
        return table.set_column(index, name, table[name].cast(kind))

    return change


def without(name):
    return lambda table: table.drop([name])


def twice(name):
    return lambda table: table.append_column(name, table[name])


def test_the_three_events_of_the_challenge_without_labels(tmp_path):
    columns, items = make_pulses(list(SAMPLE.values()))
    columns["event_id"] = np.array(list(SAMPLE))
    tables = write_folder(tmp_path, {661: (columns, list(SAMPLE.values()), items)}, labelled=False)
    events = read(ReaderChoice(KAGGLE, {}, tables).open(), tmp_path / "train" / "batch_661.parquet")
    assert dict(zip(events.columns["event_id"], events.multiplicity, strict=True)) == SAMPLE
    assert len(events.items) == 378
    assert np.array_equal(events.items, items.astype(np.float32))
    assert np.isnan([events.columns["azimuth"], events.columns["zenith"]]).all()
    layout = ReaderChoice(KAGGLE, {}, tables).open().layout
    assert "azimuth" in find_invalid_events(events, layout)[0]  # a split refuses them, predict does not ask


@pytest.mark.parametrize("events", [1, 2, 20_000])
@pytest.mark.parametrize("decoded", [1, 3, 1 << 17])
def test_blocks_of_any_size_give_every_event_its_own_pulses(tmp_path, monkeypatch, events, decoded):
    monkeypatch.setattr(columns_module, "EVENTS", events)
    monkeypatch.setattr(columns_module, "_ROWS", decoded)
    first, second = events_with(MULTIPLICITY), events_with([0, 0], seed=1)
    reader, path = folder_reader(tmp_path, {7: first, 8: second})
    assert_same(read(reader, path), *first)
    assert_same(read(reader, path.with_name("batch_8.parquet")), *second)
    assert len(list(reader.rows(path))) == -(-len(MULTIPLICITY) // events)


def test_blocks_are_bounded_by_pulses(tmp_path, monkeypatch):
    monkeypatch.setattr(columns_module, "ITEMS", 10)
    reader, path = folder_reader(tmp_path, {7: events_with(MULTIPLICITY)})
    assert [len(block.items) for block in reader.rows(path)] == [6, 40, 7]


def test_further_truth_is_appended(tmp_path):
    events = events_with(MULTIPLICITY)
    reader, path = folder_reader(tmp_path, {7: events}, {"truth": ("energy_gev",)})
    assert [field.name for field in reader.layout.events][-1] == "energy_gev"
    assert_same(read(reader, path), *events)


def test_a_padded_number_in_the_name_is_the_same_number(tmp_path):
    events = events_with(MULTIPLICITY)
    reader, path = folder_reader(tmp_path, {7: events})
    assert_same(read(reader, path.rename(path.with_name("batch_0007.parquet"))), *events)


def test_events_come_in_the_order_of_their_pulses(broken):
    reader, path = broken(meta=lambda table: table.take([3, 1, 0, 4, 2]))
    assert_same(read(reader, path), *events_with(MULTIPLICITY))


def test_simulated_files_hold_their_own_metadata(tmp_path):
    events = events_with(MULTIPLICITY)
    path = write_simulated(tmp_path / "any_name.parquet", *events)
    tables = {"geometry": write_geometry(tmp_path / "sensor_geometry.csv")}
    assert_same(read(ReaderChoice(SIMULATED, {}, tables).open(), path), *events)


def test_a_file_of_the_challenge_is_no_simulated_file(broken):
    path = broken()[1]
    simulated = ReaderChoice(SIMULATED, {}, {"geometry": path.parents[1] / "sensor_geometry.csv"}).open()
    refused(simulated, path, str(path), "no event_metadata", "KaggleFiles")


@pytest.mark.parametrize("text", [b"!", b"AAAA"])
def test_a_damaged_footer_is_refused(tmp_path, text):
    tables = {"geometry": write_geometry(tmp_path / "sensor_geometry.csv")}
    table = pulse_table(*events_with(MULTIPLICITY)).replace_schema_metadata({"event_metadata": text})
    pq.write_table(table, tmp_path / "batch_1.parquet")
    simulated = ReaderChoice(SIMULATED, {}, tables).open()
    refused(simulated, tmp_path / "batch_1.parquet", "batch_1.parquet: cannot be read whole")


def test_a_footer_of_another_number_of_pulses_is_refused(tmp_path):
    columns, multiplicity, items = events_with(MULTIPLICITY)
    path = write_simulated(tmp_path / "batch_1.parquet", columns, multiplicity, items)
    schema = pq.read_schema(path)
    pq.write_table(pq.read_table(path).slice(0, 10).cast(schema), path)
    tables = {"geometry": write_geometry(tmp_path / "sensor_geometry.csv")}
    refused(ReaderChoice(SIMULATED, {}, tables).open(), path, "event 75", "leaves the file", "10 rows")


@pytest.mark.parametrize(("name", "value"), [("time", -5), ("charge", 1e300), ("charge", float("nan"))])
def test_values_out_of_the_layout_are_left_to_the_split(broken, name, value):
    reader, path = broken(pulses=with_value(name, 12, value))
    assert list(find_invalid_events(concatenate(list(reader.rows(path))), reader.layout)) == [3]


def test_the_largest_exact_time_is_kept(broken):
    reader, path = broken(pulses=with_value("time", 12, 2**24))
    assert concatenate(list(reader.rows(path))).items[12, 1] == 2**24


@pytest.mark.parametrize(("rows", "known"), [(PULSES - 1, "leaves the file"), (PULSES + 1, "row 53")])
def test_another_number_of_rows_than_the_metadata_say(broken, rows, known):
    def change(table):
        return pa.concat_tables([table, table]).slice(0, rows)

    built = broken(pulses=change)
    refused(*built, "batch_7.parquet", known, f"{rows}")
    with pytest.raises(FormatError, match=known):
        built[0].totals(built[1])


PULSE_COLUMNS = ("sensor_id", "time", "charge", "auxiliary", "event_id")
META_COLUMNS = (*TEST_COLUMNS, "azimuth", "zenith", "energy_gev")
BAD_PULSES = [
    *((twice(name), f"2 columns are called {name}; have the file made again") for name in PULSE_COLUMNS),
    *((without(name), f"no column {name}") for name in PULSE_COLUMNS),
    (cast("sensor_id", pa.float32()), "column sensor_id: expected", "float"),
    (cast("time", pa.float64()), "column time: expected", "double"),
    (cast("charge", pa.string()), "column charge: expected", "string"),
    (cast("auxiliary", pa.int8()), "column auxiliary: expected", "int8"),
    *((with_value(name, 20, None), "batch_7.parquet: row 20", name, "null") for name in PULSE_COLUMNS),
    *(
        (with_value("sensor_id", 11, sensor), "batch_7.parquet: row 11", "below 60", f"found {sensor}")
        for sensor in (60, -1)
    ),
    *(
        (with_value("time", 12, time), "batch_7.parquet: row 12", "a time within", f"found {time}")
        for time in (2**24 + 1, -(2**24) - 1, 2**32, 2**63 - 1)
    ),
    (with_value("event_id", 5, 4711), "row 5: expected event_id 41 as in row 1 of", "found 4711"),
]
BAD_META = [
    *((without(name), f"no column {name}") for name in META_COLUMNS),
    (cast("batch_id", pa.float64()), "column batch_id: expected", "double"),
    (cast("event_id", pa.string()), "column event_id: expected", "string"),
    (cast("zenith", pa.string()), "column zenith: expected", "string"),
    *(
        (with_value(name, 2, None), "train_meta.parquet: row 2", name, "null")
        for name in ("batch_id", "event_id", "last_pulse_index", "zenith")
    ),
    (
        lambda table: with_value("event_id", 2, 2**63)(cast("event_id", pa.uint64())(table)),
        "train_meta.parquet: row 2: expected event_id below 2^63",
    ),
    (with_value("first_pulse_index", 0, -1), "event 24, pulses -1 to 4 (row 0 of", "leaves the file"),
    (with_value("last_pulse_index", 4, PULSES), "event 92, pulses 46 to 53 (row 4 of", "leaves the file"),
    (with_value("last_pulse_index", 3, 46), "event 92, pulses 46 to 52 (row 4 of", "overlaps"),
    (with_value("first_pulse_index", 3, 7), "event 75, pulses 7 to 45 (row 3 of", "leaves a gap"),
    (with_value("first_pulse_index", 0, 1), "event 24, pulses 1 to 4 (row 0 of", "leaves a gap"),
    (with_value("last_pulse_index", 3, 4), "event 75, pulses 6 to 4 (row 3 of", "ends before it begins"),
]


@pytest.mark.parametrize(("change", "words"), [(first, words) for first, *words in BAD_PULSES])
def test_pulses_that_do_not_fit_are_refused_with_file_and_row(broken, change, words):
    refused(*broken(pulses=change), "batch_7.parquet", *words)


@pytest.mark.parametrize(("change", "words"), [(first, words) for first, *words in BAD_META])
def test_metadata_that_do_not_fit_are_refused_with_file_and_row(broken, change, words):
    refused(*broken(meta=change, options={"truth": ("energy_gev",)}), "train_meta.parquet", *words)


@pytest.mark.parametrize("info", [{"run": 900, "text": "a"}, {"text": "a", "run": 900}])
def test_a_struct_before_the_other_columns_of_the_metadata(broken, info):
    built = broken(meta=lambda table: table.add_column(0, "info", pa.array([info] * len(table))))
    assert_same(read(*built), *events_with(MULTIPLICITY))


def test_damaged_metadata(broken):
    reader, path = broken()
    meta = path.parents[1] / "train_meta.parquet"
    meta.write_bytes(meta.read_bytes()[:-100])
    refused(reader, path, f"{meta}: cannot be read whole")


def test_no_rows_for_the_file(broken):
    reader, path = broken()
    other = path.rename(path.with_name("batch_8.parquet"))
    refused(reader, other, "train_meta.parquet", "no row has batch_id 8", "batch_8.parquet")


def test_a_name_without_a_number(broken):
    reader, path = broken()
    refused(reader, path.rename(path.with_name("batch.parquet")), "batch.parquet", "a number", "{number}")


def many_files(files=100):
    return {number: events_with([2, 3], seed=number) for number in range(files)}


@pytest.fixture
def decoded(monkeypatch):
    """Record what is decoded of the metadata: [(columns, row groups)]."""
    seen = []
    plain = columns_module.batches

    def spy(file, names, groups=None, rows=0):
        seen.append((list(names), groups))
        return plain(file, names, groups, rows)

    monkeypatch.setattr(columns_module, "batches", spy)
    return seen


def meta_reads(decoded):
    return [(names, groups) for names, groups in decoded if groups is not None]


def test_only_the_row_group_of_the_file_is_decoded(tmp_path, decoded):
    events = many_files()
    reader, path = folder_reader(tmp_path, events, row_group_size=2)
    assert pq.ParquetFile(tmp_path / "train_meta.parquet").num_row_groups == 100
    assert_same(concatenate(list(reader.rows(path))), *events[7])
    needed = ["event_id", "first_pulse_index", "last_pulse_index", "azimuth", "zenith"]
    assert meta_reads(decoded) == [(["batch_id"], [7]), (needed, [7])]  # energy_gev is not asked for


@pytest.mark.parametrize("statistics", [True, False])
@pytest.mark.parametrize("row_group", [2, 7, 1000])
def test_sorted_or_not_the_metadata_give_the_same(tmp_path, row_group, statistics):
    events = many_files(20)
    how = {"row_group_size": row_group, "write_statistics": statistics}
    reader, path = folder_reader(tmp_path, events, **how)
    meta = tmp_path / "train_meta.parquet"
    for seed in (None, 0, 1):
        if seed is not None:
            order = np.random.default_rng(seed).permutation(40)
            pq.write_table(pq.read_table(meta).take(order), meta, **how)
        for number in (0, 7, 19):
            found = read(reader, path.with_name(f"batch_{number}.parquet"))
            assert_same(found, *events[number])


def test_metadata_are_streamed(tmp_path, monkeypatch):
    events = many_files()
    reader, path = folder_reader(tmp_path, events)
    monkeypatch.setattr(columns_module, "_ROWS", 4)
    largest = []
    plain = columns_module.values

    def spy(where, batch, name, row):
        largest.append(batch.num_rows)
        return plain(where, batch, name, row)

    monkeypatch.setattr(columns_module, "values", spy)
    assert_same(read(reader, path), *events[7])
    assert max(largest) == 4
