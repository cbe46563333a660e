"""How a critic's scores change with its muons, written out layer by layer.

Rectifiers and maxima are linear around almost every point: the pass forward decides which pieces apply, and
the gradient is then a product of weights. So the gradient of a penalty needs a first derivative only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, cast

import torch

from crpipe.workloads.muons.models.layers import SLOPE, Pooled, dense, exact, pooled, spread_out, sums_of

if TYPE_CHECKING:
    from torch import Tensor, nn

    from crpipe.workloads.muons.models.networks import Critic


class _Seen(NamedTuple):
    """What the layers gave, rectified, in the order of the forward pass."""

    lifted: Tensor
    embedded: Tensor
    before: Pooled
    first: Tensor
    collected: Tensor
    summary: Tensor
    mixed: Tensor
    exchanged: Tensor
    after: Pooled
    wide: Tensor
    narrow: Tensor


def critic_gradient(critic: Critic, muons: Tensor, context: Tensor, event: Tensor, kept: Tensor) -> Tensor:
    """Return the gradient of the sum of ``critic(muons, context, event, kept)`` by ``muons``: [M, D].

    It can itself be differentiated by the critic's weights. float32, whatever the trainer's precision.
    """
    with exact(muons):
        with torch.no_grad():
            seen = _forward(critic, muons, context, event, kept)
        return _backward(critic, seen, event, kept, muons.shape[1])


def _forward(critic: Critic, muons: Tensor, context: Tensor, event: Tensor, kept: Tensor) -> _Seen:
    exchange, (wide, _, narrow, _, _) = critic.exchange, critic.decide
    lifted = critic.lift(muons, context, event)
    embedded = critic.embed_lifted(lifted)
    before = pooled(embedded, event, kept)
    first = _rectified(critic.summary, torch.cat([*before, context], dim=1))
    collected = _rectified(exchange.collect, torch.cat([*before, first, context], dim=1))
    summary = _rectified(exchange.condense, collected, onto=first)
    heard = spread_out(dense(summary, exchange.spread.weight, exchange.local.bias), event)
    mixed = dense(embedded, exchange.local.weight, None, onto=heard, rectify=True)
    exchanged = _rectified(exchange.local_mix, mixed, onto=embedded)
    after = pooled(exchanged, event, kept)
    one = _rectified(cast("nn.Linear", wide), torch.cat([*after, summary, context], dim=1))
    two = _rectified(cast("nn.Linear", narrow), one)
    return _Seen(lifted, embedded, before, first, collected, summary, mixed, exchanged, after, one, two)


def _backward(critic: Critic, seen: _Seen, event: Tensor, kept: Tensor, features: int) -> Tensor:
    exchange, (wide, _, narrow, _, last) = critic.exchange, critic.decide
    hidden, summaries = seen.embedded.shape[1], seen.summary.shape[1]
    by_score = cast("nn.Linear", last).weight.expand(len(kept), -1)
    by_two = _through(by_score, seen.narrow)
    by_one = _through(dense(by_two, cast("nn.Linear", narrow).weight.t(), None), seen.wide)
    by_all = dense(by_one, cast("nn.Linear", wide).weight.t(), None)
    by_x = _through(_by_items(by_all, seen.exchanged, seen.after, event, kept), seen.exchanged)
    by_mixed = _through(dense(by_x, exchange.local_mix.weight.t(), None), seen.mixed)
    by_summary = by_all[:, 2 * hidden : 2 * hidden + summaries] + dense(
        sums_of(by_mixed, event, len(kept)), exchange.spread.weight.t(), None
    )
    by_summary = _through(by_summary, seen.summary)
    by_collected = _through(dense(by_summary, exchange.condense.weight.t(), None), seen.collected)
    by_seen = dense(by_collected, exchange.collect.weight.t(), None)
    by_first = _through(by_summary + by_seen[:, 2 * hidden : 2 * hidden + summaries], seen.first)
    by_pooled = by_seen[:, : 2 * hidden] + dense(by_first, critic.summary.weight[:, : 2 * hidden].t(), None)
    by_x = by_x + dense(by_mixed, exchange.local.weight.t(), None)
    by_x = by_x + _by_items(by_pooled, seen.embedded, seen.before, event, kept)
    by_x = _through(by_x, seen.embedded)
    by_lifted = _through(by_x + dense(by_x, critic.point_mix.weight.t(), None), seen.lifted)
    return dense(by_lifted, critic.point.weight.t()[:features], None)


def _rectified(layer: nn.Linear, x: Tensor, onto: Tensor | None = None) -> Tensor:
    return dense(x, layer.weight, layer.bias, onto=onto, rectify=True)


def _through(gradient: Tensor, rectified: Tensor) -> Tensor:
    """Go back through a rectifier that gave ``rectified``."""
    return torch.ops.aten.leaky_relu_backward(gradient, rectified, SLOPE, self_is_result=True)


def _by_items(by_pooled: Tensor, x: Tensor, seen: Pooled, event: Tensor, kept: Tensor) -> Tensor:
    """Go back from mean and maximum, the first columns, to items; all that tie get that of the maximum."""
    hidden = x.shape[1]
    mean, largest = by_pooled[:, :hidden] / kept[:, None], by_pooled[:, hidden : 2 * hidden]
    reached = seen.largest.index_select(0, event).eq_(x)
    return torch.addcmul(spread_out(mean, event), spread_out(largest.contiguous(), event), reached)
