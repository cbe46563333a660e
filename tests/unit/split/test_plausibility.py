"""What cannot be right in the values of some events is said with what to type, and what is right is not."""

import numpy as np
import pytest

from crpipe.events.batch import Events
from crpipe.events.expectations import Expectations
from crpipe.events.layout import Field, Layout
from crpipe.split.plausibility import EventSample, doubtful_values, summarize_columns

EVENTS, TILES = 60, 49
SIDE = np.linspace(-30, 30, 7)
ACROSS, ALONG = (each.ravel() for each in np.meshgrid(SIDE, SIDE))
EVENT_FIELDS = (
    Field("event", "int64", "", 0, 1e9, "number"),
    Field("energy_gev", "float32", "GeV", 0, 1e5, "energy"),
    Field("x_cm", "float32", "cm", -1000, 1000, "place"),
    Field("y_cm", "float32", "cm", -1000, 1000, "place"),
)
DENSE = Layout(
    "tiles",
    EVENT_FIELDS,
    (
        Field("light", "float32", "", -1e9, 1e9, "light"),
        Field("valid", "float32", "", 0, 1, "0 for a dead tile"),
    ),
    ("event",),
    fixed=TILES,
)
RAGGED = Layout(
    "hits",
    EVENT_FIELDS,
    (
        Field("time_ns", "float32", "ns", -1e6, 1e6, "time"),
        Field("energy_gev", "float32", "GeV", -1e6, 1e6, "energy"),
    ),
    ("event",),
)
KNOWN = Expectations(
    typical={"energy_gev": (0.1, 100), "x_cm": (1, 40), "y_cm": (1, 40)},
    flags={"tiles.light": "valid"},
    axes={"x_cm": ACROSS, "y_cm": ALONG},
    weights="light",
    sentinel="reader.none",
    saturated={"tiles.light": "reader.most"},
)


def columns(rng, events=EVENTS):
    places = rng.uniform(-28, 28, (2, events)).astype(np.float32)
    energy = rng.uniform(1, 50, events).astype(np.float32)
    return {"event": np.arange(events), "energy_gev": energy, "x_cm": places[0], "y_cm": places[1]}


def dense(seed=0, events=EVENTS):
    """Light of each event around its place, with noise; one tile in a hundred is dead in an event."""
    rng = np.random.default_rng(seed)
    values = columns(rng, events)
    far = np.hypot(values["x_cm"][:, None] - ACROSS, values["y_cm"][:, None] - ALONG)
    light = 1e4 / (10 + far**2) + rng.normal(0, 1, far.shape)
    valid = rng.random(far.shape) > 0.01
    items = np.stack([np.where(valid, light, 0), valid], axis=2).astype(np.float32)
    return Events(values, np.full(events, TILES, np.uint32), items.reshape(-1, 2))


def ragged(seed=0, events=EVENTS):
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, 40, events).astype(np.uint32)
    items = np.stack([rng.normal(0, 100, counts.sum()), rng.exponential(0.003, counts.sum())], axis=1)
    return Events(columns(rng, events), counts, items.astype(np.float32))


def doubts(events, layout=DENSE, known=None):
    sample = EventSample(layout, known or (KNOWN if layout is DENSE else Expectations()))
    sample.add_file()
    sample.add(events)
    return doubtful_values(sample)


def lights(events):
    return events.items.reshape(len(events), TILES, 2)[..., 0]


def flags(events):
    return events.items.reshape(len(events), TILES, 2)[..., 1]


@pytest.mark.parametrize("seed", range(20))
def test_good_events_raise_no_doubt(seed):
    assert doubts(dense(seed)) == []
    assert doubts(ragged(seed), RAGGED, Expectations(sums={"energy_gev": "energy_gev"})) == []


@pytest.mark.parametrize("events", [0, 1, 7])
def test_few_events_raise_no_doubt(events):
    assert doubts(dense(events=events)) == []
    assert doubts(ragged(events=events), RAGGED) == []


def test_quantiles_are_those_of_the_valid_values():
    events = dense()
    lights(events)[flags(events) == 0] = -5e5
    sample = EventSample(DENSE, KNOWN)
    sample.add_file()
    sample.add(events)
    light = next(each for each in summarize_columns(sample) if each.name == "tiles.light")
    good = lights(events)[flags(events) > 0]
    assert (light.smallest, light.largest) == (good.min(), good.max())
    assert light.median == pytest.approx(np.median(good), abs=0.1)
    assert light.outside == 0
    assert summarize_columns(EventSample(DENSE, KNOWN)) == ()


def test_values_outside_of_the_limits_are_counted_also_those_that_are_none():
    events = ragged()
    events.items[:4, 0] = [np.nan, np.inf, -np.inf, 2e6]
    sample = EventSample(RAGGED, Expectations())
    sample.add_file()
    sample.add(events)
    time = next(each for each in summarize_columns(sample) if each.name == "hits.time_ns")
    assert (time.outside, time.largest) == (4, 2e6)
    events.items[:, 0] = np.nan
    time = EventSample(RAGGED, Expectations())
    time.add_file()
    time.add(events)
    assert np.isnan(next(each for each in summarize_columns(time) if each.name == "hits.time_ns").median)


@pytest.mark.parametrize("value", [-999, -1, 0, 1e9, 4095])
def test_a_value_of_the_same_items_in_every_event_is_named_with_the_key(value):
    events = dense()
    lights(events)[:, [3, 8, 40]] = value
    flags(events)[:, [3, 8, 40]] = 1
    (doubt,) = doubts(events)
    assert doubt.startswith(f"tiles.light is {value:g} in 3 tiles of every event: no value?")
    assert f"set reader.none: {value:g}" in doubt
    flags(events)[:, [3, 8, 40]] = 0  # once the reader knows it
    assert doubts(events) == []


def test_without_such_a_key_the_files_have_to_change():
    events = dense()
    lights(events)[:, 3] = -999
    (doubt,) = doubts(events, known=Expectations())
    assert doubt.endswith("let the reader leave it out")


def test_counts_are_0_by_their_nature():
    events, rng = dense(), np.random.default_rng(1)
    lights(events)[:] = rng.poisson(np.linspace(0.01, 3, TILES), (EVENTS, TILES))
    assert not [doubt for doubt in doubts(events, known=Expectations()) if "no value" in doubt]


def test_tiles_without_light_are_no_doubt_in_one_event_or_in_many():
    events = dense(events=3)
    lights(events)[:, 5] = 0
    flags(events)[:, 5] = 1
    assert doubts(events) == []  # three events are too few for "every event"
    dark = dense()
    lights(dark)[np.random.default_rng(3).random((EVENTS, TILES)) < 0.3] = 0
    flags(dark)[:] = 1
    assert not [doubt for doubt in doubts(dark, known=Expectations()) if "no value" in doubt]


def test_properties_of_the_items_are_no_sentinels():
    events = dense()
    lights(events)[:] = np.repeat([5.0, -1, 0, 7, 8, 9, 10], 7)
    assert doubts(events, known=Expectations()) == []


@pytest.mark.parametrize("value", [-999, -1, 99999, 1e9])
def test_a_value_that_is_repeated_without_reason(value):
    events = ragged()
    events.items[::9, 0] = value
    (doubt,) = doubts(events, RAGGED)
    assert doubt.startswith(f"hits.time_ns is {value:g} in 11 % of the values")
    spoiled = ragged()
    spoiled.columns["energy_gev"][::9] = value
    assert doubts(spoiled, RAGGED)[0].startswith(f"energy_gev is {value:g} in 12 % of the values")


def test_zeros_among_real_numbers_and_in_every_event():
    events = ragged()
    events.columns["energy_gev"][::9] = 0
    assert doubts(events, RAGGED)[0].startswith("energy_gev is 0 in 12 % of the values: no value?")
    events.columns["energy_gev"][:] = 0
    (doubt,) = doubts(events, RAGGED, Expectations(typical={"energy_gev": (1, 10)}))
    assert doubt == "energy_gev is 0 in every event: no value? then do not train on it"
    assert doubts(events, RAGGED) == []
    events.columns["energy_gev"][:] = -1
    assert doubts(events, RAGGED)[0].startswith("energy_gev is -1 in every event: no value?")


def test_rows_of_one_group_may_share_what_they_describe():
    events = ragged()
    events.columns["event"][:10] = 3
    events.columns["energy_gev"][:10] = 5000
    assert doubts(events, RAGGED) == []
    events.columns["event"][:] = np.arange(EVENTS)
    (doubt,) = doubts(events, RAGGED)
    assert doubt.startswith("energy_gev is 5000 in 17 % of the values: far from all others: no value?")


def test_rows_that_pad_a_list():
    events = ragged()
    events.items[::9] = 0
    padding = [doubt for doubt in doubts(events, RAGGED) if "rows that pad a list?" in doubt]
    assert padding[0].startswith("11 % of the hits are 0 in every column")


@pytest.mark.parametrize(
    ("name", "factor", "unit"), [("energy_gev", 1e3, "MeV"), ("energy_gev", 1e-3, "TeV"), ("x_cm", 10, "mm")]
)
def test_an_unusual_median_names_the_unit(name, factor, unit):
    events = dense()
    events.columns[name] *= np.float32(factor)
    (doubt,) = doubts(events)
    assert doubt.startswith(f"{name} has a median of ")
    assert f"is it in {unit}?" in doubt


def test_axes_that_are_exchanged_or_run_backwards():
    events = dense()
    events.columns.update(x_cm=events.columns["y_cm"], y_cm=events.columns["x_cm"])
    (doubt,) = doubts(events)
    assert "y_cm lies along x_cm" in doubt
    backwards = dense()
    backwards.columns["x_cm"] *= -1
    (doubt,) = doubts(backwards)
    assert "x_cm runs against the centre" in doubt


def test_places_outside_of_all_that_could_see_them():
    events = dense()
    events.columns["x_cm"] += 30
    (doubt,) = doubts(events)
    assert doubt.startswith("outside of the box of the tiles: x_cm (of -30 to 30) in ")


def test_axes_may_be_columns_of_the_items():
    events = ragged(2)
    times = np.split(events.items[:, 0], events.offsets()[1:-1])
    events.columns["x_cm"] = np.array([part.mean() for part in times])
    known = Expectations(axes={"x_cm": "time_ns"})
    assert doubts(events, RAGGED, known) == []
    events.columns["x_cm"] *= -1
    (doubt,) = doubts(events, RAGGED, known)
    assert "x_cm runs against the centre of the hits" in doubt


def test_the_parts_are_not_more_than_the_whole():
    events = ragged()
    events.items[:, 1] *= 100_000
    (doubt,) = doubts(events, RAGGED, Expectations(sums={"energy_gev": "energy_gev"}))
    assert "are both in the same unit?" in doubt


def saturate(events, value, flag):
    bright = lights(events) > 300
    assert bright.any(axis=1).sum() > 10
    lights(events)[bright] = value
    flags(events)[bright] = flag


@pytest.mark.parametrize(("value", "flag"), [(0, 0), (0, 1), (-1, 1)])
def test_the_largest_that_have_no_value_are_saturated_not_dead(value, flag):
    events = dense()
    saturate(events, value, flag)
    (doubt,) = [doubt for doubt in doubts(events) if doubt.startswith("beside the largest light")]
    assert "saturated? then have them written as inf, and set reader.most: VALUE" in doubt


def test_the_largest_that_are_cut_off_are_saturated():
    events = dense()
    saturate(events, 300, 1)
    (doubt,) = doubts(events)
    assert doubt.endswith("saturated? then set reader.most: 300")
    known = Expectations(saturated={"tiles.light": 300.0}, flags=KNOWN.flags)
    assert doubts(events, known=known) == []


def test_angles_that_are_exchanged():
    fields = (
        EVENT_FIELDS[0],
        Field("azimuth", "float64", "rad", 0, 2 * np.pi, "azimuth"),
        Field("zenith", "float64", "rad", 0, np.pi, "zenith"),
    )
    layout, rng, events = Layout("hits", fields, RAGGED.items, ("event",)), np.random.default_rng(0), ragged()
    angles = {"azimuth": rng.uniform(0, 2 * np.pi, EVENTS), "zenith": rng.uniform(0, np.pi, EVENTS)}
    right = Events({"event": events.columns["event"], **angles}, events.multiplicity, events.items)
    assert doubts(right, layout) == []
    right.columns.update(azimuth=angles["zenith"], zenith=angles["azimuth"])
    (doubt,) = doubts(right, layout)
    assert doubt.startswith("zenith and azimuth look exchanged")


def test_each_file_has_its_share_of_the_memory(monkeypatch):
    monkeypatch.setattr("crpipe.split.plausibility._MOST_ITEMS", 20 * TILES)
    sample = EventSample(DENSE, KNOWN, files=2)
    for seed in range(2):
        sample.add_file()
        for _ in range(3):
            sample.add(dense(seed, events=4))
    assert [len(part) for part in sample.parts] == [4, 4, 2] * 2
