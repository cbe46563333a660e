"""A predicted direction depends on the pulses of its own event alone, in whatever order they come."""

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from crpipe.events.batch import concatenate
from crpipe.workloads.direction.layout import unit_vectors
from directions import WORKLOADS, build, make_events, predict

MODELS = {
    (name, choice): build(name, loss=choice, pulses_per_dom=2, max_doms=12, rotations=2)
    for name in WORKLOADS
    for choice in ("von_mises_fisher", "angle")
}
multiplicities = st.lists(st.sampled_from([0, 1, 2, 5, 11, 30, 90]), min_size=1, max_size=12)
models = st.sampled_from(sorted(MODELS))


def found_by(key, events):
    """Predict unit vectors times kappa, and the numbers of sensors."""
    found = predict(*MODELS[key], events)
    lengths = found.get("kappa", np.ones(len(events)))
    return lengths[:, None] * unit_vectors(found["azimuth"], found["zenith"]), found["doms"]


def assert_same(found, wanted):
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(found[1], wanted[1])


@settings(deadline=None, max_examples=60)
@given(models, multiplicities, st.sampled_from([0, 1, 60, 4000]), st.integers(0, 9), st.data())
def test_other_events_change_no_prediction(key, multiplicity, more, seed, data):
    """In any order, cut into any blocks, with one more event of any size."""
    events = concatenate([make_events(multiplicity, seed), make_events([more], seed=20)])
    order = data.draw(st.permutations(range(len(events))))
    whole = found_by(key, events.take(np.array(order)))
    ends = sorted({0, len(multiplicity), *data.draw(st.lists(st.integers(0, len(multiplicity)), max_size=4))})
    parts = [found_by(key, events.part(start, end)) for start, end in pairwise(ends)]
    place = np.argsort(order)[: len(multiplicity)]
    wanted = [np.concatenate(side) for side in zip(*parts, strict=True)]
    assert_same([side[place] for side in whole], wanted)


@settings(deadline=None, max_examples=40)
@given(models, multiplicities, st.randoms(use_true_random=False))
def test_pulses_may_come_in_any_order(key, multiplicity, random):
    events = make_events(multiplicity)
    events.items[:, 1] = 5000 + np.arange(len(events.items))  # no two at one time
    mixed = events.items.copy()
    for start, end in pairwise(events.offsets()):
        order = list(range(start, end))
        random.shuffle(order)
        mixed[start:end] = events.items[order]
    assert_same(
        found_by(key, type(events)(events.columns, events.multiplicity, mixed)), found_by(key, events)
    )


def test_models_tell_directions_apart():
    """Or else the properties above would be those of a constant."""
    for key in MODELS:
        vectors, _ = found_by(key, make_events([5, 30, 90, 11]))
        apart = np.linalg.norm(vectors[:, None] - vectors[None], axis=2)[np.triu_indices(4, 1)]
        assert apart.min() > 1e-3
