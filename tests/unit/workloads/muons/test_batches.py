"""Events as batches and back: each with its own muons and conditions, and features that are legal muons."""

import numpy as np
import pytest
import torch
from scipy.stats import kstest

from crpipe.workloads.muons import batches as module
from crpipe.workloads.muons import features
from crpipe.workloads.muons import layout as fields


def collated(events, index=None, most=4, seed=(1, 2)):
    index = np.arange(len(events)) if index is None else index
    return module.collate(events, index, most=most, kind="radial", seed=seed)


def test_a_window_begins_with_the_leading_muons_of_its_event(bundles):
    events, seen = bundles([100, 3]), set()
    known = features.encode(events.items, "polar")[:100]
    leading = np.sort(known[:, 0])[-2:]
    for seed in range(400):
        batch = module.collate(events, np.arange(2), most=6, kind="polar", seed=(seed,), leading=2)
        mine = batch["muons"][batch["event"] == int(batch["multiplicity"].argmax())].numpy()
        assert len({*mine[:, 0].tolist()}) == len(mine) == 6
        np.testing.assert_array_equal(mine[:2, 0], leading)
        seen.update(mine[2:, 0].tolist())
        assert batch["lead"].sum() == 2
        assert batch["below"].sum() == batch["below"][batch["muons"][:, 0] == leading[0]] == 94
    assert seen == {*known[:, 0].tolist()} - {*leading.tolist()}


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
    for seed in range(400):
        batch = collated(events, seed=(seed,))
        large = int(batch["multiplicity"].argmax())
        assert batch["multiplicity"][large] == 100
        assert batch["kept"][large] == 4
        mine = batch["muons"][batch["event"] == large]
        assert len(mine) == 4
        seen.update(mine[:, 0].tolist())
    assert len(seen) == 100


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
    with pytest.raises(ValueError, match="2 values for 8 events"):
        module.generate(events, wanted[:2], make, torch.Generator())


@pytest.mark.parametrize("kind", ["radial", "polar", "cartesian"])
def test_decode_undoes_encode(bundles, kind):
    muons = bundles([500]).items
    muons[:, 0] = np.maximum(muons[:, 0], 0.11)
    encoded = features.encode(muons, kind)
    decoded = features.decode(torch.from_numpy(encoded), kind, torch.Generator()).numpy()
    assert encoded.shape == (500, features.width(kind))
    assert decoded.dtype == np.float32
    np.testing.assert_allclose(decoded[:, 0], muons[:, 0], rtol=1e-4)
    radius = np.hypot(decoded[:, 1], decoded[:, 2])
    np.testing.assert_allclose(radius, np.hypot(muons[:, 1], muons[:, 2]), rtol=1e-3, atol=1e-4)
    if kind == "cartesian":
        np.testing.assert_allclose(decoded[:, 1:], muons[:, 1:], rtol=1e-5)


def test_radial_bundles_are_isotropic():
    same = torch.zeros(4000, 2)
    made = features.decode(same, "radial", torch.Generator().manual_seed(1)).numpy()
    azimuth = np.arctan2(made[:, 2], made[:, 1])
    assert kstest(azimuth, "uniform", (-np.pi, 2 * np.pi)).pvalue > 1e-3


@pytest.mark.parametrize("kind", ["radial", "polar", "cartesian"])
@pytest.mark.parametrize("value", [-1e9, 1e9])
def test_whatever_a_network_puts_out_is_a_legal_muon(kind, value):
    wild = torch.full((3, features.width(kind)), value)
    made = features.decode(wild, kind, torch.Generator()).numpy()
    for column, field in zip(made.T, fields.MUON, strict=True):
        assert np.isfinite(column).all()
        assert (column >= field.low).all()
        assert (column <= field.high).all()
    assert (made[:, 0] > 0.99 * features.MUON_MASS_GEV).all()


def test_conditions_are_those_of_the_earlier_system_but_for_scale(bundles):
    columns = bundles([0] * 50).columns
    made = features.conditions(columns)
    known = [
        np.log10(columns["energy_gev"] / 1e6),
        np.cos(columns["zenith_rad"]),
        np.log10(columns["mass_number"]),
        columns["depth_m"] / 1000,
    ]
    assert made.dtype == np.float32
    for column, expected in zip(made.T, known, strict=True):
        assert np.corrcoef(column, expected)[0, 1] == pytest.approx(1.0, abs=1e-5)
    assert np.abs(made).max() < 4
    primaries = np.stack([columns[field.name] for field in fields.PRIMARY], axis=1)
    exported = features.condition_tensor(torch.from_numpy(primaries))
    np.testing.assert_allclose(exported, made, rtol=1e-4, atol=1e-5)


def test_a_muon_without_energy_on_the_axis_stays_finite():
    muon = np.zeros((1, 3), np.float32)
    assert np.isfinite(features.encode(muon, "radial")).all()
    assert np.isfinite(features.encode(muon, "polar")).all()
    assert np.isfinite(features.encode(muon, "cartesian")).all()
