import numpy as np
import pytest

from crpipe.events.batch import Events
from crpipe.events.validity import find_invalid_events
from plain_reader import HITS, make_hits


def hits(multiplicity=(2, 0, 3)):
    events = make_hits(multiplicity)
    return Events(dict(events.columns), events.multiplicity, events.items.copy())


def test_legal_events_have_no_reasons():
    assert find_invalid_events(hits(), HITS) == {}
    assert find_invalid_events(hits(()), HITS) == {}


def test_the_limits_belong_to_the_interval():
    events = hits()
    events.columns["run"][:] = [0, 10**6, 1]
    events.items[0] = [-1e6, 0]
    assert find_invalid_events(events, HITS) == {}
    events.columns["run"][1] += 1
    assert find_invalid_events(events, HITS) == {1: "run is 1000001, not within 0 to 1000000"}


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 2e6])
@pytest.mark.parametrize("item", [0, 1, 2, 4])
def test_an_item_out_of_its_interval_blames_its_event(value, item):
    events = hits()
    events.items[item, 0] = value
    owner, place = (0, item) if item < 2 else (2, item - 2)
    found = find_invalid_events(events, HITS)
    assert found == {owner: f"hits[{place}]: time_ns is {value}, not within -1000000 to 1000000 ns"}


def test_only_the_first_reason_of_an_event_is_given():
    events = hits()
    events.columns["run"][0] = -1
    events.items[:2] = np.nan
    assert find_invalid_events(events, HITS) == {0: "run is -1, not within 0 to 1000000"}


@pytest.mark.parametrize("count", [1023, 1024, 1025, 5000])
def test_blocks_of_any_size_are_searched_to_their_end(count):
    events = hits((count,))
    for place in (0, count - 1):
        spoiled = Events(events.columns, events.multiplicity, events.items.copy())
        spoiled.items[place, 1] = -1
        assert find_invalid_events(spoiled, HITS)[0].startswith(f"hits[{place}]: charge is -1.0")
