"""Sensors by themselves, then all of an event: orders, few pulses, and 10,000 on one sensor."""

import numpy as np
import pytest
import torch

from crpipe.events.batch import Events, concatenate
from crpipe.workloads.direction.layout import opening_angle, unit_vectors
from crpipe.workloads.direction.models.grouping import group_by_sensor, padded_arrays, pulse_arrays
from directions import SENSORS, build, changed, make_events, make_places, predict

NAME = "HierarchicalTransformer"


def vectors(workload, model, events):
    found = predict(workload, model, events)
    return unit_vectors(found["azimuth"], found["zenith"])


def crowded(count, sensors=1, seed=0):
    """An event with so many pulses on a few sensors."""
    return make_events([count], seed=seed, sensors=sensors)


@pytest.mark.parametrize("multiplicity", [[1], [0], [1, 0, 1], [1, 3, 90, 400]])
def test_an_event_gives_the_same_alone_and_with_any_others(multiplicity):
    workload, model = build(NAME, pulses_per_dom=5)
    events = concatenate([make_events(multiplicity), crowded(300, 3, 1)])
    whole = vectors(workload, model, events)
    alone = [vectors(workload, model, events.part(each, each + 1)) for each in range(len(events))]
    assert np.isfinite(whole).all()
    assert opening_angle(whole, np.concatenate(alone)).max() <= 1e-5


def test_the_order_of_pulses_in_a_file_and_the_numbers_of_sensors_do_not_matter():
    """Pulses at different times are sorted by time; sensors count by where they are."""
    events, rng = crowded(150, 40), np.random.default_rng(1)
    events = changed(events, slice(None), time=6000 + 7 * np.arange(150))
    places, workload_model = make_places(), build(NAME, pulses_per_dom=6)
    known = vectors(*workload_model, events)
    mixed = Events(events.columns, events.multiplicity, events.items[rng.permutation(150)])
    assert np.array_equal(vectors(*workload_model, mixed), known)
    numbers = rng.permutation(SENSORS)
    renamed = changed(events, slice(None), sensor=numbers[events.items[:, 0].astype(int)])
    moved = np.empty_like(places)
    moved[numbers] = places
    found = vectors(*build(NAME, places=moved, pulses_per_dom=6), renamed)
    assert opening_angle(found, known).max() <= 1e-5


def test_every_pulse_of_a_sensor_counts_up_to_the_limit():
    """Also those that the summary of an event does not show."""
    event = crowded(60)
    workload, model = build(NAME, pulses_per_dom=40)
    known = predict(workload, model, event)
    for pulse, seen in ((0, True), (20, True), (39, True), (40, False), (59, False)):
        found = predict(workload, model, changed(event, pulse, charge=9))
        assert np.array_equal(found["azimuth"], known["azimuth"]) != seen, pulse


def test_a_pulse_changes_what_encodes_its_own_sensor_alone():
    workload, model = build(NAME, pulses_per_dom=8)
    encoded = []
    for events in (event := make_events([80], sensors=12), changed(event, 7, charge=9)):
        model.encoder.register_forward_hook(lambda *given: encoded.append(given[2]))
        with torch.no_grad():
            batch = workload.collate(events, np.arange(1), ())
            model(batch, batch["turn"])
        model.encoder._forward_hooks.clear()
    rows = (encoded[0] != encoded[1]).any(dim=1).nonzero()[:, 0]
    assert batch["sensor"][rows].tolist() == [int(event.items[7, 0])]


@pytest.mark.parametrize("most", [128, 1024])
def test_a_sensor_of_10000_pulses_is_cut_and_takes_as_much_as_the_limit(most):
    workload, model = build(NAME, pulses_per_dom=most)
    events = concatenate([crowded(10_000), make_events([1, 30])])
    batch = workload.collate(events, np.arange(3), ())
    assert batch["cut"][1].item() == pytest.approx((10_000 - most) / 10_031)
    assert workload.size(events).tolist() == [10_000, 1, 30]
    lengths = [each.shape for name, each in batch.items() if name.startswith("alike_")]
    assert lengths[-1] == (1, most)
    assert sum(sensors * pulses for sensors, pulses in lengths) < most + 60
    assert np.isfinite(vectors(workload, model, events)).all()


@pytest.mark.parametrize("seed", range(5))
def test_each_pulse_is_in_one_group_once_and_little_is_padded(seed):
    rng = np.random.default_rng(seed)
    sensors = 40 if seed else SENSORS
    events = make_events(rng.integers(0, 300, 60), seed=seed, sensors=sensors)
    doms = group_by_sensor(events, 12, 64)
    rows = len(padded_arrays(doms, 12, 64)["sensor"])
    arrays = pulse_arrays(doms.slot, rows, 12)
    groups = [each for name, each in arrays.items() if name.startswith("alike_")]
    assert [each.shape[1] for each in groups] == [1, 2, 3, 4, 6, 8, 12]
    flat, kept = [row for each in groups for row in each], arrays["pulses_kept"]
    own = [flat[place][: kept[place]] for place in arrays["pulses_place"]]
    filled = np.bincount(doms.slot // 12, minlength=rows)
    listed = np.concatenate([each for each, many in zip(own, filled, strict=True) if many])
    assert sorted(listed) == list(range(len(doms.slot)))
    for row, each in enumerate(own):
        assert not filled[row] or (doms.slot[each] == 12 * row + np.arange(filled[row])).all()
    assert sum(each.size for each in groups) < 1.35 * (len(doms.slot) + (filled == 0).sum())


def test_batches_of_a_kind_have_the_same_groups_of_few_shapes():
    workload, _ = build(NAME, pulses_per_dom=12)
    batches = []
    for seed in range(20):
        events = make_events(np.random.default_rng(seed).integers(1, 90, 250), seed=seed, sensors=60)
        batches.append(workload.collate(events, np.arange(250), (1,)))
    assert len({tuple(batch) for batch in batches}) == 1
    for name in (each for each in batches[0] if each.startswith(("alike_", "pulses_"))):
        assert len({batch[name].shape for batch in batches}) <= 10
