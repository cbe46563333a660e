"""The contract of phases and losses: a mean over events, whatever batch they are in; finite gradients."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from crpipe.contract.batches import changed_tensors
from crpipe.contract.cases import Case, check, skip
from crpipe.loading.microbatch import micro_batches
from crpipe.train.answers import loss_name, loss_of, params_of, phases_of, refuse, sizes_of
from crpipe.train.ranks import World
from crpipe.train.workload import Metrics, OptimizerSpec, Phase, Workload

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray
    from torch import Tensor, nn

    from crpipe.events.batch import Events

KIND = "workload"
_DRAWS = 16  # of a loss with random numbers, whose means are compared
_SIGMAS = 6.0
_EXACT = 1e-4  # relative; sums of float32 in another order
_PAIRS = 4
_DOUBLED = 0.03  # relative, with random numbers
_MICRO = 3  # micro-batches of a batch
_PART = 4  # events of a part whose gradients are compared


@dataclass(frozen=True, slots=True)
class _RanksInTurn(World):
    """The ranks of one step, one after the other: the last one has the sums of all."""

    sums: list[Tensor]

    def sum(self, values: Tensor) -> Tensor:
        """Add what the ranks before gave."""
        values.add_(self.sums.pop() if self.sums else 0)
        self.sums.append(values.clone())
        return values


@dataclass(frozen=True)
class Trial:
    """A workload with a model whose losses are computed."""

    case: Case
    workload: Workload
    model: nn.Module
    phases: list[Phase]

    @classmethod
    def of(cls, case: Case) -> Trial:
        """Build workload, model and phases."""
        trained = case.trained()
        return cls(case, trained.workload, trained.model, phases_of(trained.workload))

    def loss(
        self, phase: Phase, events: Events, index: NDArray[Any] | None = None, draw: int = 1
    ) -> tuple[Tensor, Metrics]:
        """Compute the loss of a phase as the trainer does, with the random numbers of ``draw``."""
        batch = self.case.batch(self.workload, events, index, (draw,))
        torch.manual_seed(draw)
        generator = torch.Generator().manual_seed(draw)
        return loss_of(self.workload, phase, self.model, batch, generator)

    def value(self, phase: Phase, events: Events, parts: Sequence[NDArray[Any]], draw: int) -> float:
        """Add up the losses of parts of a batch by their shares of its events, or of their weights."""
        shares = [self.weight(events, part) for part in parts]
        losses = [
            share * float(self.loss(phase, events, part, draw)[0].detach())
            for share, part in zip(shares, parts, strict=True)
            if share > 0
        ]
        return sum(losses) / sum(shares)

    def weight(self, events: Events, part: NDArray[Any]) -> float:
        """Return how much a part of a batch counts; training leaves out one of 0, whose mean is no number."""
        return float(self.case.weights(events)[part].sum())

    def gradient(self, phase: Phase, events: Events, parts: Sequence[NDArray[Any]], draw: int) -> Tensor:
        """Compute the gradient of a phase's parameters, flat, with each part on a rank of its own."""
        params = [each for each in params_of(phase, self.model) if each.requires_grad]
        world = _RanksInTurn(0, len(parts), torch.device("cpu"), [])
        for rank, part in enumerate(parts):
            self.model.zero_grad(set_to_none=True)
            weight = self.weight(events, part)
            if weight > 0:
                loss, _ = self.loss(phase, events, part, draw + rank * _DRAWS)
                loss.backward()  # type: ignore[no-untyped-call]
            world.reduce_gradients(params, torch.tensor(weight), torch.zeros(()))
        gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in params]
        return torch.cat([each.flatten() for each in gradients])

    def is_random(self, phase: Phase, events: Events) -> bool:
        """Return whether a loss depends on its random numbers."""
        parts = [np.arange(len(events))]
        one, other = (self.value(phase, events, parts, draw) for draw in (1, 2))
        return not math.isclose(one, other, rel_tol=1e-6)

    def compare(self, phase: Phase, one: _Side, other: _Side, law: str) -> None:
        """Fail unless both sides have the same loss; with random numbers: the same mean of many."""
        random = self.is_random(phase, one[0])
        draws = range(1, 1 + _DRAWS) if random else range(1, 2)
        first, second = (
            np.array([self.value(phase, events, parts, draw) for draw in draws])
            for events, parts in (one, other)
        )
        scale = abs(first.mean()) + abs(second.mean()) + first.std() + second.std()
        allowed = 10 * _EXACT * scale + 1e-6 if not random else 1e-3 * scale
        allowed += _SIGMAS * math.sqrt((first.var() + second.var()) / len(draws)) if random else 0.0
        apart = abs(first.mean() - second.mean())
        if not apart <= allowed:
            losses = f"{first.mean():.6g} and {second.mean():.6g}"
            refuse(self.named(phase), law, losses)

    def compare_gradients(
        self, phase: Phase, events: Events, parts: Sequence[NDArray[Any]], law: str, draws: Sequence[int]
    ) -> None:
        """Fail unless a batch and its parts, each on a rank, have the same gradients, or the same means."""
        one, other = (
            torch.stack([self.gradient(phase, events, each, draw) for draw in draws])
            for each in (_all(events), parts)
        )
        apart, scale = (one.mean(0) - other.mean(0)).norm(), one.mean(0).norm() + other.mean(0).norm()
        variance = (one.var(0) + other.var(0)).sum() if len(draws) > 1 else torch.zeros(())
        if not apart <= 10 * _EXACT * scale + _SIGMAS * (variance / len(draws)).sqrt() + 1e-6:
            refuse(self.named(phase), law, f"others, by {float(apart / scale):.1%}")

    def named(self, phase: Phase) -> str:
        """Name the loss of a phase."""
        return loss_name(self.workload, phase)


_Side = tuple["Events", "Sequence[NDArray[Any]]"]


def _all(events: Events) -> list[NDArray[np.int64]]:
    return [np.arange(len(events))]


@check(KIND)
def phases_are_phases(case: Case) -> None:
    """A list of Phase, each with a name and an optimizer of its own; the same each time."""
    method, workload = f"{case.plugin(KIND)}.phases", case.workload()
    phases = phases_of(workload)
    for phase in phases:
        if not isinstance(phase.optimizer, OptimizerSpec):
            refuse(method, "an OptimizerSpec in each phase", type(phase.optimizer).__name__)
    names = [phase.name for phase in phases]
    if names != [phase.name for phase in workload.phases()]:
        refuse(method, "the same phases each time", "others the second time")


@check(KIND, doubt=True)
def every_parameter_is_in_a_phase(case: Case) -> None:
    """What no phase trains stays as it began; freeze it (requires_grad_(False)) if that is meant."""
    trial = Trial.of(case)
    named = dict(trial.model.named_parameters())
    places = {id(parameter): name for name, parameter in named.items()}
    trained: set[int] = set()
    for phase in trial.phases:
        of_phase = {id(parameter) for parameter in params_of(phase, trial.model)}
        if not of_phase:
            refuse(f"{case.plugin(KIND)}.phases", f"parameters in phase {phase.name}", "none")
        if not of_phase <= places.keys():
            refuse(
                f"{case.plugin(KIND)}.phases",
                f"parameters of the model in {phase.name}",
                "one of another model",
            )
        trained |= of_phase
    left = [name for name, each in named.items() if each.requires_grad and id(each) not in trained]
    if left:
        refuse(
            f"{case.plugin(KIND)}.phases",
            "every parameter in a phase, or frozen by the model",
            f"{left[0]} in none",
        )


@check(KIND)
def a_loss_is_a_scalar_with_detached_metrics(case: Case) -> None:
    """A finite scalar, or (scalar, {name: detached scalar}); the same for the same random numbers."""
    trial = Trial.of(case)
    for phase in trial.phases:
        loss, metrics = trial.loss(phase, case.events)
        if any(each.grad is not None for each in trial.model.parameters()):
            refuse(trial.named(phase), "`backward` left to the training", "gradients in the model")
        if not loss.requires_grad:
            refuse(trial.named(phase), "a loss that depends on the model", "one without gradients")
        if not torch.isfinite(loss):
            refuse(trial.named(phase), "a finite loss of a batch", f"{loss.item()}")
        for name, value in metrics.items():
            if value.requires_grad:
                refuse(
                    trial.named(phase), f"the metric {name} as a detached scalar tensor", "one with gradients"
                )
        again, _ = trial.loss(phase, case.events)
        if loss.item() != again.item():
            refuse(trial.named(phase), "the same for the same generator", f"{loss.item()} and {again.item()}")
        watched = [
            phase.watched_metric,
            *phase.smoothed,
            *([phase.throttle.metric] if phase.throttle else []),
        ]
        missing = [name for name in watched if name not in {"loss", *metrics}]
        if missing:
            refuse(
                trial.named(phase), f"the metric {missing[0]}, which the phase watches", f"{sorted(metrics)}"
            )


@check(KIND)
def a_loss_changes_no_batch(case: Case) -> None:
    """All phases of a step share their batch."""
    trial = Trial.of(case)
    for phase in trial.phases:
        batch = case.batch(trial.workload, case.events, None, (1,))
        before = {name: value.clone() for name, value in batch.items()}
        phase.loss(trial.model, batch, torch.Generator().manual_seed(1))
        changed = changed_tensors(before, batch)
        if changed:
            refuse(trial.named(phase), "its batch unchanged", f"another {changed[0]!r} after the call")


@check(KIND, doubt=True)
def a_loss_is_the_weighted_sum_of_its_micro_batches(case: Case) -> None:
    """A mean over events, each with its own items: a large batch is cut (load.max_items), ranks share it."""
    trial, events = Trial.of(case), case.with_gap()
    size = sizes_of(trial.workload, events)
    parts = micro_batches(size, max(1, -(-int(size.sum()) // _MICRO)))
    if len(parts) == 1:
        parts = np.array_split(np.arange(len(events)), min(_MICRO, len(events)))
    for phase in trial.phases:
        law = "a mean over events: of a batch, and of its parts by their shares of events, the same"
        trial.compare(phase, (events, _all(events)), (events, parts), law)
        # A model that knows nothing yet takes all events alike: its losses hardly show what they mix.
        few = np.array_split(np.arange(len(events)), -(-len(events) // _PART))
        draws = range(1, 1 + (_PAIRS if trial.is_random(phase, events) else 1))
        trial.compare_gradients(phase, events, few, f"{law} gradients", draws)


@check(KIND, doubt=True)
def two_ranks_have_the_gradients_of_one(case: Case) -> None:
    """A batch cut over two ranks (train.processes), whose gradients are added up as in training."""
    trial, events = Trial.of(case), case.events
    if len(events) < len(halves := np.array_split(np.arange(len(events)), 2)):
        skip("one event cannot be cut over two ranks")
    trial.model.train()
    for phase in trial.phases:
        draws = range(1, 1 + (_DRAWS if trial.is_random(phase, events) else 1))
        law = "of a batch on two ranks the gradients of one rank, in training mode"
        trial.compare_gradients(phase, events, halves, law, draws)


@check(KIND)
def a_loss_is_no_sum(case: Case) -> None:
    """Each event twice: a mean stays, a sum doubles, whatever the random numbers are."""
    trial, events = Trial.of(case), case.events
    twice = np.tile(np.arange(len(events)), 2)
    for phase in trial.phases:
        pairs = [
            [trial.value(phase, events, parts, draw) for parts in (_all(events), [twice])]
            for draw in range(_PAIRS)
        ]
        if all(once and math.isclose(both, 2 * once, rel_tol=_DOUBLED) for once, both in pairs):
            what = f"a sum: {pairs[0][0]:.6g}, and {pairs[0][1]:.6g} with each event twice"
            refuse(trial.named(phase), "a mean over the events", what)


@check(KIND, doubt=True)
def the_order_of_events_does_not_matter(case: Case) -> None:
    """The loss is one of a set of events."""
    trial, events = Trial.of(case), case.events
    mixed = np.random.default_rng(3).permutation(len(events))
    for phase in trial.phases:
        law = "the same in any order of the events"
        trial.compare(phase, (events, _all(events)), (events, [mixed]), law)


@check(KIND, doubt=True)
def an_event_counts_as_often_as_its_weight_says(case: Case) -> None:
    """Of weight 2 like two events, of weight 0 like none."""
    trial, events = Trial.of(case), case.events
    if not getattr(trial.workload, "weighted", False):
        skip("it is not `weighted`")
    for phase, weight in itertools.product(trial.phases, (2.0, 0.0)):
        weights = np.where(np.arange(len(events)) % 3 == 0, weight, 1.0)
        copies = np.repeat(np.arange(len(events)), weights.astype(int))
        alike = case.weighted(events.take(copies), np.ones(len(copies)))
        law = f"an event of weight {weight:g} to count like {weight:g} events"
        given = case.weighted(events, weights)
        trial.compare(phase, (given, _all(given)), (alike, _all(alike)), law)


def _small_batches(case: Case) -> Iterator[tuple[str, Events]]:
    events = case.events
    yield "a batch", events
    events = events.take(np.flatnonzero(case.weights(events) > 0))  # no batch of the others is trained on
    yield "one event alone", events.part(0, 1)
    largest = int(np.argmax(events.multiplicity))
    yield "the largest event alone", events.part(largest, largest + 1)
    if not case.layout.fixed:
        yield "a batch with an event without items", case.without_items(events, len(events) // 2)
        yield "an event without items alone", case.without_items(events.part(0, 1), 0)


@check(KIND, doubt=True)
def losses_and_gradients_are_finite(case: Case) -> None:
    """Of any batch, in training mode, also under autocast (train.precision)."""
    for precision in ("float32", "bfloat16"):
        _finite_gradients(case, precision)


def _finite_gradients(case: Case, precision: str) -> None:
    trial = Trial.of(case)
    trial.model.train()
    reached: set[str] = set()
    for phase in trial.phases:
        of_phase = {id(parameter) for parameter in params_of(phase, trial.model)}
        for what, events in _small_batches(case):
            trial.model.zero_grad(set_to_none=True)
            with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
                loss, _ = trial.loss(phase, events)
            if not torch.isfinite(loss):
                refuse(trial.named(phase), f"a finite loss of {what} in {precision}", f"{loss.item()}")
            if loss.requires_grad:
                loss.backward()  # type: ignore[no-untyped-call]
            for name, parameter in trial.model.named_parameters():
                if parameter.grad is None or id(parameter) not in of_phase:
                    continue
                # One bias may cancel: a critic's last one, in real less generated.
                if parameter.grad.any() or parameter.numel() == 1:
                    reached.add(name)
                if not torch.isfinite(parameter.grad).all():
                    refuse(
                        trial.named(phase), f"finite gradients of {what} in {precision}", f"others of {name}"
                    )
    trained = {id(each) for phase in trial.phases for each in params_of(phase, trial.model)}
    named = {name: each for name, each in trial.model.named_parameters() if id(each) in trained}
    left = [name for name, each in named.items() if each.requires_grad and name not in reached]
    if left:
        refuse(
            f"{case.plugin(KIND)}.phases",
            "a gradient of every parameter by its phase's loss",
            f"none of {left[0]}",
        )
