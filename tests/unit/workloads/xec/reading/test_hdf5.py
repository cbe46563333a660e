"""Files of LiquidO are read exactly, vertices in the frame of the hits, or are refused with the place."""

import re
import sys

import h5py
import numpy as np
import pytest
from pydantic import ValidationError

import readings
from crpipe.campaign.readers import ReaderChoice
from crpipe.core.errors import MissingExtra
from crpipe.events.validity import find_invalid_events
from crpipe.workloads.xec.reading import hdf5
from crpipe.workloads.xec.reading.options import LiquidOFilesOptions
from liquido_files import make_liquido, write_liquido

LIQUIDO = "crpipe.workloads.xec.reading.hdf5:LiquidOFiles"
COUNTS = [*range(78, 100), 0, 2480, 1]  # as in the public sample: 78 to 2,480 hits


def reader(**options):
    return ReaderChoice(LIQUIDO, options, {}).open()


def read(path, **options):
    return readings.read(reader(**options), path)


def refused(path, *words, **options):
    readings.refused(reader(**options), path, *words)


@pytest.mark.parametrize(("events", "items"), [(1, 1 << 20), (7, 100), (1000, 1), (1000, 1 << 20)])
def test_values_are_those_of_the_file(tmp_path, monkeypatch, events, items):
    monkeypatch.setattr(hdf5, "_EVENTS", events)
    monkeypatch.setattr(hdf5, "_ITEMS", items)
    truth, hits = make_liquido(COUNTS)
    found = read(write_liquido(tmp_path / "a.h5", truth, hits))
    assert found.multiplicity.tolist() == COUNTS
    assert np.array_equal(found.items, hits[:, 1:])
    columns = found.columns
    for name, column in (("event_no", 0), ("interaction_time_ns", 6), ("energy_mev", 7), ("pdg", 8)):
        assert np.array_equal(columns[name], truth[:, column])
    assert not find_invalid_events(found, reader().layout)


def test_vertices_and_directions_are_turned_into_the_frame_of_the_hits(tmp_path):
    truth, hits = make_liquido([500] * 20)
    truth[:3, 4:6] = [[0, 0], [np.pi / 2, 0], [np.pi / 2, np.pi / 2]]  # along z, x and y of the file
    events = read(write_liquido(tmp_path / "a.h5", truth, hits))
    vertices = np.stack([events.columns[f"vertex_{axis}_mm"] for axis in "xyz"], axis=1)
    means = events.items[:, 1:4].reshape(20, 500, 3).mean(axis=1)
    assert np.abs(vertices - means).max() < 10
    directions = np.stack([events.columns[f"direction_{axis}"] for axis in "xyz"], axis=1)
    assert np.allclose(directions[:3], [[1, 0, 0], [0, 0, -1], [0, 1, 0]], atol=1e-7)
    assert np.allclose(np.linalg.norm(directions, axis=1), 1)


def test_the_frame_check_names_the_axes(tmp_path):
    path = write_liquido(tmp_path / "a.h5", *make_liquido([50] * 30))
    report = hdf5.frame_check(path)
    found = re.findall(r"hits' (.) = vertex (\S+) \(r = (\S+)\)", report)
    assert [(own, axis) for own, axis, _ in found] == [("x", "z"), ("y", "y"), ("z", "-x")]
    assert np.allclose([float(r) for *_, r in found], [1, 1, -1], atol=0.01)


def test_a_file_in_another_frame_is_refused_with_the_right_axes(tmp_path):
    truth, hits = make_liquido([50] * 30)
    path = write_liquido(tmp_path / "a.h5", truth, hits)
    refused(path, "hits' x = vertex z", "set reader.vertex_axes: [z, y, -x]", vertex_axes=["x", "y", "z"])
    truth[:, 1:4] = truth[:, [3, 2, 1]] * [1, 1, -1]
    path = write_liquido(tmp_path / "b.h5", truth, hits)
    refused(path, "set reader.vertex_axes: [x, y, z]")
    assert len(read(path, vertex_axes=["x", "y", "z"])) == 30


@pytest.mark.parametrize(
    ("counts", "place"),
    [([50] * 10, None), ([0] * 30, None), ([50] * 30, 5)],
    ids=["few", "no hits", "alike"],
)
def test_few_events_and_equal_vertices_say_nothing_about_the_frame(tmp_path, counts, place):
    truth, hits = make_liquido(counts)
    if place:
        truth[:, 1:4] = place
    path = write_liquido(tmp_path / "a.h5", truth, hits)
    assert "r = nan" in hdf5.frame_check(path)
    assert len(read(path, vertex_axes=["x", "y", "z"])) == len(counts)


def test_each_axis_is_named_once():
    with pytest.raises(ValidationError, match="name x, y and z once each, not x, y, -x"):
        LiquidOFilesOptions(vertex_axes=("x", "y", "-x"))


def test_an_empty_file(tmp_path):
    path = write_liquido(tmp_path / "a.h5", *make_liquido([]))
    assert reader().totals(path) == (0, 0)
    assert not list(reader().rows(path))
    assert hdf5.frame_check(path) == "no events"


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("TruthData", None, ["expected float32", "found none", "SiPMIDxyz"]),
        ("HitData", None, ["expected float32", "found none", "SiPMIDxyz"]),
        ("TruthData", lambda rows: rows[:, :8], ["expected float32 [rows, 9]", "float32 [25, 8]"]),
        ("HitData", lambda rows: rows.astype(int), ["expected float32 [rows, 7]", "int64"]),
    ],
)
def test_a_table_that_is_missing_or_of_another_shape(tmp_path, name, change, words):
    path = write_liquido(tmp_path / "a.h5", *make_liquido(COUNTS))
    with h5py.File(path, "a") as file:
        rows = file[name][()]
        del file[name]
        if change:
            file[name] = change(rows)
    refused(path, f"{name}: ", *words)


@pytest.mark.parametrize(
    ("table", "row", "column", "value", "words"),
    [
        ("truth", 3, 0, 4.5, ("TruthData: row 3: event_no", "found 4.5")),
        ("truth", 3, 0, np.nan, ("TruthData: row 3: event_no", "found nan")),
        ("truth", 3, 8, 0.5, ("TruthData: row 3: pid", "found 0.5")),
        ("truth", 3, 0, 1, ("TruthData: rows 0 and 3", "both are event 1")),
        ("hits", 100, 0, 900, ("HitData: row 100: event_no", "found 900")),
        ("hits", 100, 0, np.nan, ("HitData: row 100: event_no", "found nan")),
        ("hits", 100, 0, 1, ("HitData: row 100: event_no", "in its order", "found 1")),
    ],
)
def test_numbers_of_events_that_do_not_fit(tmp_path, monkeypatch, table, row, column, value, words):
    monkeypatch.setattr(hdf5, "_ITEMS", 100)
    tables = dict(zip(("truth", "hits"), make_liquido(COUNTS), strict=True))
    tables[table][row, column] = value
    refused(write_liquido(tmp_path / "a.h5", **tables), *words)


def test_values_out_of_the_layout_are_left_to_the_split(tmp_path):
    truth, hits = make_liquido(COUNTS)
    truth[2, 4], hits[0, 5] = np.inf, np.nan
    events = read(write_liquido(tmp_path / "a.h5", truth, hits))
    reasons = find_invalid_events(events, reader().layout)
    assert list(reasons) == [2, 0]
    assert "direction_x is nan" in reasons[2]
    assert "hits[0]: time_ns is nan" in reasons[0]


def test_without_h5py_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(MissingExtra, match=r"crpipe\[hdf5\]"):
        reader().totals(tmp_path / "a.h5")
