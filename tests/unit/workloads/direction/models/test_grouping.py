"""Pulses grouped by sensor as loops do it; padding brings batches to few shapes and counts for nothing."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from crpipe.events.batch import Events
from crpipe.loading.microbatch import rounded
from crpipe.workloads.direction.models import grouping
from crpipe.workloads.direction.models.grouping import group_by_sensor, padded_groups, padded_rows
from crpipe.workloads.direction.models.model import groups_of, joined
from directions import WORKLOADS, build, make_events

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


MOST_ROWS = 1 << 15
CASES = [(name, loss) for name in sorted(WORKLOADS) for loss in ("von_mises_fisher", "angle")]


def counts_of(numbers):
    return np.sort(np.array(numbers, np.int64))[::-1]


def random_events(seed, events=105):
    """Events of few and of many pulses, as a training meets them."""
    return make_events(np.random.default_rng(seed).lognormal(3.3, 0.9, events).astype(int), seed)


def exact(monkeypatch):
    """Take the shapes that the data have: a group for each number of sensors, and no padding."""

    def groups(count, _):
        first = np.flatnonzero(np.diff(count, prepend=-1))
        sizes = np.diff(first, append=len(count))
        return [grouping.PaddedGroup(f, n, int(count[f])) for f, n in zip(first, sizes, strict=True)]

    monkeypatch.setattr(grouping, "padded_groups", groups)
    monkeypatch.setattr(grouping, "rounded", lambda number, *_: number)


@settings(deadline=None)
@given(st.lists(st.integers(1, 6000), max_size=80), st.integers(1, 6000))
def test_groups_hold_all_events_in_order(numbers, most):
    counts = np.minimum(counts_of(numbers), most)
    groups = padded_groups(counts, most)
    begins = np.cumsum([0, *(events for _, events, _ in groups)])
    assert [first for first, _, _ in groups] == begins[:-1].tolist()
    assert begins[-1] >= len(counts) > (groups[-1].first if groups else -1)
    for first, events, length in groups:
        assert length <= most
        assert counts[first] <= length <= max(counts[first] * 9 / 8, 1)
        assert length in (rounded(length, 4), most)
        assert events * length <= MOST_ROWS or events <= 4


def test_the_sizes_of_groups_depend_on_the_number_of_events_alone():
    rng = np.random.default_rng(1)
    for events in (1, 2, 64, 250, 1024, 5000):
        made = [padded_groups(counts_of(rng.integers(1, 257, events)), 256) for _ in range(5)]
        assert len({tuple(size for _, size, _ in groups) for groups in made}) == 1


def test_little_of_a_batch_is_padding():
    """Half of a step of lengths, and about as much for what the lengths of a group differ by."""
    counts = counts_of(np.random.default_rng(1).integers(1, 257, 1024))
    padded = sum(events * length for _, events, length in padded_groups(counts, 256))
    assert counts.sum() > 0.87 * padded


def test_rows_are_those_of_the_events_and_then_any():
    counts = counts_of([9, 9, 8, 2, 2])
    groups = [grouping.PaddedGroup(0, 3, 10), grouping.PaddedGroup(3, 3, 2)]
    rows, last = padded_rows(groups, counts, 30)
    assert rows.tolist() == [[*range(10)], [*range(9, 19)], [*range(18, 28)]]
    assert last.tolist() == [[26, 27], [28, 29], [30, 30]]  # 30 is of no event


def gradients(workload, model, batch):
    value, shown = workload.loss(model, batch, torch.Generator())
    shown = {name: number for name, number in shown.items() if name != "padding"}
    found = torch.autograd.grad(value, list(model.parameters()))
    return [value.detach(), *shown.values(), *found]


@pytest.mark.parametrize("events", [1, 33, 105])
@pytest.mark.parametrize("case", CASES)
def test_a_padded_batch_gives_the_losses_and_gradients_of_the_batch(case, events, monkeypatch):
    workload, model = build(case[0], loss=case[1], rotate=True)
    drawn, index = random_events(3, events), np.random.default_rng(1).permutation(events)
    padded = workload.collate(drawn, index, (1,))
    with monkeypatch.context() as patch:
        exact(patch)
        plain = workload.collate(drawn, index, (1,))
    assert padded["cut"][0] > 0
    assert plain["counts"].sum() == padded["counts"].sum() == events
    assert (len(padded["counts"]) > events) == (events in {33, 105})
    pairs = zip(*(gradients(workload, model, batch) for batch in (padded, plain)), strict=True)
    for mine, known in pairs:
        torch.testing.assert_close(mine, known, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("most", [1, 20_000, 1 << 30])
@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_groups_that_are_joined_give_the_vectors_of_each_by_itself(name, most, monkeypatch):
    workload, model = build(name)
    batch = workload.collate(random_events(3), np.arange(105), ())
    sizes = [len(rows) for rows, _ in groups_of(batch)]
    monkeypatch.setattr("crpipe.workloads.direction.models.model._PAIRS", most)
    fewer = [len(rows) for rows, _ in joined(groups_of(batch))]
    assert sum(fewer) == sum(sizes)
    assert len(fewer) == len(sizes) if most == 1 else len(fewer) < len(sizes)
    assert (len(fewer) == 1) == (most > 20_000)
    with torch.no_grad():
        found = model(batch, batch["turn"])
        monkeypatch.setattr("crpipe.workloads.direction.models.model.joined", lambda groups: groups)
        torch.testing.assert_close(found, model(batch, batch["turn"]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_what_padding_holds_does_not_matter(case):
    workload, model = build(case[0], loss=case[1])
    batch = workload.collate(random_events(3), np.arange(105), (1,))
    other = {name: tensor.clone() for name, tensor in batch.items()}
    false, rows = (
        batch["counts"] == 0,
        slice(int(batch["event"].eq(len(batch["counts"]) - 1).nonzero()[0]), None),
    )
    assert false.any()
    other["start"][false], other["turn"][false] = 4000.0, 1.0
    other["truth"][false], other["hit"][false] = torch.tensor([0.0, 0.6, 0.8]), 9
    other["sensor"][rows] = 7
    other["pulse"][other["slot"] == other["slot"][-1]] = torch.tensor([3.0, 500.0, 2.0, 0.0])
    assert not torch.equal(other["pulse"], batch["pulse"])
    pairs = zip(*(gradients(workload, model, each) for each in (other, batch)), strict=True)
    for mine, known in pairs:
        assert torch.equal(mine, known)


def test_batches_of_a_kind_have_few_shapes():
    workload, _ = build()
    batches = [workload.collate(random_events(seed, 250), np.arange(250), (1,)) for seed in range(40)]
    names = {tuple(batch) for batch in batches}
    assert len(names) == 1  # as many groups in all of them
    groups = {tensor.shape for batch in batches for name, tensor in batch.items() if name.startswith("rows_")}
    assert len(groups) < 50  # of 560
    for name in batches[0]:
        assert len({batch[name].shape for batch in batches}) <= 8


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), [("FlatTransformer", {"layers": 1}), ("DeepSet", {})])
def test_one_graph_with_variables_serves_batches_of_a_kind(name, options, monkeypatch):
    monkeypatch.setattr(grouping, "_ITERATIONS", 1)  # each is traced once for every group
    workload, model = build(name, **options)
    graphs, events = [], 12  # of eight groups, the last one with padding

    def keep(graph, _):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    whole = torch.compile(workload.loss, dynamic=True, backend=keep, fullgraph=True)
    with torch.no_grad():
        for seed in range(3):
            batch = workload.collate(random_events(seed, events), np.arange(events), (1,))
            found, wanted = (each(model, batch, torch.Generator()) for each in (whole, workload.loss))
            torch.testing.assert_close(found, wanted)
    torch._dynamo.reset()
    assert len(graphs) <= 2
