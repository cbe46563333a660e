import numpy as np
import torch

from crpipe.workloads.muons import batches as module
from crpipe.workloads.muons import features


def collated(events, index=None, most=4, seed=(1, 2)):
    index = np.arange(len(events)) if index is None else index
    return module.collate(events, index, most=most, kind="radial", seed=seed)


def test_every_event_brings_its_own_muons_and_conditions(bundles):
    events = bundles([3, 0, 1, 9, 0, 2])
    index = np.array([5, 1, 3, 0])
    batch = collated(events, index, most=0)
    known = features.encode(events.items, "radial")
    offsets = events.offsets()
    left = index.tolist()
    conditions = features.conditions(events.columns)
    for row, condition in enumerate(batch["conditions"].numpy()):
        number = next(n for n in left if np.array_equal(conditions[n], condition))
        left.remove(number)
        mine = batch["muons"][batch["event"] == row].numpy()
        assert batch["multiplicity"][row] == events.multiplicity[number]
        np.testing.assert_array_equal(mine, known[offsets[number] : offsets[number + 1]])
    assert not left


def test_large_events_come_as_a_window_with_their_full_multiplicity(bundles):
    events = bundles([100, 3])
    seen = set()
    for seed in range(60):
        batch = collated(events, seed=(seed,))
        large = int(batch["multiplicity"].argmax())
        assert batch["multiplicity"][large] == 100
        assert batch["kept"][large] == 4
        mine = batch["muons"][batch["event"] == large]
        assert len(mine) == 4
        seen.update(mine[:, 0].tolist())
    assert len(seen) > 80


def test_equal_seeds_give_equal_batches(bundles):
    events = bundles(np.arange(30))
    one, same, other = (collated(events, seed=seed) for seed in [(1, 2), (1, 2), (1, 3)])
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["conditions"], other["conditions"])


def test_a_batch_without_muons_is_a_batch(bundles):
    batch = collated(bundles([0, 0, 0]))
    assert len(batch["multiplicity"]) == 3
    assert batch["muons"].shape == (0, 2)
    assert len(batch["kept"]) == 0


def test_generation_fills_each_event_in_pieces(bundles, monkeypatch):
    monkeypatch.setattr(module, "_EVENTS_AT_ONCE", 3)
    monkeypatch.setitem(module._PIECE, "cpu", 5)
    events = bundles(np.zeros(8, int))
    wanted = np.array([2, 0, 13, 1, 0, 6, 7, 0])
    calls = []

    def make(context):
        def muons(event):
            calls.append(len(event))
            return context[event, -1:].repeat(1, 3)

        return muons

    made = module.generate(events, wanted, make, torch.Generator())
    expected = features.log_multiplicity(torch.from_numpy(np.repeat(wanted, wanted)))
    np.testing.assert_array_equal(made.items, expected.expand(-1, 3).numpy())
    np.testing.assert_array_equal(made.multiplicity, wanted)
    assert max(calls) == 5
    assert made.columns is events.columns
