"""ROOT files give every event its own values and flags, and what does not fit is refused with its place."""

import subprocess
import sys
from types import SimpleNamespace

import awkward
import numpy as np
import pytest
import uproot

import readings
from crpipe.campaign.readers import ReaderChoice
from crpipe.core.errors import FormatError, MissingExtra
from crpipe.events.batch import concatenate
from crpipe.events.validity import find_invalid_events
from crpipe.workloads.xec.layout import SENSORS
from crpipe.workloads.xec.reading import root
from crpipe.workloads.xec.reading.root import open_tree
from root_files import SENTINEL, make_sensors, make_truth, write_root

ROOT = "crpipe.workloads.xec.reading.root:RootFiles"
EVENTS = 5
NEEDED = ("npho", "relative_time", "run", "event")


def reader(options=None, tables=None):
    return ReaderChoice(ROOT, options or {}, tables or {}).open()


def read(path, options=None, tables=None):
    return readings.read(reader(options, tables), path)


def refused(path, *words, options=None, tables=None):
    readings.refused(reader(options, tables), path, *words)


@pytest.fixture
def write(tmp_path):
    """Write five events: write(npho=…, branches by name) -> path."""

    def build(name="gammas_000001.root", **changes):
        npho, time = make_sensors(EVENTS)
        branches = {"npho": npho, "relative_time": time, **make_truth(EVENTS)} | changes
        return write_root(tmp_path / name, branches.pop("npho"), branches.pop("relative_time"), **branches)

    return build


def test_two_branches_of_one_name(write):
    path = write(rux=np.arange(EVENTS, dtype=np.int32), compression=0)
    content = path.read_bytes()
    assert b"\x03rux" in content
    path.write_bytes(content.replace(b"\x03rux", b"\x03run"))
    refused(path, "tree tree: 2 branches are called run; have the file made again")


@pytest.mark.parametrize(
    ("block", "basket", "dtype"),
    [(1, 3, "f4"), (2, 1, "f8"), (2, 3, "f4"), (881, 1000, "f8"), (881, 1, "f4")],
)
def test_events_are_as_written_for_any_blocks_and_baskets(write, monkeypatch, block, basket, dtype):
    monkeypatch.setattr(root, "_EVENTS", block)
    npho, time = (each.astype(dtype) for each in make_sensors(EVENTS))
    truth = make_truth(EVENTS)
    path = write(npho=npho, relative_time=time, block=basket)
    events = read(path)
    assert len(list(reader().rows(path))) == -(-EVENTS // block)
    assert events.items.flags.c_contiguous
    items = events.items.reshape(EVENTS, SENSORS, 4)
    alive, timed = npho < SENTINEL, time < SENTINEL
    assert np.array_equal(items[..., 2], alive)
    assert np.array_equal(items[..., 3], timed)
    assert np.array_equal(items[..., 0], np.where(alive, npho, 0).astype("f4"))
    assert np.array_equal(items[..., 1], (np.where(timed, time, 0) * 1e9).astype("f4"))
    assert np.array_equal(events.columns["run"], np.ones(EVENTS))
    assert np.array_equal(events.columns["event"], np.arange(EVENTS))
    assert np.array_equal(events.columns["energy_gev"], truth["energyTruth"])
    for column, name in enumerate(("u_cm", "v_cm", "w_cm")):
        assert np.array_equal(events.columns[name], truth["uvwTruth"][:, column])
    assert np.allclose(events.columns["gamma_time_ns"], 1e9 * truth["timeTruth"], rtol=1e-6)
    assert np.allclose(events.columns["theta_rad"], np.radians(truth["emiAng"][:, 0]))
    assert np.allclose(events.columns["phi_rad"], np.radians(truth["emiAng"][:, 1]))
    assert not find_invalid_events(events, reader().layout)


@pytest.mark.parametrize(
    ("npho", "time", "item", "options"),
    [
        (12, 1e-8, (12, 10, 1, 1), {"npho_threshold": 10}),
        (200, 1e-8, (200, 10, 1, 1), {}),
        (100, -1e-8, (100, -10, 1, 1), {}),
        (99.9, 1e-8, (99.9, 0, 1, 0), {}),
        (0, 0, (0, 0, 1, 0), {}),
        (-3, 1e-8, (-3, 0, 1, 0), {}),
        (np.nan, 1e-8, (0, 0, 0, 0), {}),
        (np.inf, 1e-8, (0, 0, 0, 0), {"sentinel": [-999, np.inf]}),
        (-999, 1e-8, (0, 0, 0, 0), {"sentinel": -999}),
        (-998, 1e-8, (-998, 0, 1, 0), {"sentinel": -999}),
        (200, -999, (200, 0, 1, 0), {"sentinel": [0, -999]}),
        (0, 1e-8, (0, 0, 0, 0), {"sentinel": [0, -999]}),
        (-999.9, 1e-8, (0, 0, 0, 0), {"sentinel": -999.9}),  # no float32 is exactly that
        (1e10, 1e-8, (0, 0, 0, 0), {}),
        (-1e10, 1e-8, (0, 0, 0, 0), {}),
        (200, np.nan, (200, 0, 1, 0), {}),
        (200, 1e10, (200, 0, 1, 0), {}),
        (200, -1e10, (200, 0, 1, 0), {}),
        (200, np.inf, (200, 0, 1, 0), {}),
    ],
)
def test_each_kind_of_sentinel_lands_in_its_flag(write, npho, time, item, options):
    photons, times = make_sensors(EVENTS)
    photons[3, 7], times[3, 7] = npho, time
    events = read(write(npho=photons, relative_time=times), options)
    assert np.allclose(events.items.reshape(EVENTS, SENSORS, 4)[3, 7], item)
    assert not find_invalid_events(events, reader().layout)


def test_infinite_photons_are_no_dead_sensor(write):
    photons, times = make_sensors(EVENTS)
    photons[3, 7], times[3, 7] = np.inf, 1e-8
    (reason,) = find_invalid_events(read(write(npho=photons, relative_time=times)), reader().layout).values()
    assert reason == "sensors[7]: photons is inf, not within -9e+09 to 9e+09"
    opened = reader()
    assert opened.expectations.saturated == {"sensors.photons": "reader.saturated"}
    events = concatenate(list(opened.rows(write(npho=photons, relative_time=times))))
    reasons = find_invalid_events(events, opened.layout, opened.expectations)
    assert reasons[3].endswith("as reader.saturated: VALUE")


def test_a_saturated_sensor_has_its_own_flag(write):
    photons, times = make_sensors(EVENTS)
    photons[3, 7:10], times[3, 7:10] = [np.inf, 2500, 2499], 1e-8
    path, options = write(npho=photons, relative_time=times), {"saturated": 2500, "sentinel": -999}
    events = read(path, options)
    assert reader(options).layout.items[4].name == "saturated"
    sensors = events.items.reshape(EVENTS, SENSORS, 5)
    assert np.array_equal(sensors[3, 7:10], [[2500, 10, 1, 1, 1], [2500, 10, 1, 1, 1], [2499, 10, 1, 1, 0]])
    assert not find_invalid_events(events, reader(options).layout)
    photons[3, 7:9] = 2500
    plain = read(write("plain.root", npho=photons, relative_time=times))
    assert np.array_equal(sensors[..., :4], plain.items.reshape(EVENTS, SENSORS, 4))


def test_integers_for_photons_and_floats_for_numbers_are_read_where_nothing_is_lost(write):
    npho, time = make_sensors(EVENTS)
    whole = np.rint(np.where(npho < SENTINEL, npho, -999))
    options = {"sentinel": -999}
    expected = read(write(npho=whole.astype("f4"), relative_time=time), options)
    run = np.ones(EVENTS)
    for number, kind in enumerate(("i2", "i4", "i8")):
        path = write(f"{number}.root", npho=whole.astype(kind), relative_time=time, run=run.astype("f4"))
        opened = reader(options)
        opened.totals(path)
        assert any(note.startswith("branch npho: int") for note in opened.notes)
        assert "branch run: float is read as an integer" in opened.notes
        found = concatenate(list(opened.rows(path)))
        assert np.array_equal(found.items, expected.items)
        assert np.array_equal(found.columns["run"], expected.columns["run"])
        assert found.columns["run"].dtype == np.int64


def test_an_impossible_time_is_left_to_the_split(write):
    npho, time = make_sensors(EVENTS)
    npho[2, 5], time[2, 5] = 500, 1.0
    reasons = find_invalid_events(read(write(npho=npho, relative_time=time)), reader().layout)
    assert list(reasons) == [2]
    assert "sensors[5]: time_ns is" in reasons[2]


def test_dead_sensors_are_added_to_the_sentinels(write, tmp_path):
    npho, time = make_sensors(EVENTS)
    run = np.array([7, 7, 8, 8, 9], np.int32)
    path = write(npho=npho, relative_time=time, run=run, event=np.array([0, 1, 1, 2, 2], np.int32))
    whole = read(path).items.reshape(EVENTS, SENSORS, 4)
    lists = {
        "# two of them\n3  # flickers\n\n4759\n": np.tile([[3, 4759]], (EVENTS, 1)),
        "\ufeffrun, sensor_id\n8, 3\n 8 ,4759\n": np.array([[3, 4759]] * 2),
        "# none\n": np.zeros((0, 2), int),
    }
    for number, (text, sensors) in enumerate(lists.items()):
        table = tmp_path / f"{number}.txt"
        table.write_text(text)
        expected = whole.copy()
        for row, own in zip(range(2, 4) if len(sensors) == 2 else range(EVENTS), sensors, strict=False):
            expected[row, own] = 0
        found = read(path, {"dead": True}, {"dead": table}).items.reshape(whole.shape)
        assert np.array_equal(found, expected)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"3\n4760", "line 2: expected"),
        (b"-1", "line 1: expected"),
        (b"3\nfour", "line 2: expected"),
        (b"3,4", "line 1: expected"),
        (b"3 4", "line 1: expected"),  # neither sensor 34 nor two sensors
        (b"run,sensor_id\n5,6 7", "line 2: expected"),
        (b"run,sensor_id\n5", "line 2: expected"),
        (b"run,sensor_id\n5,6,7", "line 2: expected"),
        (b"3\n4.0", "line 2: expected"),
        (b"\xff\xfe\x00", "expected a text file"),
    ],
)
def test_a_wrong_list_of_dead_sensors(write, tmp_path, content, words):
    (tmp_path / "dead.txt").write_bytes(content)
    tables = {"dead": tmp_path / "dead.txt"}
    refused(write(), "dead.txt: " + words, options={"dead": True}, tables=tables)


def test_a_wrong_geometry_is_refused_before_the_file_is_opened(tmp_path):
    (tmp_path / "sensors.csv").write_text("sensor_id,x\n0,1\n")
    opened = reader({"sensors": True}, {"sensors": tmp_path / "sensors.csv"})
    for method in (opened.totals, lambda path: next(opened.rows(path))):
        with pytest.raises(FormatError, match=r"sensors\.csv: expected the columns"):
            method(tmp_path / "no_file.root")


def test_vectors_of_variable_length_are_taken_when_all_sensors_are_there(write):
    npho, time = make_sensors(EVENTS)
    lists = {"npho": awkward.from_regular(npho), "relative_time": awkward.from_regular(time)}
    path = write(**lists)
    assert "AsJagged" in str(uproot.open(path)["tree/npho"].interpretation)
    assert np.array_equal(read(path).items, read(write("fixed.root")).items)


def test_a_vector_of_another_length_is_refused_with_its_row(write, monkeypatch):
    monkeypatch.setattr(root, "_EVENTS", 2)
    npho = make_sensors(EVENTS)[0].tolist()
    npho[3] = npho[3][:-1]
    refused(
        write(npho=awkward.values_astype(awkward.Array(npho), "float32")),
        "row 3: npho",
        "expected 4760",
        "found 4759",
    )


def test_names_of_tree_and_branches_are_options(write):
    npho, time = make_sensors(EVENTS)
    path = write(npho=None, relative_npho=npho, relative_time=time, tree="rec")
    refused(path, "no tree tree", "rec", "reader.tree")
    words = ("tree rec: no branch npho", "near: relative_npho", "reader.branches.npho")
    refused(path, *words, options={"tree": "rec"})
    found = read(path, {"tree": "rec", "branches": {"npho": "relative_npho"}})
    assert np.array_equal(found.items, read(write("plain.root")).items)


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        *((name, None, [f"no branch {name}", f"reader.branches.{name}"]) for name in NEEDED),
        ("run", np.ones((EVENTS, 2), np.int32), ["branch run: expected float, double or an integer type"]),
        ("run", np.full(EVENTS, 1.5), ["row 0: run: expected a whole number", "found 1.5"]),
        ("event", np.full(EVENTS, np.nan), ["row 0: event: expected a whole number", "found nan"]),
        ("event", np.full(EVENTS, 2e7, np.float32), ["event: expected a whole number up to 16777216"]),
        (
            "uvwTruth",
            np.zeros((EVENTS, 2), np.float32),
            ["branch uvwTruth: expected float or double[3], found float[2]"],
        ),
        (
            "npho",
            np.zeros((EVENTS, 4092), np.float32),  # of another detector
            ["branch npho", "[4760]", "found float[4092]"],
        ),
    ],
)
def test_branches_that_are_missing_or_do_not_fit_are_named(write, name, values, words):
    refused(write(**{name: values}), *words)


@pytest.mark.parametrize("missing", ["energyTruth", "timeTruth", "uvwTruth", "emiAng"])
def test_truth_that_a_file_lacks_is_nan(write, missing):
    columns = {
        "energyTruth": ["energy_gev"],
        "timeTruth": ["gamma_time_ns"],
        "uvwTruth": ["u_cm", "v_cm", "w_cm"],
        "emiAng": ["theta_rad", "phi_rad"],
    }[missing]
    path = write(**{missing: None})
    opened, events = reader(), read(path)
    opened.totals(path)
    assert any(f"no branch {missing}: NaN; set reader.truth" in each for each in opened.notes)
    assert {name for name, values in events.columns.items() if np.isnan(values).any()} == set(columns)
    reasons = find_invalid_events(events, reader().layout)
    assert reasons[0].startswith(f"{columns[0]} is nan, not within")
    assert len(reasons) == EVENTS


def test_measured_events_need_no_truth(write):
    events = read(write(energyTruth=None, uvwTruth=None, timeTruth=None, emiAng=None), {"truth": []})
    assert list(events.columns) == ["run", "event"]
    assert not find_invalid_events(events, reader({"truth": []}).layout)


def test_the_fiducial_volume_and_runs_that_stay_together_are_options(write):
    truth = make_truth(EVENTS)["uvwTruth"]
    truth[0] = [23.9, -67.9, 0]  # on the border, which is inside
    truth[3, 0] = -24
    options = {"fiducial": True, "group": "run"}
    reasons = find_invalid_events(read(write(uvwTruth=truth), options), reader(options).layout)
    assert reasons == {3: "u_cm is -24.0, not within -23.9 to 23.9 cm"}
    assert reader(options).layout.group == ("run",)


def test_an_event_that_occurs_twice_is_refused_with_both_rows(write):
    run = np.array([5, 6, 5, 6, 5], np.int32)
    event = np.array([1, 1, 2, 2, 1], np.int32)
    refused(write(run=run, event=event), "rows 0 and 4", "event 1 of run 5")


def test_an_empty_tree(write):
    none = {name: each[:0] for name, each in make_truth(EVENTS).items()}
    npho, time = make_sensors(0)
    opened, path = reader(), write(npho=npho, relative_time=time, **none)
    assert opened.totals(path) == (0, 0)
    assert not list(opened.rows(path))


def test_a_file_without_its_last_bytes_is_refused(write):
    """Most of it may be readable."""
    path = write()
    path.write_bytes(path.read_bytes()[:-50])
    refused(path, f"{path}: cannot be read whole", "it is truncated")
    with pytest.raises(FormatError):
        reader().totals(path)


def test_branches_of_unequal_length_are_refused(write, monkeypatch):
    """As a damaged basket gives them: uproot counts the entries of each branch by itself."""
    path = write()
    with open_tree(path, "tree") as tree:
        whole = next(tree.blocks({"run": (), "uvwTruth": (3,)}, 10))
        for block in ({**whole, "run": whole["run"][:2]}, {**whole, "uvwTruth": whole["uvwTruth"][:, :2]}):
            monkeypatch.setattr(
                tree, "_tree", SimpleNamespace(iterate=lambda block=block, **_: iter([block]))
            )
            with pytest.raises(FormatError, match="row 0: .*expected"):
                list(tree.blocks({"run": (), "uvwTruth": (3,)}, 10))


def test_a_file_without_any_tree(tmp_path):
    with uproot.recreate(tmp_path / "a.root") as file:
        file["text"] = "no tree"
    refused(tmp_path / "a.root", "no tree tree", "none")


def test_without_uproot_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "uproot", None)
    with pytest.raises(MissingExtra, match=r"crpipe\[root\]"):
        reader().totals(tmp_path / "a.root")


GROWTH = """
import sys
from pathlib import Path
from crpipe.campaign.readers import ReaderChoice

def peak():
    return int(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))

reader, events = ReaderChoice(sys.argv[1], {}, {}).open(), 0
for number, block in enumerate(reader.rows(Path(sys.argv[2]))):
    events += len(block)
    if number == 2:
        before = peak()
assert events == 8000
print(peak() - before)
"""


def test_nothing_accumulates_while_a_file_of_many_baskets_is_read(tmp_path):
    sensors, truth = np.zeros((8000, SENSORS), np.float32), make_truth(8000)
    path = write_root(tmp_path / "a.root", sensors, sensors, block=20, **truth)
    command = [sys.executable, "-c", GROWTH, ROOT, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 80_000  # kB; what follows the third block is 200 MB, and 400 MB of items
