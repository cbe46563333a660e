"""Pulses grouped by sensor: the same as with loops and dictionaries, whatever the events are."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crpipe.events.batch import Events
from crpipe.workloads.direction.models.grouping import group_by_sensor
from directions import make_events

pulses = st.tuples(
    st.sampled_from([0, 1, 2, 3, 7, 65534, 65535]),
    st.one_of(st.integers(0, 4), st.integers(0, 2**24)),
    st.booleans(),
)
ragged = st.lists(st.lists(pulses, max_size=14), max_size=6)


def events_of(listed):
    """Events of (sensor, time, auxiliary); the charge names the pulse."""
    flat = [pulse for event in listed for pulse in event]
    items = np.array([(s, t, number, aux) for number, (s, t, aux) in enumerate(flat)], np.float32)
    return Events({}, np.array([len(event) for event in listed], np.uint32), items.reshape(-1, 4))


def naive(items, most_pulses, most_doms):
    """One event: reference time, sensors hit, and {sensor: (pulses, first pulses)} of the first sensors."""
    items = sorted(items.tolist(), key=lambda pulse: pulse[1])
    light = [pulse for pulse in items if not pulse[3]]
    start = (light or items or [[0, 0.0]])[0][1]
    doms = {}
    for pulse in items:
        doms.setdefault(int(pulse[0]), []).append(pulse)
    kept = dict(list(doms.items())[:most_doms])
    return start, len(doms), {name: (len(own), own[:most_pulses]) for name, own in kept.items()}


def regrouped(found, most_pulses):
    """What the arrays say, in the order of the events that were given: the same as ``naive`` gives."""
    rows = [{} for _ in found.many]
    for pulse, slot in zip(found.pulse.tolist(), found.slot.tolist(), strict=True):
        assert slot % most_pulses not in rows[slot // most_pulses]
        rows[slot // most_pulses][slot % most_pulses] = pulse
    events, begin = {}, 0
    for place, count, start, hit in zip(found.order, found.count, found.start, found.hit, strict=True):
        doms = {}
        for row in range(begin, begin + count):
            assert sorted(rows[row]) == list(range(len(rows[row])))
            if found.many[row]:
                assert found.sensor[row] not in doms
                doms[int(found.sensor[row])] = (found.many[row], [rows[row][k] for k in sorted(rows[row])])
            else:
                assert (count, rows[row]) == (1, {})
        events[int(place)] = (start, hit, doms)
        begin += count
    assert begin == len(found.sensor) == len(found.many)
    return [events[place] for place in range(len(events))]


def check(events, most_pulses, most_doms):
    before = events.items.copy()
    found = group_by_sensor(events, most_pulses, most_doms)
    assert np.array_equal(events.items, before)
    ends = events.offsets()
    expected = [
        naive(events.items[ends[i] : ends[i + 1]], most_pulses, most_doms) for i in range(len(events))
    ]
    assert regrouped(found, most_pulses) == expected
    assert sorted(found.order.tolist()) == list(range(len(events)))
    assert (np.diff(found.count) <= 0).all()
    seen = sum(len(first) for *_, doms in expected for _, first in doms.values())
    kept, hit = (sum(values) for values in zip((0, 0), *((len(d), h) for _, h, d in expected), strict=True))
    assert found.pulses_cut == pytest.approx((len(before) - seen) / max(len(before), 1), abs=1e-12)
    assert found.doms_cut == pytest.approx((hit - kept) / max(hit, 1), abs=1e-12)
    return found


@settings(deadline=None, max_examples=300)
@given(ragged, st.integers(1, 5), st.integers(1, 5))
def test_any_pulses_are_grouped_as_loops_do_it(listed, most_pulses, most_doms):
    check(events_of(listed), most_pulses, most_doms)


@pytest.mark.parametrize(("most_pulses", "most_doms"), [(16, 256), (2, 40), (1, 1)])
def test_large_events_are_grouped_as_loops_do_it(most_pulses, most_doms):
    multiplicity = np.random.default_rng(1).integers(0, 500, 60)
    check(make_events([*multiplicity, 3000]), most_pulses, most_doms)
