"""Encoder and its features: every sensor counts, dead ones do not, and nothing becomes NaN."""

import numpy as np
import pytest
import torch

from crpipe.workloads.xec.layout import PHOTONS, PHOTONS_VALID, TIME, TIME_VALID
from crpipe.workloads.xec.models.features import SUMS, sensors_of
from crpipe.workloads.xec.scoring.baseline import LIGHT_CM_PER_NS, centre, point
from crpipe.workloads.xec.sensors import FACE_IDS, FACES
from xenon_models import PLACES, SMALL, build, workload
from xenon_toy import make_gammas

GAMMAS = make_gammas(5)
ITEMS = torch.from_numpy(sensors_of(GAMMAS))


@pytest.fixture(scope="module")
def encoder():
    return build()[1].encoder


def tokens(encoder, items):
    with torch.no_grad():
        return encoder(items).tokens


@pytest.mark.parametrize("patch", [1, 2, 3, 4])
def test_shapes_are_those_of_the_docstring_for_any_patch(patch):
    encoder = build(patch=patch)[1].encoder
    with torch.no_grad():
        found = encoder(ITEMS[:2])
    assert found.tokens.shape == (2, 7, 16)
    assert found.sensors.shape == (2, 4760, 4)
    assert [grid.shape[1:3] for grid in found.grids] == [image.grid(patch) for image in encoder.images]
    assert all(node.shape == (2, 73, SMALL["channels"]) for node in found.nodes)
    assert found.sums.vector.shape == (2, SUMS)


def test_grids_and_nodes_depend_on_their_own_face_alone(encoder):
    untimed = ITEMS.clone()
    untimed[..., TIME_VALID] = 0  # times are relative to the mean over all faces
    with torch.no_grad():
        before = encoder(untimed)
        for face in FACES:
            one_dead = untimed.clone()
            one_dead[:, FACE_IDS[face][len(FACE_IDS[face]) // 2], PHOTONS_VALID] = 0
            after = encoder(one_dead)
            moved = [
                not torch.equal(one, other)
                for one, other in zip(
                    (*before.grids, *before.nodes), (*after.grids, *after.nodes), strict=True
                )
            ]
            assert moved == [name == face for name in FACES]


def test_every_sensor_changes_the_tokens(encoder):
    """One slope shows all of them: no cell is forgotten."""
    items = ITEMS[:1].clone().requires_grad_()
    weights = torch.randn(7, 16, generator=torch.Generator().manual_seed(0))
    (slope,) = torch.autograd.grad((encoder(items).tokens * weights).sum(), items)
    assert torch.isfinite(slope).all()
    assert (slope[0, :, PHOTONS_VALID] != 0).all()


def test_what_a_dead_sensor_says_does_not_matter(encoder):
    dead = ITEMS.clone()
    dead[:, 100:200] = 0
    lying = dead.clone()
    lying[:, 100:200, PHOTONS] = 5000
    lying[:, 100:200, TIME] = -300
    torch.testing.assert_close(tokens(encoder, lying), tokens(encoder, dead), rtol=0, atol=0)
    assert (tokens(encoder, dead) - tokens(encoder, ITEMS)).abs().max() > 1e-4


def test_a_time_without_its_flag_does_not_matter(encoder):
    untimed = ITEMS.clone()
    untimed[..., TIME_VALID] = 0
    untimed[..., TIME] = 0
    other = untimed.clone()
    other[..., TIME] = 17
    assert torch.equal(tokens(encoder, other), tokens(encoder, untimed))


@pytest.mark.parametrize("start", [-1000.0, 64.0])
def test_a_shift_of_all_times_changes_the_start_alone(encoder, start):
    late = ITEMS.clone()
    late[..., TIME] += start * late[..., TIME_VALID]
    with torch.no_grad():
        before, after = encoder(ITEMS), encoder(late)
    np.testing.assert_allclose(after.sums.start_ns - before.sums.start_ns, start, atol=1e-3)
    torch.testing.assert_close(after.tokens, before.tokens, rtol=1e-3, atol=1e-3)


def test_sums_are_those_of_the_baseline(encoder):
    photons = np.where(ITEMS[..., PHOTONS_VALID] > 0, ITEMS[..., PHOTONS], 0).astype(float)
    with torch.no_grad():
        sums = encoder(ITEMS).sums
    u, v, w = centre(photons, PLACES)
    np.testing.assert_allclose(sums.u_cm, u, atol=1e-3)
    np.testing.assert_allclose(sums.v_cm, v, atol=1e-3)
    np.testing.assert_allclose(sums.w_cm, w, rtol=1e-4)
    np.testing.assert_allclose(sums.light, np.maximum(photons, 0).sum(axis=1), rtol=1e-5)
    by_face = [np.maximum(photons[:, FACE_IDS[face]], 0).sum(axis=1) for face in FACES]
    np.testing.assert_allclose(sums.vector[:, -6:].T * sums.light, by_face, rtol=1e-4)
    assert sums.vector.abs().max() < 5


def test_the_start_is_the_mean_time_weighted_by_photons_less_the_way_of_the_light(encoder):
    with torch.no_grad():
        sums = encoder(ITEMS).sums
    for event, items in enumerate(ITEMS.double().numpy()):
        middle = point(*(np.array(float(each[event])) for each in (sums.u_cm, sums.v_cm, sums.w_cm)))
        away = np.linalg.norm(PLACES[:, :3] - middle, axis=1)
        way = np.maximum(away, 1) / LIGHT_CM_PER_NS
        timed = items[:, TIME_VALID] > 0
        wanted = np.average((items[:, TIME] - way)[timed], weights=items[timed, PHOTONS])
        assert sums.start_ns[event].item() == pytest.approx(wanted, abs=1e-3)
        np.testing.assert_allclose(sums.expected_ns[event], wanted + way, atol=1e-3)


def test_sums_are_exact_in_bfloat16(encoder):
    """The position and the energy of a gamma have more digits than that; tokens are near."""
    with torch.no_grad():
        exact = encoder(ITEMS)
        with torch.autocast("cpu", torch.bfloat16):
            rough = encoder(ITEMS)
    for one, other in zip(exact.sums, rough.sums, strict=True):
        assert other.dtype == torch.float32
        torch.testing.assert_close(other, one, rtol=1e-6, atol=1e-6)
    assert torch.equal(exact.sensors, rough.sensors)
    assert (exact.tokens - rough.tokens.float()).abs().max() < 0.2


@pytest.mark.parametrize("curve", ["log1p", "sqrt", "linear"])
@pytest.mark.parametrize("value", [0.0, -3.0, 9e9])
def test_events_of_any_light_give_finite_tokens_and_slopes(curve, value):
    """All sensors dead; all valid with little light, or with more than there is."""
    model = build(codec={"photons": curve})[1]
    items = torch.zeros(2, 4760, 4)
    items[1, :, PHOTONS], items[1, :, PHOTONS_VALID] = value, 1
    items[1, :, TIME_VALID] = float(value > 0)
    items.requires_grad_()
    found = model.encoder(items)
    assert torch.isfinite(found.tokens).all()
    found.tokens.square().sum().backward()
    assert all(
        torch.isfinite(weight.grad).all() for weight in model.encoder.parameters() if weight.grad is not None
    )
    assert torch.isfinite(items.grad).all()


def test_the_regressor_and_the_masked_models_share_the_encoder():
    shapes = [
        {
            name: value.shape
            for name, value in workload(kind).model().state_dict().items()
            if name.startswith("encoder.")
        }
        for kind in ("Regressor", "MaskedAutoencoder", "Inpainter")
    ]
    assert shapes[0] == shapes[1] == shapes[2]
    assert len(shapes[0]) > 40
