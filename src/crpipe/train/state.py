"""Everything that training changes: weights, optimizers, averaged weights, counters.

Random generators are not part of it: every step seeds its own from (seed, step, rank).
"""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from crpipe.core.errors import CheckpointError, ConfigError
from crpipe.train.answers import params_of
from crpipe.train.checkpoints import FORMAT, Counters
from crpipe.train.loss_scales import LossScales
from crpipe.train.optimizers import build_optimizer, load_moments, same_optimizer
from crpipe.train.pretrained import Match, list_names, match_weights

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from crpipe.train.numerics import Numerics
    from crpipe.train.workload import Phase


class Backup:
    """A copy of some tensors, on their device, that can be restored without waiting for the device.

    With torch's own helpers for its optimizers and data parallelism, a few calls for all tensors together:
    one by one they took 2 % of a small step.
    """

    def __init__(self, tensors: Sequence[Tensor], optimizers: Sequence[torch.optim.Optimizer] = ()) -> None:
        """Copy tensors, and the whole state of optimizers, which may begin it or replace it in a step.

        Where there are optimizers, the restoring waits for the device.
        """
        # Of each optimizer a copy of its state: tensors by parameter and name, or numbers.
        self._states = [
            (optimizer, {parameter: deepcopy(dict(slots)) for parameter, slots in optimizer.state.items()})
            for optimizer in optimizers
        ]
        kinds = {tensor.dtype for tensor in tensors}
        self._groups = [[tensor for tensor in tensors if tensor.dtype == kind] for kind in kinds]
        # clone(): a single tensor is flattened without a copy.
        self._copies = [_flatten_dense_tensors(group).clone() for group in self._groups]  # type: ignore[no-untyped-call]

    def restore_where(self, flag: Tensor) -> None:
        """Restore the old values of the tensors where ``flag`` (scalar, 0 or 1) is 1."""
        for group, copy in zip(self._groups, self._copies, strict=True):
            values = torch.where(flag > 0, copy, _flatten_dense_tensors(group))  # type: ignore[no-untyped-call]
            torch._foreach_copy_(group, _unflatten_dense_tensors(values, group))  # type: ignore[no-untyped-call]
        for optimizer, state in self._states if self._states and bool(flag) else ():
            optimizer.state.clear()
            optimizer.state.update(state)


class TrainState:
    """Model, optimizers, averaged weights and counters of one training process."""

    def __init__(self, model: nn.Module, phases: Sequence[Phase], seed: int, device: torch.device) -> None:
        self.model = model.to(device)
        self.device = device
        self.phases = phases
        self.params = {phase.name: params_of(phase, model) for phase in phases}
        self.frozen = {phase.name: _frozen(phase, model, self.params[phase.name]) for phase in phases}
        self.optimizers = {
            phase.name: build_optimizer(phase.name, self.params[phase.name], phase.optimizer)
            for phase in phases
        }
        # The full learning rate of each group of parameters.
        self.rates = {
            name: [group["lr"] for group in optimizer.param_groups]
            for name, optimizer in self.optimizers.items()
        }
        self.seed = seed
        self.generator = torch.Generator(device)
        averaged = {id(p) for phase in phases if phase.average for p in self.params[phase.name]}
        # The parameters whose average is kept, and their averages, by name.
        self.averaged = {
            name: parameter for name, parameter in self.model.named_parameters() if id(parameter) in averaged
        }
        self.average = {name: parameter.detach().clone() for name, parameter in self.averaged.items()}
        self.rate_factors = {phase.name: 1.0 for phase in phases}  # lowered by Phase.throttle
        self.loss_scales: LossScales | None = None  # of float16
        self.counters = Counters()
        self.numerics: list[Numerics] = []  # how the steps of this link were computed, each kind once

    def scale_losses(self) -> None:
        """Keep a loss scale for each phase from now on."""
        self.loss_scales = LossScales(self.optimizers, self.device)

    def trained(self, phase: Phase) -> list[nn.Parameter]:
        """List the parameters that a phase changes in the coming step: without those that are frozen."""
        if self.counters.step >= phase.frozen_steps:
            return self.params[phase.name]
        return [
            parameter for parameter in self.params[phase.name] if id(parameter) not in self.frozen[phase.name]
        ]

    def seed_step(self, rank: int) -> None:
        """Seed this step's random numbers."""
        self.seed_random(self.seed, self.counters.step, rank)

    def seed_random(self, *key: int) -> None:
        """Seed the random numbers of ``generator`` and of torch's own (dropout) alike."""
        sequence = np.random.SeedSequence(key)
        seed = int(sequence.generate_state(1, np.uint64)[0] >> 1)
        self.generator.manual_seed(seed)
        if self.generator.device.type == "cpu":  # of all devices, torch takes a tenth of a small step for it
            torch.default_generator.manual_seed(seed)
        else:
            torch.manual_seed(seed)

    def backup(self) -> Backup:
        """Copy what a training step may have changed when it turns out bad: weights, buffers, moments.

        Excludes the last phase when it takes a single optimizer step, which is skipped where it is bad.
        """
        last = self.phases[-1]
        names = [phase.name for phase in self.phases if phase is not last or phase.repeat > 1]
        trained = [parameter.detach() for name in names for parameter in self.params[name]]
        fused = {phase.name for phase in self.phases if phase.optimizer.is_fused}
        moments = [
            value
            for name in names
            if name in fused
            for slots in self.optimizers[name].state.values()
            for value in slots.values()
        ]
        others = [self.optimizers[name] for name in names if name not in fused]
        return Backup([*trained, *moments, *self.model.buffers()], others)

    def update_average(self, decay: float, keep: Tensor) -> None:
        """Move the averaged weights towards the current ones, unless ``keep`` (scalar, 0 or 1) is 1.

        The decay rises over the first steps, so that the average forgets the initial weights.
        """
        if not self.average:
            return
        step = self.counters.step
        weight = (1.0 - min(decay, (1.0 + step) / (10.0 + step))) * (1.0 - keep)
        with torch.no_grad():
            for name, value in self.averaged.items():
                self.average[name].lerp_(value, weight.to(value.dtype))

    def throttle(self, values: Mapping[str, float]) -> list[str]:
        """Lower the learning rate of phases whose metric exceeds its limit; return their names."""
        lowered = []
        for phase in self.phases:
            rule, factor = phase.throttle, self.rate_factors[phase.name]
            if rule and values.get(f"{phase.name}/{rule.metric}", 0.0) > rule.above and factor > rule.least:
                self.rate_factors[phase.name] = max(factor * rule.factor, rule.least)
                lowered.append(phase.name)
        return lowered

    def lower_rates(self, factor: float, least: float) -> dict[str, float]:
        """Multiply the learning rates of all phases, down to the share ``least``; return their shares."""
        for name, share in self.rate_factors.items():
            self.rate_factors[name] = max(share * factor, min(share, least))
        return self.rate_factors

    def state(self, keys: Mapping[str, Any]) -> dict[str, Any]:
        """Return everything that a resume or a successor needs."""
        scales = {"loss_scales": self.loss_scales.state()} if self.loss_scales else {}
        return {
            "format": FORMAT,
            "keys": dict(keys),
            "model": self.model.state_dict(),
            "average": self.average,
            "optimizers": {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()},
            "shares": self.rate_factors,
            "counters": self.counters.state(),
            "numerics": self.numerics,
            **scales,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Load a snapshot or a parent's checkpoint of the same configuration."""
        self.load_weights(state)
        self.load_optimizers(state, "refuse")
        self._load_scales(state)
        self.rate_factors = dict(state["shares"])
        self.counters = Counters.restored(state["counters"])

    def load_weights(self, state: Mapping[str, Any]) -> None:
        """Load model and averaged weights; raise CheckpointError when they do not fit exactly."""
        try:
            self.model.load_state_dict(state["model"])
        except RuntimeError as error:
            raise CheckpointError(
                "the checkpoint's weights do not fit the model: use the version of crpipe that trained it, "
                f"or begin a new run; {error}"
            ) from error
        if self.average.keys() != state["average"].keys():
            changed = list_names(self.average.keys() ^ state["average"].keys())
            raise CheckpointError(f"the checkpoint's averaged weights are not those of the model: {changed}")
        for name in self.averaged:
            self.average[name].copy_(state["average"][name])

    def init_from(self, state: Mapping[str, Any], prefixes: Mapping[str, str]) -> Match:
        """Load the weights that fit from another training's checkpoint, or those that ``prefixes`` map.

        Raise CheckpointError when not one fits. The averaged weights start from the averaged ones.
        """
        there = state["model"]
        match = match_weights(self.model.state_dict(), there, prefixes)
        weights = {here: there[name] for here, name in match.names.items()}
        try:
            self.model.load_state_dict(weights, strict=False)
        except RuntimeError as error:  # a module refuses weights that were made for another scaling, say
            raise CheckpointError(f"train.pretrained: {error}") from error
        for here in self.averaged:
            if here in match.names:
                name = match.names[here]
                self.average[here].copy_(state["average"].get(name, there[name]))
        return match

    def continue_from(self, state: Mapping[str, Any], policy: str) -> str:
        """Continue a finished link of another run: weights, counters, factors of throttled rates.

        The optimizers' state is loaded where it fits (see ``load_optimizers``).
        """
        self.load_weights(state)
        self._load_scales(state)
        factors = {name: each for name, each in state["shares"].items() if name in self.rate_factors}
        self.rate_factors |= factors
        self.counters = Counters.restored(state["counters"]).of_next_link()
        return self.load_optimizers(state, policy)

    def _load_scales(self, state: Mapping[str, Any]) -> None:
        if self.loss_scales:
            self.loss_scales.restore(state.get("loss_scales", {}))

    def load_optimizers(self, state: Mapping[str, Any], policy: str) -> str:
        """Load the optimizers' state from a checkpoint where kind and shapes agree.

        Where they do not: raise CheckpointError (policy refuse) or keep that optimizer's fresh state (reset).
        """
        fresh = []
        for name, optimizer in self.optimizers.items():
            saved = state["optimizers"].get(name)
            if saved is not None and same_optimizer(optimizer, saved):
                load_moments(optimizer, saved)
            else:
                fresh.append(name)
        if fresh and policy == "refuse":
            raise CheckpointError(
                f"the optimizer of {list_names(fresh)} differs from the checkpoint's; with train.pretrained, "
                "train.on_optimizer_change: reset starts it from a fresh state"
            )
        return f"optimizers with a fresh state: {list_names(fresh)}"


def _frozen(phase: Phase, model: nn.Module, params: Sequence[nn.Parameter]) -> set[int]:
    """Identify the parameters that a phase freezes; raise ConfigError when it does not train one of them."""
    if phase.frozen is None:
        return set()
    frozen = {id(parameter) for parameter in phase.frozen(model)}
    foreign = frozen - {id(parameter) for parameter in params}
    if foreign:
        names = [name for name, parameter in model.named_parameters() if id(parameter) in foreign]
        raise ConfigError(
            f"phase {phase.name}: frozen names parameters that are not among its params: {list_names(names)}"
        )
    return frozen
