"""Blocks: what they treat alike, what they keep apart."""

import numpy as np
import pytest
import torch

from crpipe.workloads.xec.models.encoder import GridBlock, HexBlock, ResponseNorm, TokenBlock, hex_neighbours
from crpipe.workloads.xec.sensors import sensor_map

TABLE = torch.from_numpy(hex_neighbours(sensor_map()))


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
