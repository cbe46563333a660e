"""The whole model: features of all sensors, then a network over padded groups of events."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from crpipe.workloads.common.formulas import Gelu, atan2
from crpipe.workloads.common.regression import QuadraticRegression, begin_at_zero
from crpipe.workloads.direction.models.grouping import SUMMARY, Features, summarise
from crpipe.workloads.direction.options import FEATURES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from crpipe.train.workload import Batch
    from crpipe.workloads.direction.options import (
        DeepSetOptions,
        FlatTransformerOptions,
        HierarchicalTransformerOptions,
        TransformerOptions,
    )


_START = 2.0  # concentration of a vector of length 1 from the regression, before the network has learned
_OF_PULSE, _LATEST = 4, 10.0  # features of a pulse; later ones are noise in fine units of time
_PAIRS = 1 << 20  # of sensors, whose distances are in memory at a time


class DirectionModel(nn.Module):
    """Predicts a vector for each event, which points to where the neutrino came from.

    A regression on a summary of the event gives the first vector, the network corrects it. sharpness, power:
    of the vector's length, which a calibration found; predictions apply them. encoder: gives the network
    more features of each sensor, from its pulses.
    """

    sharpness: Tensor
    power: Tensor

    def __init__(self, features: Features, network: nn.Module, encoder: PulseEncoder | None = None) -> None:
        super().__init__()
        self.features = features
        self.encoder = encoder
        self.regression = QuadraticRegression(SUMMARY, 3, joint=True)
        self.network = network
        # The network has to turn the regression's vectors where they are wrong: those of the concentration
        # that their length says it hardly turned in 3,000 steps. Nor did it where it saw the summary, too.
        self.start = nn.Parameter(torch.tensor(_START))
        self.register_buffer("sharpness", torch.ones(()))
        self.register_buffer("power", torch.ones(()))
        self.register_load_state_dict_pre_hook(_without_power)  # type: ignore[no-untyped-call]

    def kappa(self, length: Tensor) -> Tensor:
        """Return the concentration, calibrated, of vectors of such a length."""
        return self.sharpness.to(length) * length ** self.power.to(length)

    def forward(self, batch: Batch, turn: Tensor) -> Tensor:
        """Return vectors [B, 3] for the events of a batch that ``collate`` made, in its order.

        turn: [B] angle by which each event is turned about the vertical axis, in rad.
        """
        x = self._features(batch, turn)
        if self.encoder is not None:
            pulses = self.features.pulses(batch, batch["event"], batch["start"])
            alike = list(groups_of(batch, "alike_", "pulses_kept"))
            x = torch.cat([x, self.encoder(pulses, batch["many"], alike, batch["pulses_place"])], dim=1)
        groups = ((x[rows], there) for rows, there in _joined_groups(batch))
        return torch.cat([self.corrected(each, there) for each, there in groups])

    def estimates(self, batch: Batch, turn: Tensor) -> Tensor:
        """Return the vectors of the regression alone, [B, 3], as ``forward`` does."""
        return self.regression(self.summaries(batch, turn))

    def summaries(self, batch: Batch, turn: Tensor) -> Tensor:
        """Return what the regression sees: [B, SUMMARY]."""
        x = self._features(batch, turn)
        return torch.cat([summarise(x[rows], there) for rows, there in _joined_groups(batch)])

    def _features(self, batch: Batch, turn: Tensor) -> Tensor:
        return self.features(batch, batch["event"], batch["start"], turn)

    def corrected(self, x: Tensor, there: Tensor) -> Tensor:
        """Return vectors [E, 3] from features x [E, L, F]; there: [E, L] false for padding."""
        summary = summarise(x[..., : self.features.width], there)
        step = self.network(x, there)
        return self.start * self.regression(summary) + step.float()  # bfloat16 lacks digits for small angles


def _without_power(_: nn.Module, state: dict[str, Tensor], prefix: str, *__: object) -> None:
    """Read checkpoints of before the power with one of 1."""
    if f"{prefix}sharpness" in state:
        state.setdefault(f"{prefix}power", torch.ones(()))


def _joined_groups(batch: Batch) -> Iterator[tuple[Tensor, Tensor]]:
    """Return the groups of a batch as ``groups_of`` does, small ones joined, but not for a compiled graph.

    Every way in which they are joined would be a graph of its own.
    """
    return groups_of(batch) if torch.compiler.is_compiling() else joined(groups_of(batch))


def groups_of(batch: Batch, name: str = "rows_", kept_name: str = "kept") -> Iterator[tuple[Tensor, Tensor]]:
    """Return the rows of each padded group of events, [E, L], and, false for padding, [E, L].

    Or those of other arrays that collate made: name: the beginning of theirs.
    """
    first = 0
    for number in range(sum(each.startswith(name) for each in batch)):
        rows = batch[f"{name}{number}"]
        kept = batch[kept_name][first : first + rows.shape[0], None]
        yield rows, torch.arange(rows.shape[1], device=rows.device) < kept
        first += rows.shape[0]


def joined(groups: Iterable[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
    """Join groups one after another, padded to the longest, which is the first, up to _PAIRS of sensors.

    For few events, many small steps take longer than a few large ones.
    """
    waiting: list[tuple[Tensor, Tensor]] = []
    for group in groups:
        length = waiting[0][0].shape[1] if waiting else 0
        if length and (sum(len(rows) for rows, _ in waiting) + len(group[0])) * length**2 > _PAIRS:
            yield _padded(waiting)
            waiting = []
        waiting.append(group)
    if waiting:
        yield _padded(waiting)


def _padded(groups: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    length = groups[0][0].shape[1]
    pairs = zip(*groups, strict=True)
    rows, there = ([functional.pad(each, (0, length - each.shape[1])) for each in part] for part in pairs)
    return torch.cat(rows), torch.cat(there)


# Networks over the sensors of an event: a transformer and a DeepSet, both over padded groups.


def _normed(x: Tensor) -> Tensor:
    return functional.rms_norm(x, x.shape[-1:])


class Attention(nn.Module):
    """Attention between the tokens of an event, with queries and keys of length one."""

    def __init__(self, options: TransformerOptions) -> None:
        super().__init__()
        width, self.heads, self.dropout = options.width, options.heads, options.dropout
        self.inward = nn.Linear(width, 3 * width, bias=False)
        self.outward = nn.Linear(width, width, bias=False)
        nn.init.zeros_(self.outward.weight)  # a block begins as the identity

    def forward(self, x: Tensor, there: Tensor) -> Tensor:
        """Attend: x [E, L, width], there [E, L] true for tokens, false for padding."""
        events, tokens, width = x.shape
        split = self.inward(x).view(events, tokens, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        # In bfloat16 a norm is float32 again; the attention wants one type.
        query, key = _normed(query).to(value.dtype), _normed(key).to(value.dtype)
        mixed = functional.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=there[:, None, None, :],
            dropout_p=self.dropout if self.training else 0.0,
        )
        return self.outward(mixed.transpose(1, 2).reshape(events, tokens, width))


class FeedForward(nn.Module):
    """Two layers with the square of a rectifier between them."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.inward = nn.Linear(width, hidden, bias=False)
        self.outward = nn.Linear(hidden, width, bias=False)
        nn.init.zeros_(self.outward.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Transform each token: [E, L, width]."""
        return self.outward(functional.relu(self.inward(x)).square())


def entrance(features: int, options: FlatTransformerOptions) -> nn.Module:
    """Build what turns features into tokens, as ``model.input`` says."""
    width = options.width
    if options.input == "none":
        return nn.ZeroPad1d((0, width - features))  # zeros after the features
    first = nn.Linear(features, width)
    return first if options.input == "linear" else nn.Sequential(first, Gelu(), nn.Linear(width, width))


class SensorTransformer(nn.Module):
    """One token for each sensor and one for the event, whose last state gives the direction."""

    def __init__(self, enter: nn.Module, options: TransformerOptions) -> None:
        super().__init__()
        width, layers = options.width, range(options.layers)
        self.enter = enter
        self.event = nn.Parameter(0.02 * torch.randn(width))
        self.attention = nn.ModuleList(Attention(options) for _ in layers)
        self.feed_forward = nn.ModuleList(FeedForward(width, options.feedforward) for _ in layers)
        self.scales = options.residual_scales
        if self.scales:  # begin as in iceaggr
            self.of_tokens = nn.Parameter(torch.ones(options.layers))
            self.of_first = nn.Parameter(torch.full((options.layers,), 0.1))
        self.head = nn.Sequential(
            nn.Linear(width, options.head), Gelu(), begin_at_zero(nn.Linear(options.head, 3))
        )

    def forward(self, x: Tensor, there: Tensor) -> Tensor:
        """Return a vector for each event: x [E, L, features], there [E, L] false for padding; [E, 3]."""
        token = self.event.expand(x.shape[0], 1, -1)
        x = first = torch.cat([token, _normed(self.enter(x))], dim=1)
        there = torch.cat([there.new_ones(x.shape[0], 1), there], dim=1)
        blocks = zip(self.attention, self.feed_forward, strict=True)
        for number, (attention, feed_forward) in enumerate(blocks):
            if self.scales:
                x = self.of_tokens[number] * x + self.of_first[number] * first
            x = x + attention(_normed(x), there)
            x = x + feed_forward(_normed(x))
        return self.head(_normed(x[:, 0]))


class PulseEncoder(nn.Module):
    """A transformer over the pulses of one sensor: the mean of their last states says what the sensor saw."""

    def __init__(self, options: HierarchicalTransformerOptions) -> None:
        super().__init__()
        layers = range(options.pulse_layers)
        self.enter = nn.Linear(_OF_PULSE, options.width)
        self.attention = nn.ModuleList(Attention(options) for _ in layers)
        self.feed_forward = nn.ModuleList(FeedForward(options.width, options.feedforward) for _ in layers)

    def forward(
        self, pulses: Tensor, many: Tensor, groups: list[tuple[Tensor, Tensor]], position: Tensor
    ) -> Tensor:
        """Return what each of D sensors saw: [D, width]; 0 for one without pulses.

        pulses: [P, 4] as from ``Features.pulses``. many: [D] pulses of each sensor. groups: pulses [S, L] of
        the sensors of each group and, false for padding, [S, L]. position: [D] of each sensor among all S.
        """
        near = pulses[:, 3:].clamp(-_LATEST, _LATEST)
        pulses = torch.cat([pulses[:, :3], near], dim=1)
        encoded = [self._encoded(pulses[rows], there) for rows, there in groups]
        return torch.cat(encoded)[position] * (many > 0)[:, None]

    def _encoded(self, x: Tensor, there: Tensor) -> Tensor:
        x = _normed(self.enter(x))
        for attention, feed_forward in zip(self.attention, self.feed_forward, strict=True):
            x = x + attention(_normed(x), there)
            x = x + feed_forward(_normed(x))
        return _normed(_mean(x, there))


class EventTransformer(SensorTransformer):
    """A transformer over the sensors of an event, from their own features and what encodes their pulses."""

    def __init__(self, options: TransformerOptions) -> None:
        super().__init__(nn.Linear(FEATURES + options.width, options.width), options)
        self.encoded = options.width

    def forward(self, x: Tensor, there: Tensor) -> Tensor:
        """Return a vector for each event, as in SensorTransformer."""
        return super().forward(torch.cat([x[..., :FEATURES], x[..., -self.encoded :]], dim=-1), there)


class SensorDeepSet(nn.Module):
    """Each sensor by itself, then each beside the sum of all, then the sum alone."""

    def __init__(self, features: int, options: DeepSetOptions) -> None:
        super().__init__()
        hidden = options.hidden
        self.each = nn.Sequential(nn.Linear(features, hidden), nn.SiLU(), nn.Linear(hidden, hidden))
        self.beside = nn.Sequential(nn.Linear(3 * hidden, hidden), nn.SiLU(), nn.Linear(hidden, hidden))
        self.whole = nn.Sequential(
            nn.Linear(2 * hidden, hidden), nn.SiLU(), begin_at_zero(nn.Linear(hidden, 3))
        )

    def forward(self, x: Tensor, there: Tensor) -> Tensor:
        """Return a vector for each event: x [E, L, features], there [E, L] false for padding; [E, 3]."""
        sensors = self.each(x)
        pooled = _pooled(sensors, there)
        both = torch.cat([sensors, pooled[:, None].expand(-1, sensors.shape[1], -1)], dim=2)
        return self.whole(_pooled(self.beside(both), there))


def _pooled(x: Tensor, there: Tensor) -> Tensor:
    """Return mean and maximum over the sensors of each event: [E, 2 x hidden]."""
    return torch.cat([_mean(x, there), torch.where(there[:, :, None], x, -torch.inf).amax(dim=1)], dim=1)


def _mean(x: Tensor, there: Tensor) -> Tensor:
    """Return the mean over what is there, of [E, L, F]: [E, F]."""
    return torch.where(there[:, :, None], x, 0.0).sum(dim=1) / there.sum(dim=1, keepdim=True)


# Losses between predicted vectors of any length and true directions; finite everywhere.

_EPSILON = 1e-12  # below any squared length that matters
_SMALL = 1e-2  # concentration below which a series replaces the formula


def length(vectors: Tensor) -> Tensor:
    """Return the lengths of vectors [B, 3]: [B, 1]; the slope is 0, not infinite, at length 0."""
    return (vectors.square().sum(dim=-1, keepdim=True) + _EPSILON).sqrt()


def mean(values: Tensor, counts: Tensor) -> Tensor:
    """Average values [B] over the events of a batch. counts: [B] 1, or 0 for padding."""
    return (values * counts).sum() / counts.sum()


def opening_angle(predicted: Tensor, truth: Tensor) -> Tensor:
    """Return the angle between vectors [B, 3], in rad: [B].

    atan2 of cross and scalar product has a finite slope at 0 and π, where arccos has none.
    """
    unit = predicted / length(predicted)
    cross = torch.linalg.cross(unit, truth)
    sine = (cross.square().sum(dim=-1) + _EPSILON**2).sqrt()
    return atan2(sine, (unit * truth).sum(dim=-1))


def von_mises_fisher(predicted: Tensor, truth: Tensor) -> Tensor:
    """Return minus the log density of true unit vectors [B, 3]: [B].

    The density on the sphere is κ exp(κ cos θ) / (4π sinh κ); κ is the length of the predicted vector, its
    direction the mean. In float32: κ (1 - cos θ) as κ |μ - t|²/2, which keeps its digits at small angles.
    """
    kappa = length(predicted)
    apart = (predicted / kappa - truth).square().sum(dim=-1)
    kappa = kappa[..., 0]
    series = 0.5 + 0.5 * kappa + kappa.square() / 6
    exact = kappa / -torch.expm1(-2 * kappa.clamp_min(_SMALL))
    height = torch.where(kappa < _SMALL, series, exact)
    return 0.5 * kappa * apart - height.log() + math.log(2 * math.pi)
