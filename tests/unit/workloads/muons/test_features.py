import numpy as np
import pytest
import torch
from scipy.stats import kstest

from crpipe.workloads.muons import features
from crpipe.workloads.muons import layout as fields


@pytest.mark.parametrize("kind", ["radial", "cartesian"])
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


@pytest.mark.parametrize("kind", ["radial", "cartesian"])
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


def test_a_muon_without_energy_on_the_axis_stays_finite():
    muon = np.zeros((1, 3), np.float32)
    assert np.isfinite(features.encode(muon, "radial")).all()
    assert np.isfinite(features.encode(muon, "cartesian")).all()
