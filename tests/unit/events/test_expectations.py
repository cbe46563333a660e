"""A value that is not legal is explained: a unit, a sentinel or saturation, in the file's own numbers."""

import math

import pytest

from crpipe.events.expectations import Expectations, is_sentinel
from crpipe.events.layout import Field
from crpipe.events.validity import find_invalid_events
from plain_reader import HITS, make_hits

ENERGY = Field("energy_gev", "float32", "GeV", 0, 10, "energy")
PLACE = Field("x_cm", "float32", "cm", -24, 24, "place")
TIME = Field("time_ns", "float32", "ns", -1e7, 1e7, "time")
KNOWN = Expectations(
    typical={"energy_gev": (2e-3, 0.5), "hits.time_ns": (0.1, 1e3)},
    units={"hits.time_ns": "s"},
    flags={"hits.time_ns": "good"},
    sentinel="reader.none",
    saturated={"hits.time_ns": "reader.most"},
)


@pytest.mark.parametrize(
    ("column", "field", "value", "guess"),
    [
        ("energy_gev", ENERGY, 25.3, "is it in MeV?"),
        ("energy_gev", ENERGY, 52_800, "is it in keV?"),
        ("energy_gev", ENERGY, 5.3e7, "is it in eV?"),
        ("energy_gev", ENERGY, -25.3, ""),
        ("energy_gev", ENERGY, math.inf, ""),
        ("energy_gev", ENERGY, math.nan, ""),
        (
            "energy_gev",
            Field("energy_gev", "float32", "GeV", 0, 1e5, "energy"),
            2e7,
            "is it in eV?",
        ),  # not keV
        ("x_cm", PLACE, 239, "is it in mm?"),
        ("x_cm", PLACE, 30, ""),  # a cut leaves it out
        ("hits.time_ns", TIME, -7.5e9, "is it in ns in the file, not in s?"),
        ("hits.time_ns", TIME, 5e13, "is it in ps in the file, not in s?"),
        ("hits.time_ns", TIME, -9.99e11, "no value? then set reader.none: -999"),
        (
            "hits.time_ns",
            TIME,
            math.inf,
            "saturated? then name the value that it stands for, as reader.most: VALUE",
        ),
        ("hits.time_ns", TIME, -math.inf, ""),
    ],
)
def test_the_unit_the_sentinel_or_the_saturation_is_guessed(column, field, value, guess):
    assert KNOWN.advise(column, field, value) == guess


def test_without_expectations_only_limits_and_units_are_known():
    assert Expectations().advise("energy_gev", ENERGY, 52_800) == "is it in keV?"
    assert Expectations().advise("energy_gev", ENERGY, 9.0) == ""
    assert Expectations().advise("n", Field("n", "int32", "", 0, 5, "number"), 9000) == ""


def test_a_median_is_in_the_unit_that_makes_it_most_usual():
    known = Expectations(typical={"energy_gev": (100, 1e11)})
    assert known.guess_unit("energy_gev", "GeV", 17.8) == "is it in TeV?"
    assert known.guess_unit("energy_gev", "GeV", 1.78e13) == "is it in eV?"  # keV fits, but nobody writes it
    assert known.guess_unit("energy_gev", "GeV", 6.3) == "is it in TeV, or a logarithm?"
    assert known.guess_unit("energy_gev", "GeV", 1e40) == ""
    assert Expectations(typical={"n": (1, 2)}).guess_unit("n", "", 1000) == ""


def test_the_reason_of_an_event_has_the_guess():
    events = make_hits([1, 2])
    events.items[2, 0] = 3e9
    found = find_invalid_events(events, HITS, KNOWN)
    reason = "hits[1]: time_ns is 3000000000.0, not within -1000000 to 1000000 ns"
    assert found == {1: f"{reason}; is it in ns in the file, not in s?"}
    assert find_invalid_events(events, HITS)[1].endswith("1000000 ns")


def test_values_as_the_file_has_them():
    assert KNOWN.in_file("hits.time_ns", "ns", -998.9999e9) == -999
    assert KNOWN.in_file("energy_gev", "GeV", 1.23456789) == 1.23456789


@pytest.mark.parametrize("value", [-1, -999, -9999, 9999, 1e9, 1e10, -1e30, 2**31 - 1, -999.00002])
def test_usual_sentinels(value):
    assert is_sentinel(value)
    assert not is_sentinel(value * 0.97)


@pytest.mark.parametrize(
    "wrong",
    [
        {"weights": "x"},
        {"flags": {"hits.charge": "x"}},
        {"flags": {"charge": "time_ns"}},
        {"axes": {"run": "x"}},
    ],
)
def test_item_columns_that_are_not_there_are_named(wrong):
    assert "which is no item column" in Expectations(**wrong).problem(HITS)
    assert Expectations(weights="charge", typical={"other": (0, 1)}).problem(HITS) == ""
