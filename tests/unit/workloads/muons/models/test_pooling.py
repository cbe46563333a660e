import pytest
import torch

from crpipe.workloads.muons.models.layers import largest_of, pooled, spread_out, sums_of

MANY = 10_000  # bfloat16 counts to 256 by ones


def _gradient(made, by):
    (gradient,) = torch.autograd.grad(made, by)
    return gradient


@pytest.mark.parametrize("enabled", [False, True])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_many_ones_add_up_exactly(kind, enabled):
    event = torch.tensor([0] * MANY + [1] * 3)
    ones = torch.ones(len(event), 5, dtype=kind, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
        sums = sums_of(ones, event, 2)
    assert sums.dtype == torch.float32
    assert sums[:, 0].tolist() == [MANY, 3]
    gradient = _gradient((sums * torch.tensor([[2.0], [3.0]])).sum(), ones)
    assert gradient.dtype == kind
    assert torch.equal(gradient[:, 0].float(), 2.0 + event)


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_gradients_of_values_spread_out_add_up_in_float32(kind):
    event = torch.tensor([0] * MANY + [1] * 3)
    values = torch.randn(2, 5).to(kind).requires_grad_()
    spread = spread_out(values, event)
    assert torch.equal(spread, values[event])
    gradient = _gradient(spread.float().sum(), values)
    assert torch.equal(gradient[:, 0], torch.tensor([MANY, 3]).to(kind))


def test_muons_that_tie_share_the_gradient_in_bfloat16_alone():
    values, event = torch.tensor([[1.0], [2.0], [2.0], [0.5]]), torch.tensor([0, 0, 0, 1])

    def of_sum(kind):
        x = values.to(kind).requires_grad_()
        return _gradient(largest_of(x, event, torch.tensor([3.0, 1.0])).float().sum(), x)[:, 0].tolist()

    assert of_sum(torch.float32) == [0.0, 1.0, 1.0, 1.0]
    assert of_sum(torch.bfloat16) == [0.0, 0.5, 0.5, 1.0]


def test_pooling_in_bfloat16_is_that_of_the_same_values_in_float32():
    event = torch.arange(7).repeat_interleave(40)
    kept = torch.full((7,), 40.0)
    x = torch.randn(280, 24).bfloat16()
    rough, exact = pooled(x, event, kept), pooled(x.float(), event, kept)
    assert all(torch.equal(found, known) for found, known in zip(rough, exact, strict=True))
