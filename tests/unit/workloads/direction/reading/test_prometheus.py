"""Files of Prometheus give every event its photons and where its neutrino came from, or are refused."""

import json
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from crpipe.campaign.readers import ReaderChoice
from crpipe.core.errors import FormatError
from crpipe.events.validity import find_invalid_events
from crpipe.workloads.direction.layout import opening_angle, read_geometry, unit_vectors
from crpipe.workloads.direction.reading import columns as columns_module
from crpipe.workloads.direction.reading.prometheus import geometry_of
from prometheus_files import make_hits, make_truth, place_of, write_flat, write_nested
from readings import read, refused

MODULE = "crpipe.workloads.direction.reading.prometheus"
SMALL = [3, 0, 7, 0, 2]


def flat_reader(folder, files, geometry=None):
    paths, truth = write_flat(folder, files)
    if geometry is None:
        geometry = folder / "geometry.csv"
        geometry_of(paths, geometry)
    return ReaderChoice(f"{MODULE}:PrometheusHits", {}, {"truth": truth, "geometry": geometry}).open(), paths


def nested_reader(path, geometry=None):
    if geometry is None:
        geometry = path.with_suffix(".csv")
        geometry_of([path], geometry)
    return ReaderChoice(f"{MODULE}:PrometheusPhotons", {}, {"geometry": geometry}).open()


def assert_hits(events, counts, geometry, seed=0):
    string, sensor, time = make_hits(counts, seed)
    assert np.array_equal(events.multiplicity, counts)
    places = read_geometry(geometry)[events.items[:, 0].astype(int)]
    assert np.array_equal(places, place_of(string, sensor).astype(np.float32))
    assert np.array_equal(events.items[:, 1], time.astype(np.float32))
    assert (events.items[:, 2:] == [1, 0]).all()


@pytest.mark.parametrize("events", [1, 2, 20_000])
def test_flat_files_in_blocks_of_any_size(tmp_path, monkeypatch, events):
    """Events numbered in no order, as in GraphNeT's example, in several files."""
    monkeypatch.setattr(columns_module, "EVENTS", events)
    monkeypatch.setattr(columns_module, "_ROWS", 7)
    files = [([1907, 4, 833], [3, 99, 36]), ([5, 1], [20, 4])]
    reader, paths = flat_reader(tmp_path, files)
    for number, ((ids, counts), path) in enumerate(zip(files, paths, strict=True)):
        found = read(reader, path)
        assert_hits(found, counts, tmp_path / "geometry.csv", seed=number)
        assert found.columns["event_id"].tolist() == ids
        assert not find_invalid_events(found, reader.layout)


@pytest.mark.parametrize("kind", [pa.int64(), pa.uint64()])
def test_large_numbers_of_events_stay_exact(tmp_path, kind):
    ids, counts = [2**60 + 1, 2**60, 2**53 + 1], [2, 1, 3]
    reader, paths = flat_reader(tmp_path, [(ids, counts)])
    for path in (*paths, tmp_path / "truth.parquet"):
        table = pq.read_table(path)
        number = table.schema.get_field_index("event_no")
        pq.write_table(table.set_column(number, "event_no", table["event_no"].cast(kind)), path)
    found = read(reader, paths[0])
    assert found.columns["event_id"].tolist() == ids
    assert np.array_equal(found.columns["energy_gev"], make_truth(3)[2])


def test_flat_truth_is_where_the_neutrino_came_from(tmp_path):
    reader, paths = flat_reader(tmp_path, [([4, 2], [5, 6])])
    events = read(reader, paths[0])
    azimuth, zenith, energy = make_truth(2)  # the azimuth is the origin's, the zenith that of the travel
    came_from = unit_vectors(events.columns["azimuth"], events.columns["zenith"])
    mirrored = unit_vectors(azimuth, zenith) * [1, 1, -1]
    assert np.allclose(opening_angle(came_from, mirrored), 0, atol=1e-12)
    assert np.array_equal(events.columns["energy_gev"], energy)


def change_flat(path, name, values):
    table = pq.read_table(path)
    pq.write_table(table.set_column(table.schema.get_field_index(name), name, values), path)


def test_flat_positions_spelled_as_strings(tmp_path):
    reader, paths = flat_reader(tmp_path, [([1, 2], [4, 5])])
    spelled = pc.cast(pq.read_table(paths[0])["sensor_pos_x"], pa.string())
    change_flat(paths[0], "sensor_pos_x", spelled)
    assert_hits(read(reader, paths[0]), [4, 5], tmp_path / "geometry.csv")


def with_column(name, change):
    """Change one column of a table."""
    return lambda table: table.set_column(
        table.schema.get_field_index(name), name, pa.array(change(table[name].to_pylist()))
    )


BAD_HITS = [
    (lambda table: table.take([0, 2, 3, 1]), "row 3", "event_no 1 again"),
    *(
        (lambda table, name=name: table.drop([name]), f"no column {name}")
        for name in ("t", "sensor_string_id", "sensor_id", "sensor_pos_y", "event_no")
    ),
    *(
        (
            with_column("sensor_pos_x", lambda x, bad=bad: [str(x[0]), bad, *map(str, x[2:])]),
            "row 1",
            "sensor_pos_x",
        )
        for bad in ("x", None, "")
    ),
    *(
        (with_column("t", lambda t, time=time: [5.0, time, *t[2:]]), "row 1", "expected t within")
        for time in (2.0**24 + 2, -1e9, float("nan"), float("inf"))
    ),
]


@pytest.mark.parametrize(("change", "words"), [(first, words) for first, *words in BAD_HITS])
def test_hits_that_do_not_fit_are_refused_with_file_and_row(tmp_path, change, words):
    reader, paths = flat_reader(tmp_path, [([1, 2], [2, 2])])
    pq.write_table(change(pq.read_table(paths[0])), paths[0])
    refused(reader, paths[0], "total_0.parquet", *words)


@pytest.mark.parametrize(("rows", "found"), [([0], "found none"), ([0, 1, 1], "found 2")])
def test_truth_with_another_number_of_rows_for_an_event(tmp_path, rows, found):
    reader, paths = flat_reader(tmp_path, [([2**53, 2**53 + 1], [2, 2])])
    truth = tmp_path / "truth.parquet"
    pq.write_table(pq.read_table(truth).take(rows), truth)
    refused(reader, paths[0], "truth.parquet", f"event_no {2**53 + 1}", "total_0.parquet", found)


def test_a_negative_time_is_left_to_the_split(tmp_path):
    reader, paths = flat_reader(tmp_path, [([1, 2], [1, 1])])
    change_flat(paths[0], "t", pa.array([5.0, -5.0]))
    assert list(find_invalid_events(read(reader, paths[0]), reader.layout)) == [1]


def test_a_geometry_of_another_detector(tmp_path):
    reader, paths = flat_reader(tmp_path, [([1, 2], [2, 2])])
    table = pq.read_table(paths[0])["sensor_pos_z"]
    for shift in (0.4, 0.6):
        change_flat(paths[0], "sensor_pos_z", pc.add(table, shift))
        if shift < 0.5:
            assert len(read(reader, paths[0])) == 2
    refused(reader, paths[0], "total_0.parquet: row 0: sensor", "geometry.csv has it at", "geometry_of")


def test_a_sensor_that_the_geometry_lacks(tmp_path):
    geometry = tmp_path / "other.csv"
    string, sensor, _ = make_hits([1, 1])
    x, y, z = place_of(string, sensor)[0]
    geometry.write_text(
        f"sensor_id,x,y,z,string_id,sensor_on_string\n0,{x},{y},{z},{string[0]},{sensor[0]}\n"
    )
    reader, paths = flat_reader(tmp_path, [([1, 2], [1, 1])], geometry)
    refused(reader, paths[0], "row 1: sensor", "no such sensor", "other.csv")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sensor_id,x,y,z\n0,100,0,0\n", "string_id and sensor_on_string"),
        ("sensor_id,x,y,z,string_id,sensor_on_string\n0,100,0,0,1,a\n", "string_id and sensor_on_string"),
        ("sensor_id,x,y,z,string_id,sensor_on_string\n0,100,0,0,1,1\n1,200,0,0,1,1\n", "row 1"),
    ],
)
def test_a_geometry_without_strings(tmp_path, text, words):
    (tmp_path / "bad.csv").write_text(text)
    reader, paths = flat_reader(tmp_path, [([1], [1])], tmp_path / "bad.csv")
    refused(reader, paths[0], "bad.csv", words)


def test_a_sensor_at_two_places(tmp_path):
    paths, _ = write_flat(tmp_path, [([1], [50]), ([2], [50])])
    change_flat(paths[1], "sensor_pos_x", pc.add(pq.read_table(paths[1])["sensor_pos_x"], 0.02))
    with pytest.raises(FormatError, match=r"total_1\.parquet: row \d+: sensor .* other hits of it"):
        geometry_of(paths, tmp_path / "geometry.csv")


def test_geometry_is_numbered_by_string_and_sensor(tmp_path):
    geometry_of([write_nested(tmp_path / "1.parquet", [5000])], tmp_path / "geometry.csv")
    lines = (tmp_path / "geometry.csv").read_text().splitlines()
    assert lines[0] == "sensor_id,x,y,z,string_id,sensor_on_string"
    assert lines[22] == "21,90.5,-70.25,-1517.0,1,1"
    assert len(lines) == 1 + 6 * 20


@pytest.mark.parametrize("row_group", [1, 7, 1000])
def test_events_without_photons_and_blocks(tmp_path, row_group):
    counts = SMALL * 10
    path = write_nested(tmp_path / "run_42_photons.parquet", counts, row_group)
    reader = nested_reader(path)
    events = read(reader, path)
    assert_hits(events, counts, path.with_suffix(".csv"))
    assert events.columns["event_id"].tolist() == list(range(42_000_000, 42_000_050))
    assert max(map(len, reader.rows(path))) <= 16
    assert np.array_equal(events.columns["energy_gev"], make_truth(50)[2])


@pytest.mark.parametrize("turned", [False, True])
def test_nested_truth_is_where_the_neutrino_came_from(tmp_path, turned):
    path = write_nested(tmp_path / "1.parquet", SMALL, turned=turned)
    events = read(nested_reader(path), path)
    came_from = unit_vectors(events.columns["azimuth"], events.columns["zenith"])
    azimuth, zenith, _ = make_truth(len(SMALL))
    assert np.allclose(opening_angle(came_from, -unit_vectors(azimuth, zenith)), 0, atol=1e-12)


def test_an_infinite_angle_is_left_to_the_split(tmp_path):
    angles = pa.array([np.inf, 0.5])
    reader, (flat,) = flat_reader(tmp_path, [([4, 9], [2, 1])])
    change_flat(tmp_path / "truth.parquet", "injection_azimuth", angles)
    nested = write_nested(tmp_path / "1.parquet", [2, 1])
    rewritten(nested, lambda _, leaves: leaves.update({"initial_state_azimuth": angles}))
    for events in (read(reader, flat), read(nested_reader(nested), nested)):
        assert np.isnan(events.columns["azimuth"]).tolist() == [True, False]


def test_a_number_in_the_name_that_is_too_large_for_a_number_of_an_event(tmp_path):
    path = write_nested(tmp_path / "20260101123456_photons.parquet", [1])
    refused(nested_reader(path), path, "20260101123456 in its name is too large", "rename the file")


def test_nested_positions_spelled_as_strings(tmp_path):
    path = write_nested(tmp_path / "1.parquet", SMALL, spell=lambda axis: [repr(float(x)) for x in axis])
    assert_hits(read(nested_reader(path), path), SMALL, path.with_suffix(".csv"))


def test_a_nested_position_that_is_no_number(tmp_path):
    good = write_nested(tmp_path / "1.parquet", SMALL)
    reader = nested_reader(good)
    bad = write_nested(tmp_path / "2.parquet", SMALL, spell=lambda axis: [*map(str, axis[:-1]), "far"])
    refused(reader, bad, "2.parquet: row 4: photons.sensor_pos_x", "'far'")


def rewritten(path, change):
    """Change the leaves of a nested file: change(name of the parent, {leaf: array})."""
    table = pq.read_table(path)
    columns = {}
    for parent in table.schema.names:
        whole = table[parent].combine_chunks()
        leaves = {field.name: whole.field(field.name) for field in whole.type}
        change(parent, leaves)
        columns[parent] = pa.StructArray.from_arrays(list(leaves.values()), list(leaves))
    pq.write_table(pa.table(columns), path)


@pytest.mark.parametrize(
    "leaf", ["photons.t", "photons.string_id", "mc_truth.initial_state_zenith", "mc_truth.final_state_energy"]
)
def test_a_missing_leaf(tmp_path, leaf):
    path = write_nested(tmp_path / "1.parquet", SMALL)
    reader = nested_reader(path)
    parent, name = leaf.split(".")
    rewritten(path, lambda here, leaves: leaves.pop(name) if here == parent else None)
    refused(reader, path, "1.parquet", f"no column {leaf}")


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        ("t", [[1.0], [2.0, 3.0]], ("row 0: photons.t", "as long as photons.string_id", "found 1")),
        ("t", [[1.0, 2.0], None], ("row 1: photons.t", "found a null")),
        ("t", [[1.0, 2.0], [3.0, None]], ("row 1: photons.t", "found a null")),
        ("t", [[1.0, 2.0], [3.0, 1e9]], ("row 1: expected t within",)),
        ("t", [["1", "2"], ["3", "4"]], ("column photons.t: expected a list of float",)),
        ("sensor_id", [[1, 1], [1, 77]], ("row 1: sensor 77", "no such sensor")),
    ],
)
def test_broken_photons(tmp_path, name, values, words):
    path = write_nested(tmp_path / "1.parquet", [2, 2])
    geometry_of([write_nested(tmp_path / "all.parquet", [9000])], tmp_path / "all.csv")
    reader = nested_reader(path, tmp_path / "all.csv")

    def change(parent, leaves):
        if parent == "photons":
            for other in ("string_id", "sensor_id"):
                leaves[other] = pa.array([[1, 1], [1, 1]])
            for other, place in zip(("x", "y", "z"), place_of(np.array([1]), np.array([1]))[0], strict=True):
                leaves[f"sensor_pos_{other}"] = pa.array([[place, place]] * 2)
            leaves[name] = pa.array(values)

    rewritten(path, change)
    refused(reader, path, "1.parquet", *words)


NESTED = [54_550, 1, 193, 1157, 151_579, 472, 6783, 21, 2163, 295]  # as in Prometheus' example
STAGED = """
import sys
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from raw_files import campaign, split, write_staged
root = Path(sys.argv[1])
overrides = (root / "overrides").read_text().splitlines()
config = campaign(root, *overrides)
write_staged(config)
split(config)
# Not getrusage: its peak is inherited from the parent, which made the file.
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def test_two_giants_of_prometheus_become_outliers_in_bounded_memory(tmp_path):
    raw = tmp_path / "results/staged/0000000-0000999"
    raw.mkdir(parents=True)
    path = write_nested(raw / "853_photons.parquet", NESTED)
    geometry = tmp_path / "results/tables/geometry"
    geometry.parent.mkdir()
    geometry_of([path], geometry)
    row = {"uri": "u", "path": "tables/geometry", "size": geometry.stat().st_size, "sha256": "0" * 64}
    (tmp_path / "results/tables.json").write_text(json.dumps({"geometry": row}))
    reader = f"{MODULE}:PrometheusPhotons"
    overrides = [f"source.reader={reader}", "split.outlier_above=20000"]
    overrides += ["train.workload=crpipe.workloads.direction:DeepSet"]
    (tmp_path / "overrides").write_text("\n".join(overrides))
    command = [sys.executable, "-c", STAGED, str(tmp_path), *sys.path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 1_000_000  # kB
    ledger = json.loads((tmp_path / "results/ledgers/0000000-0000999.json").read_text())
    assert ledger["balanced"] is True
    assert (ledger["events"]["listed"], ledger["items"]["listed"]) == (10, 217_214)
    giants = [name for name in ledger["events"] if name.endswith("outliers")]  # of training and validation
    sums = [sum(ledger[what][name] for name in giants) for what in ("events", "items")]
    assert sums == [2, 54_550 + 151_579]
    assert ledger["events"]["rejected"] == 0
