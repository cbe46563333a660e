"""Optimizers of torch by their names: what a phase asks for, and how it is built, stepped and restored."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from crpipe.config.loading import check_choice
from crpipe.core.causes import plugin_errors
from crpipe.core.errors import ConfigError, PluginError

_FUSED: dict[str, type[torch.optim.Optimizer]] = {"adam": torch.optim.AdamW, "sgd": torch.optim.SGD}
# What torch has, without those that need a closure or sparse gradients.
_TORCH: dict[str, type[torch.optim.Optimizer]] = {
    name: value
    for name, value in sorted(vars(torch.optim).items())
    if isinstance(value, type) and name not in ("Optimizer", "LBFGS", "SparseAdam")
}
# Torch imports its compiler (1 s and 70 MB of each job) to keep it out of methods that nobody compiles here.
for _name in ("add_param_group", "load_state_dict", "state_dict", "zero_grad"):
    _method = inspect.unwrap(getattr(torch.optim.Optimizer, _name))
    setattr(_method, "__dynamo_disable", _method)
_OURS = ("params", "lr", "weight_decay")  # options that are fields of the spec
_BETAS = (0.9, 0.999)
Build = Callable[[list[nn.Parameter], float], torch.optim.Optimizer]


@dataclass(frozen=True, slots=True)
class OptimizerSpec:
    """Which optimizer a phase uses; part of the fingerprint through the workload's options.

    kind: ``adam`` (with decoupled weight decay: AdamW) or ``sgd``, whose kernels skip a bad step on the
        device; any class of torch.optim by its name, such as ``RAdam``, or a function
        (parameters, learning rate) -> optimizer: before each of their steps the host waits for the device.
    weight_decay: of weights with two dimensions or more; norms and biases have one, and decay only with
        decay_all.
    options: further ones of a class of torch.optim, by their names there.
    """

    kind: str | Build
    learning_rate: float
    betas: tuple[float, float] = _BETAS
    momentum: float = 0.0
    weight_decay: float = 0.0
    decay_all: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise ConfigError for a name that torch has not, or an option that its optimizer does not use."""
        if isinstance(self.kind, str):
            check_choice("OptimizerSpec: kind", self.kind, (*_FUSED, *_TORCH))
        name = self.kind if isinstance(self.kind, str) else "a function"
        used = {"adam": {"betas"}, "sgd": {"momentum"}}.get(name, set())
        given = {"betas": self.betas != _BETAS, "momentum": self.momentum != 0}
        for field_name, is_given in given.items():
            if is_given and field_name not in used:
                raise ConfigError(
                    f"OptimizerSpec: {name} has no {field_name}; leave it out, or name another optimizer"
                    + (f', or write options={{"{field_name}": …}}' if name in _TORCH else "")
                )
        self._check_options(name)

    def _check_options(self, name: str) -> None:
        known = _options_of(name)
        for option in self.options:
            if option not in known or option in _OURS:
                near = difflib.get_close_matches(option, known, n=1)
                hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(known) or 'none'}"
                raise ConfigError(f"OptimizerSpec: {name} has no option {option}; {hint}")
        if self.weight_decay and name in _TORCH and "weight_decay" not in _options_of(name, ours=True):
            raise ConfigError(f"OptimizerSpec: {name} has no weight_decay; leave it out")

    @property
    def is_fused(self) -> bool:
        """Whether the optimizer skips a bad step itself, on the device."""
        return isinstance(self.kind, str) and self.kind in _FUSED


def _options_of(name: str, *, ours: bool = False) -> list[str]:
    """Name the options that a class of torch.optim has; ours: those that are fields of the spec, too."""
    if name not in _TORCH:
        return []
    return [each for each in inspect.signature(_TORCH[name]).parameters if ours or each not in _OURS]


def build_optimizer(phase: str, params: list[nn.Parameter], spec: OptimizerSpec) -> torch.optim.Optimizer:
    """Build the optimizer of a phase; raise PluginError when it refuses its options or parameters."""
    if isinstance(spec.kind, str) and spec.kind in _FUSED:
        return _fused(_FUSED[spec.kind], params, spec)
    named = spec.kind if isinstance(spec.kind, str) else getattr(spec.kind, "__name__", "the optimizer")
    with plugin_errors(f"phase {phase}: {named} cannot be built"):
        if isinstance(spec.kind, str):
            decay: dict[str, Any] = {"weight_decay": spec.weight_decay} if spec.weight_decay else {}
            groups, kind = _groups(params, spec), _TORCH[spec.kind]
            optimizer: Any = kind(groups, lr=spec.learning_rate, **decay, **spec.options)  # type: ignore[call-arg]
        else:
            optimizer = spec.kind(params, spec.learning_rate)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise PluginError(f"phase {phase}: {named}: expected an optimizer, found {type(optimizer).__name__}")
    return optimizer


def _groups(params: Sequence[nn.Parameter], spec: OptimizerSpec) -> list[dict[str, Any]]:
    """Divide parameters into those whose weights decay and those (norms, biases) that keep theirs."""
    if not spec.weight_decay or spec.decay_all:
        return [{"params": list(params)}]
    decaying = [parameter for parameter in params if parameter.dim() > 1]
    others = [parameter for parameter in params if parameter.dim() <= 1]
    groups: list[dict[str, Any]] = [{"params": decaying}, {"params": others, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def _fused(kind: Any, params: list[nn.Parameter], spec: OptimizerSpec) -> torch.optim.Optimizer:
    """Build an optimizer with fused kernels: by their flag `found_inf` a bad step is skipped on the device.

    torch would allocate moments at the first step; a bad first step must leave them as they were before.
    """
    options: dict[str, Any] = {"momentum": spec.momentum}
    slots = ["momentum_buffer"] if spec.momentum else []
    if spec.kind == "adam":
        options, slots = {"betas": spec.betas}, ["exp_avg", "exp_avg_sq"]
    optimizer: torch.optim.Optimizer = kind(
        _groups(params, spec), spec.learning_rate, weight_decay=spec.weight_decay, fused=True, **options
    )
    for parameter in params if slots else []:
        step = {"step": torch.zeros((), device=parameter.device)} if spec.kind == "adam" else {}
        optimizer.state[parameter] = step | {slot: torch.zeros_like(parameter) for slot in slots}
    return optimizer


def step_unless(optimizer: torch.optim.Optimizer, bad: torch.Tensor, spec: OptimizerSpec) -> None:
    """Take a step unless ``bad`` (scalar, 0 or 1) is 1."""
    if spec.is_fused:
        optimizer.found_inf = bad  # type: ignore[attr-defined]
        with torch.no_grad():
            inspect.unwrap(type(optimizer).step)(optimizer)  # torch's wrapper imports its compiler, too
    elif not bad:
        optimizer.step()


def load_moments(optimizer: torch.optim.Optimizer, saved: Mapping[str, Any]) -> None:
    """Load the state of each parameter, but keep this run's own betas, momentum and weight decay."""
    kept = [
        {name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups
    ]
    optimizer.load_state_dict(dict(saved))
    for group, options in zip(optimizer.param_groups, kept, strict=True):
        group.update(options)


def same_optimizer(optimizer: torch.optim.Optimizer, saved: Mapping[str, Any]) -> bool:
    """Return whether a saved state is one of this kind of optimizer and of these shapes."""
    groups, old = optimizer.param_groups, saved["param_groups"]
    if [len(group["params"]) for group in groups] != [len(group["params"]) for group in old]:
        return False
    if any(group.keys() != before.keys() for group, before in zip(groups, old, strict=True)):
        return False
    params = [parameter for group in groups for parameter in group["params"]]
    return all(
        _fits(value.shape, params[index].shape)
        for index, slots in saved["state"].items()
        for value in slots.values()
        if isinstance(value, torch.Tensor)
    )


def _fits(shape: torch.Size, of_parameter: torch.Size) -> bool:
    """Return whether a state has a parameter's shape, means over some of its dimensions, or one number."""
    means = len(shape) == len(of_parameter) and all(map(lambda a, b: a in (1, b), shape, of_parameter))
    return means or shape == torch.Size([])
