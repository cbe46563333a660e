"""Dense layers, sums and maxima over ragged events, and padding: their formulas, in both precisions."""

import pytest
import torch

from crpipe.loading.microbatch import rounded
from crpipe.workloads.muons.models import layers
from crpipe.workloads.muons.models.layers import (
    LEAST,
    Dense,
    dense,
    is_fused,
    largest_of,
    mean_of,
    padding,
    pooled,
    residual,
    spread_out,
    sums_of,
)

in_bfloat16 = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="this CPU has no fused layers in bfloat16"
)


@pytest.fixture(autouse=True)
def _seed():
    """Each test has its own numbers, whichever tests ran before it in this process."""
    torch.manual_seed(0)


def _case(rows=40, inputs=7, outputs=24):
    shapes = {"x": (rows, inputs), "weight": (outputs, inputs), "bias": (outputs,), "onto": (rows, outputs)}
    return {name: torch.randn(shape, requires_grad=True) for name, shape in shapes.items()}


def _plain(x, weight, bias, onto, rectify):
    made = x @ weight.t() + (0 if bias is None else bias) + (0 if onto is None else onto)
    return torch.nn.functional.leaky_relu(made, layers.SLOPE) if rectify else made


@pytest.mark.parametrize(("worth_it", "outputs"), [(0, 24), (0, 1), (layers._WORTH_IT, 24)])
@pytest.mark.parametrize("rectify", [False, True])
@pytest.mark.parametrize("left_out", [(), ("bias",), ("onto",), ("bias", "onto")])
def test_a_layer_and_its_gradients_are_those_of_the_formula(
    monkeypatch, worth_it, outputs, rectify, left_out
):
    monkeypatch.setattr(layers, "_WORTH_IT", worth_it)  # oneDNN, or torch's own products
    monkeypatch.setattr(layers, "_PIECE", 30)  # of 40 rows
    case = _case(outputs=outputs)
    given = {name: None if name in left_out else tensor for name, tensor in case.items()}
    inputs = [tensor for tensor in given.values() if tensor is not None]
    weights = torch.randn(40, outputs)
    made, plain = dense(**given, rectify=rectify), _plain(**given, rectify=rectify)
    assert is_fused(case["x"])
    torch.testing.assert_close(made, plain)
    found = torch.autograd.grad((made * weights).sum(), inputs)
    wanted = torch.autograd.grad((plain * weights).sum(), inputs)
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("enabled", [False, True])
def test_equal_inputs_give_equal_bits(enabled):
    case = _case(rows=20_000, inputs=64, outputs=96)

    def gradients():
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            made = dense(**case, rectify=True)
        return made, *torch.autograd.grad(made.square().sum(), list(case.values()))

    assert all(torch.equal(first, second) for first, second in zip(gradients(), gradients(), strict=True))


@pytest.mark.parametrize(("rows", "by_torch"), [(20_480, 0), (20_481, 1), (40_001, 0)])
def test_a_number_of_rows_that_does_not_repeat_gets_a_program_only_where_it_is_large(
    monkeypatch, rows, by_torch
):
    calls, linear = [], torch.nn.functional.linear
    monkeypatch.setattr(layers, "linear", lambda *given: calls.append(1) or linear(*given))
    case = _case(rows=rows, inputs=50, outputs=50)
    torch.testing.assert_close(dense(**case), _plain(**case, rectify=False), atol=1e-4, rtol=1e-4)
    assert len(calls) == by_torch


def test_what_is_added_stays_as_it_was_where_there_is_a_bias(monkeypatch):
    for fused in (True, False):
        monkeypatch.setattr(layers, "is_fused", lambda _, fused=fused: fused)
        case = {name: tensor.detach() for name, tensor in _case().items()}
        before = case["onto"].clone()
        dense(**case)
        assert torch.equal(case["onto"], before)


@pytest.mark.parametrize("enabled", [False, True])
def test_a_residual_is_the_layer_plus_its_input(enabled):
    layer, x = Dense(24, 24), torch.randn(40, 24)
    with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
        made = residual(layer, x)
    close = {"atol": 0.03, "rtol": 0.03} if enabled else {}
    torch.testing.assert_close(
        made.float(), torch.nn.functional.linear(x, layer.weight, layer.bias) + x, **close
    )


def test_a_small_weight_counts_beside_the_input_in_bfloat16():
    """Added to 1 first, it would be rounded away."""
    layer = Dense(1, 1)
    with torch.no_grad():
        layer.weight.fill_(1e-3)
        layer.bias.fill_(-1.0)
    with torch.autocast("cpu", torch.bfloat16):
        assert residual(layer, torch.ones(1, 1)).item() == pytest.approx(1e-3, rel=0.01)


def _distance(found, wanted):
    return ((found.float() - wanted).norm() / wanted.norm()).item()


@in_bfloat16
@pytest.mark.parametrize("rectify", [False, True])
@pytest.mark.parametrize("added", [None, "another", "x"])
def test_a_layer_and_its_gradients_in_bfloat16_are_near_and_those_of_weights_float32(
    monkeypatch, rectify, added
):
    monkeypatch.setattr(layers, "_PIECE", 300)
    case = _case(rows=1000, inputs=24)
    case["onto"] = case["x"] if added == "x" else case["onto"] if added else None
    inputs = [case[name] for name in ("x", "weight", "bias")] + ([case["onto"]] if added == "another" else [])
    weights = torch.randn(1000, 24)
    with torch.autocast("cpu", torch.bfloat16):
        assert layers._kind_of_products(case["x"]) == torch.bfloat16
        made = dense(**case, rectify=rectify)
    plain = _plain(**case, rectify=rectify)
    assert made.dtype == torch.bfloat16
    assert _distance(made, plain) < 2**-8
    found = torch.autograd.grad((made.float() * weights).sum(), inputs)
    # Near 0 rounding decides the sign, and so the slope.
    slopes = torch.where(made > 0, 1.0, layers.SLOPE) if rectify else 1.0
    wanted = torch.autograd.grad((_plain(**case, rectify=False) * slopes * weights).sum(), inputs)
    for gradient, known in zip(found, wanted, strict=True):
        assert gradient.dtype == torch.float32
        assert _distance(gradient, known) < 2**-8


@in_bfloat16
def test_gradients_of_weights_in_bfloat16_add_up_pieces_of_rows_exactly():
    case = {name: torch.ones_like(tensor).requires_grad_() for name, tensor in _case(rows=40_001).items()}
    with torch.autocast("cpu", torch.bfloat16):
        made = dense(**case)
    found = torch.autograd.grad(made.float().sum(), [case["weight"], case["bias"]])
    rows = 4 * layers._PIECE + float(torch.tensor(40_001 - 4 * layers._PIECE).bfloat16())
    assert all(torch.equal(gradient, torch.full_like(gradient, rows)) for gradient in found)


def test_the_second_derivative_is_refused():
    case = _case()
    (gradient,) = torch.autograd.grad(dense(**case).square().sum(), case["x"], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


EVENT = torch.tensor([0, 0, 0, 1, 2, 2])
KEPT = torch.tensor([3.0, 1.0, 2.0])
MANY = 10_000  # bfloat16 counts to 256 by ones


def test_pooling_is_that_of_each_event_alone():
    values = torch.randn(6, 5)
    alone = [values[number == EVENT] for number in range(3)]
    torch.testing.assert_close(mean_of(values, EVENT, KEPT), torch.stack([one.mean(0) for one in alone]))
    torch.testing.assert_close(largest_of(values, EVENT, KEPT), torch.stack([one.amax(0) for one in alone]))


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


@pytest.mark.parametrize(("events", "items"), [(2, LEAST), (63, 1025), (1000, 2000), (4095, 99_999)])
def test_padding_brings_events_and_items_to_shapes(events, items):
    added = padding(events, items)
    assert added.min() >= 1
    assert rounded(events + len(added)) == events + len(added)
    total = items + int(added.sum())
    assert rounded(total) == total
    assert total <= 33 / 32 * (items + len(added))


def test_a_single_event_and_few_items_are_not_padded():
    assert not len(padding(1, 10**6))
    assert not len(padding(500, LEAST - 1))
    assert not len(padding(0, 0))
