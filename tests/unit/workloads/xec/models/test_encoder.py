"""The encoder: faces as images, blocks, and the features in front of them; no sensor is forgotten."""

import numpy as np
import pytest
import torch

from crpipe.workloads.xec.layout import PHOTONS, PHOTONS_VALID, SENSORS, TIME, TIME_VALID
from crpipe.workloads.xec.models.encoder import (
    NOTHING,
    RECTANGLES,
    GridBlock,
    HexBlock,
    ResponseNorm,
    TokenBlock,
    cells_of_sensors,
    hex_neighbours,
    images,
    pooling,
)
from crpipe.workloads.xec.models.features import SUMS, sensors_of
from crpipe.workloads.xec.scoring.baseline import LIGHT_CM_PER_NS, centre, point
from crpipe.workloads.xec.sensors import BOTTOM, FACE_IDS, FACES, HEXES, TOP
from xenon_models import PLACES, SMALL, build
from xenon_toy import make_gammas

MULTIPLES = (1, 4, 16)


def real(image):
    """Cut the margin off: rows and columns with a sensor."""
    there = image.cells != NOTHING
    return image.cells[there.any(axis=1)][:, there.any(axis=0)]


def apart(first, second):
    return np.linalg.norm(PLACES[first, :3] - PLACES[second, :3], axis=-1)


@pytest.mark.parametrize("multiple", MULTIPLES)
def test_every_sensor_is_on_one_face_and_has_a_cell(multiple):
    faces = images(PLACES, multiple)
    assert [face.name for face in faces] == list(RECTANGLES)
    seen = np.zeros(SENSORS, int)
    for face in faces:
        ids = np.setdiff1d(face.cells, [NOTHING])
        assert ids.tolist() == np.sort(FACE_IDS[face.name]).tolist()
        seen[ids] += 1
    for face in HEXES:
        seen[face.ids] += 1
    assert (seen == 1).all()
    assert sorted(np.concatenate(list(FACE_IDS.values())).tolist()) == list(range(SENSORS))
    assert set(FACE_IDS) == set(FACES)


@pytest.mark.parametrize("multiple", MULTIPLES)
def test_margins_make_both_sides_multiples_and_hold_nothing(multiple):
    shapes = {"inner": (93, 44), "outer": (48, 18), "us": (24, 6), "ds": (24, 6)}
    for face in images(PLACES, multiple):
        rows, columns = shapes[face.name]
        assert all(length % multiple == 0 for length in face.cells.shape)
        assert real(face).shape == (rows, columns)
        assert (face.cells[:rows, :columns] != NOTHING).all()
        assert (face.cells != NOTHING).sum() == rows * columns


@pytest.mark.parametrize("multiple", MULTIPLES)
def test_the_cell_of_a_sensor_holds_that_sensor(multiple):
    faces = images(PLACES, multiple)
    cells = np.concatenate([*(face.cells.ravel() for face in faces), TOP.ids, BOTTOM.ids])
    found = cells_of_sensors(faces)
    assert found.shape == (SENSORS,)
    assert (cells[found] == np.arange(SENSORS)).all()


@pytest.mark.parametrize(("name", "pitch"), [("inner", 1.53), ("outer", 10.355), ("us", 12.5), ("ds", 12.5)])
def test_cells_beside_each_other_are_near(name, pitch):
    """Of the outer face two cells may have one sensor, so cells may be a pitch apart and no more."""
    (image,) = [face for face in images(PLACES, 8) if face.name == name]
    cells = real(image)
    steps = np.concatenate([apart(cells[1:], cells[:-1]).ravel(), apart(cells[:, 1:], cells[:, :-1]).ravel()])
    assert steps.max() <= 1.05 * pitch
    if name != "outer":
        assert steps.min() > 0


def test_cells_of_the_outer_face_are_where_they_say_also_when_measured_places_differ():
    """The public tables of places differ by up to 1 cm."""
    cells = images(PLACES, 1)[1].cells
    height = PLACES[cells, 1].mean(axis=1)
    assert (np.diff(height) <= 0).all()
    assert (np.diff(PLACES[cells, 2].mean(axis=0)) >= 0).all()
    rng = np.random.default_rng(0)
    for _ in range(20):
        moved = PLACES.copy()
        moved[:, :3] += rng.uniform(-0.6, 0.6, (SENSORS, 3))
        assert len(np.unique(images(moved, 1)[1].cells)) == len(FACE_IDS["outer"])


@pytest.mark.parametrize("patch", [1, 2, 4])
def test_patches_are_squares_of_neighbours_row_after_row(patch):
    for image in images(PLACES, 2 * patch):
        cut = image.patches(patch)
        rows, columns = image.grid(patch)
        assert cut.shape == (rows * columns, patch * patch)
        for at in (0, columns - 1, rows * columns // 2, rows * columns - 1):
            row, column = patch * (at // columns), patch * (at % columns)
            square = image.cells[row : row + patch, column : column + patch]
            assert cut[at].tolist() == square.ravel().tolist()


@pytest.fixture(scope="module")
def table():
    return hex_neighbours(PLACES)


def test_each_direction_has_its_way_back(table):
    assert table.shape == (73, 6)
    assert table.min() >= 0
    assert table.max() <= 73
    for sensor, direction in np.argwhere(table < 73):
        assert table[table[sensor, direction], (direction + 3) % 6] == sensor


@pytest.mark.parametrize("face", HEXES, ids=lambda face: face.name)
def test_neighbours_are_those_that_are_near_on_top_and_bottom(table, face):
    """Pitch 6.12 cm along a row, 7.56 cm between rows; the next nearest sensor is 11.5 cm away."""
    places = PLACES[face.ids, :3]
    distance = np.linalg.norm(places[:, None] - places, axis=2)
    for sensor, near in enumerate(table):
        wanted = np.flatnonzero((distance[sensor] < 9) & (distance[sensor] > 0))
        assert sorted(near[near < 73]) == wanted.tolist()


@pytest.mark.parametrize("face", HEXES, ids=lambda face: face.name)
def test_a_direction_is_the_same_everywhere(table, face):
    """A neighbour by direction lies where that direction points to; top and bottom share the table."""
    places = PLACES[face.ids]
    flat = np.stack([np.hypot(places[:, 0], places[:, 1]), places[:, 2]], axis=1)
    for direction in range(6):
        has = np.flatnonzero(table[:, direction] < 73)
        step = flat[table[has, direction]] - flat[has]
        angle = np.degrees(np.arctan2(step[:, 0], step[:, 1])) - 60 * direction
        assert np.abs((angle + 180) % 360 - 180).max() < 10


@pytest.mark.parametrize(("rows", "columns"), [(12, 6), (6, 3), (3, 1), (4, 4), (1, 1)])
def test_pooling_averages(rows, columns):
    weights = pooling(rows, columns, 4)
    assert weights.shape == (16, rows * columns)
    np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=1e-6)
    assert (weights >= 0).all()
    assert (weights.sum(axis=0) > 0).all()  # every part of the grid counts
    down = (weights @ np.repeat(np.arange(rows), columns)).reshape(4, 4)
    assert (np.diff(down, axis=0) >= 0).all()
    across = (weights @ np.tile(np.arange(columns), rows)).reshape(4, 4)
    assert (np.diff(across, axis=1) >= 0).all()


def test_parts_of_a_grid_that_they_divide_do_not_overlap():
    assert ((pooling(8, 12, 4) > 0).sum(axis=0) == 1).all()


TABLE = torch.from_numpy(hex_neighbours(PLACES))


def full(module):
    """Return all weights values: at first many are zero."""
    torch.manual_seed(2)
    with torch.no_grad():
        for weight in module.parameters():
            weight.copy_(0.5 * torch.randn(weight.shape))
    return module.eval()


def test_response_norm_by_hand():
    norm = ResponseNorm(2)
    x = torch.tensor([[[3.0, 1.0], [4.0, 0.0]]])  # norms over the places 5 and 1: shares 5/3 and 1/3
    assert torch.equal(norm(x), x)
    with torch.no_grad():
        norm.gain.copy_(torch.tensor([0.6, 3.0]))
        norm.shift.copy_(torch.tensor([10.0, 20.0]))
        found = norm(x)
    wanted = [[[3 * 2 + 10, 1 * 2 + 20], [4 * 2 + 10, 20]]]
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_response_norm_of_nothing_is_finite_with_its_slope():
    norm = full(ResponseNorm(3))
    x = torch.zeros(2, 5, 3, requires_grad=True)
    value = norm(x)
    value.sum().backward()
    assert torch.isfinite(value).all()
    assert torch.isfinite(x.grad).all()


def test_a_grid_block_sees_three_cells_in_each_direction():
    block = full(GridBlock(3))
    x = torch.randn(1, 12, 15, 3)
    with torch.no_grad():
        block.mixer.response.gain.zero_()  # the norm over all places sees everything
        changed = x.clone()
        changed[0, 6, 7] += 1
        moved = (block(changed) - block(x)).abs().amax(dim=(0, 3)) > 1e-6
    rows, columns = np.nonzero(moved.numpy())
    assert {*rows} == {*range(3, 10)}
    assert {*columns} == {*range(4, 11)}


def test_a_hex_block_sees_the_neighbours_by_direction():
    block = full(HexBlock(3, TABLE))
    x = torch.randn(1, 73, 3)
    with torch.no_grad():
        block.mixer.response.gain.zero_()
        for sensor in (0, 30, 72):
            changed = x.clone()
            changed[0, sensor] += 1
            moved = (block(changed) - block(x)).abs().amax(dim=(0, 2)) > 1e-6
            near = TABLE[sensor][TABLE[sensor] < 73].tolist()
            assert np.flatnonzero(moved).tolist() == sorted([sensor, *near])


def test_each_direction_of_a_hex_block_has_weights_of_its_own():
    block = full(HexBlock(4, TABLE))
    x = torch.randn(1, 73, 4)
    with torch.no_grad():
        block.mixer.response.gain.zero_()
        before = block(x)
        block.other[2] += 1
        moved = (block(x) - before).abs().amax(dim=(0, 2)) > 1e-6
    assert np.array_equal(moved, TABLE[:, 2] < 73)


def test_attention_does_not_know_the_order_of_the_tokens():
    block = full(TokenBlock(8, 2, 12, 0.0))
    x, order = torch.randn(3, 7, 8), torch.tensor([4, 0, 6, 1, 5, 2, 3])
    with torch.no_grad():
        torch.testing.assert_close(block(x[:, order]), block(x)[:, order], rtol=1e-5, atol=1e-5)
        changed = x.clone()
        changed[:, 0, 0] += 1
        assert (block(changed) - block(x)).abs().amax(dim=(0, 2)).min() > 1e-4  # all see the first one


def test_heads_attend_each_for_itself():
    """With one head or two of the same weights the result is not the same."""
    blocks = [full(TokenBlock(8, heads, 12, 0.0)) for heads in (1, 2)]
    x = torch.randn(3, 7, 8)
    with torch.no_grad():
        assert (blocks[0](x) - blocks[1](x)).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("block", "shape"),
    [(GridBlock(4), (5, 6, 7, 4)), (HexBlock(4, TABLE), (5, 73, 4)), (TokenBlock(8, 2, 8, 0.0), (5, 7, 8))],
    ids=["grid", "hex", "token"],
)
def test_events_do_not_see_each_other(block, shape):
    block, x = full(block), torch.randn(*shape)
    with torch.no_grad():
        torch.testing.assert_close(block(x[2:3]), block(x)[2:3], rtol=1e-5, atol=1e-5)


def test_dropout_is_for_training_alone():
    block = full(TokenBlock(8, 2, 12, 0.5))
    x = torch.randn(3, 7, 8)
    assert torch.equal(block(x), block(x))
    block.train()
    assert not torch.equal(block(x), block(x))


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


def test_a_dead_sensor_counts_as_the_mean_of_its_face_in_the_light(encoder):
    photons = np.where(ITEMS[..., PHOTONS_VALID] > 0, ITEMS[..., PHOTONS], 0).astype(float)
    with torch.no_grad():
        sums = encoder(ITEMS).sums
    u, v, w = centre(photons, PLACES)
    np.testing.assert_allclose(sums.u_cm, u, atol=1e-3)
    np.testing.assert_allclose(sums.v_cm, v, atol=1e-3)
    np.testing.assert_allclose(sums.w_cm, w, rtol=1e-4)
    valid = ITEMS[..., PHOTONS_VALID].numpy()
    by_face = [
        len(FACE_IDS[face])
        * np.maximum(photons, 0)[:, FACE_IDS[face]].sum(axis=1)
        / valid[:, FACE_IDS[face]].sum(axis=1)
        for face in FACES
    ]
    np.testing.assert_allclose(sums.light, np.sum(by_face, axis=0), rtol=1e-5)
    assert sums.vector.abs().max() < 10


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
