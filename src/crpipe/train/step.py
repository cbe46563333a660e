"""One training step: phases in order, accumulated micro-batches, a bad step skipped on all ranks."""

from __future__ import annotations

import contextlib
import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from crpipe.core.errors import DeviceMemoryError, TrainError
from crpipe.loading.microbatch import micro_batches
from crpipe.train.answers import collated, loss_of, sizes_of
from crpipe.train.optimizers import step_unless
from crpipe.train.workload import Batch, Metrics, Phase, Workload, with_weights

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray
    from torch import Tensor, nn

    from crpipe.config.sections import LoadSection, TrainSection
    from crpipe.events.batch import Cursor, Events
    from crpipe.train.loss_scales import LossScales
    from crpipe.train.meter import Meter
    from crpipe.train.ranks import World
    from crpipe.train.state import TrainState

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_RECOMPILATIONS = 64
_SENTENCES = 3  # of torch's message on memory: what was asked for, of which GPU, how much is free
# What to do where a trained model is used on blocks of events.
LESS_AT_ONCE = "lower load.max_items or evaluate.batch_events, which bound what is computed at once"


@contextlib.contextmanager
def named_anomaly(phase: str) -> Iterator[None]:
    """Turn what torch's anomaly detection finds into a TrainError that names the operation.

    Nothing while `crpipe train` has no --anomaly.
    """
    if not torch.is_anomaly_enabled():
        yield
        return
    with warnings.catch_warnings(record=True) as heard:  # torch warns with the traceback of the forward pass
        warnings.simplefilter("always")
        try:
            yield
        except RuntimeError as error:
            if "returned nan values" not in str(error):
                raise
            raise TrainError(
                f"--anomaly: phase {phase}: {' '.join(str(error).split())}{_place(heard)}; correct the "
                "operation, or leave --anomaly out, which skips such steps"
            ) from error


def refuse_not_finite(phase: str, loss: Tensor) -> None:
    """Raise TrainError for a loss that is not finite, while anomaly detection is on."""
    if torch.is_anomaly_enabled() and not bool(torch.isfinite(loss)):
        raise TrainError(
            f"--anomaly: phase {phase}: the loss is {float(loss):g} before any gradient; look at the "
            "operations of its loss, or leave --anomaly out, which skips such steps"
        )


def _place(heard: list[warnings.WarningMessage]) -> str:
    """Name the file and line of the forward pass, from torch's warning."""
    frames = [frame for each in heard for frame in _FRAME.findall(str(each.message))]
    outside = [frame for frame in frames if "/torch/" not in frame[0]] or frames
    if not outside:
        return ""
    file, line = outside[-1]
    return f" ({'/'.join(Path(file).parts[-2:])}, line {line})"


class Micro(NamedTuple):
    """A micro-batch on the host, and its share of the batch's events, or of their weights."""

    batch: Batch
    share: float


class Stepper:
    """Applies training steps to a TrainState; owns nothing that a snapshot would need."""

    def __init__(
        self,
        train: TrainSection,
        load: LoadSection,
        workload: Workload,
        state: TrainState,
        world: World,
        meter: Meter,
        weight: str = "",
        throttle_meter: Meter | None = None,
    ) -> None:
        """Prepare.

        weight: event column that holds the events' weights; empty without any. throttle_meter: gets the
        metrics that throttles watch, besides ``meter``.
        """
        self.train = train
        self.budget_items = load.max_items
        self.workload = workload
        self.state = state
        self.world = world
        self.meter = meter
        self.weight = weight
        self.throttle_meter = throttle_meter
        rough = {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(train.precision)
        self.autocast = torch.autocast(world.device.type, rough or torch.bfloat16, enabled=bool(rough))
        if rough == torch.float16:
            state.scale_losses()
        # Why the last step was skipped, on the device; overflowed: 1 when nothing but gradients at a loss
        # scale were not finite.
        self.overflowed = self._failed = torch.zeros((), device=world.device)

    def step(
        self,
        group: Sequence[tuple[Events, Cursor]],
        seed: tuple[int, ...],
        rate: float,
        phase_rates: Mapping[str, float] | None = None,
        ready: Mapping[Cursor, list[Micro]] | None = None,
    ) -> Tensor:
        """Run all phases on a group of batches at ``rate`` times their learning rates.

        phase_rates: the same for the phases that have a schedule of their own, by their names.
        ready: the micro-batches of those batches that were collated ahead; the others are collated here.
        Repeat r of a phase trains on batch r, counted from the group's end; a shorter last group means fewer
        repeats. Return a scalar on the device: 1 when the step was skipped, else 0. A skipped step changes
        nothing but loss scales: changes that its phases made before the first bad number are undone.
        """
        bad = self.overflowed = self._failed = torch.zeros((), device=self.world.device)
        self.state.seed_step(self.world.rank)
        before = self.state.backup()
        collated = dict(ready or {})
        rates = phase_rates or {}
        for phase in self._active_phases():
            self._train_only(phase)
            phase_rate = rates.get(phase.name, rate)
            for events, cursor in self._batches_of(phase, group):
                if cursor not in collated:
                    collated[cursor] = list(self._micro(events, (*seed, *cursor)))
                bad = self._optimize(phase, collated[cursor], self._weight_of(events), phase_rate, bad)
        before.restore_where(bad)
        self.state.update_average(self.train.ema_decay, bad)
        self.overflowed = self.overflowed * (1 - self._failed)
        return bad

    def probe(self, events: Events, seed: tuple[int, ...]) -> None:
        """Run every phase's loss and backward on a batch, without an optimizer step."""
        self.state.seed_step(self.world.rank)
        for phase in self._active_phases():
            self._train_only(phase)
            for batch, share in self._micro(events, seed):
                with self.autocast:  # not guarded: whoever compiles judges the exceptions
                    result = phase.loss(self.state.model, self._on_device(batch), self.state.generator)
                loss = result[0] if isinstance(result, tuple) else result
                (loss * share).backward()  # type: ignore[no-untyped-call]

    def measure(self, events: Events, seed: tuple[int, ...]) -> Iterator[tuple[str, Tensor, float]]:
        """Yield (name, value, weight) of every phase's loss and metrics on a batch, without any step."""
        micro, total = list(self._micro(events, seed)), self._weight_of(events)
        for phase in self.state.phases:
            self._train_only(phase)  # a gradient penalty needs gradients, also where nothing is trained
            for batch, share in micro:
                loss, metrics = self._loss(phase, batch)
                for name, value in {"loss": loss, **metrics}.items():
                    yield f"{phase.name}/{name}", value.detach(), share * total

    def _loss(self, phase: Phase, batch: Batch) -> tuple[Tensor, Metrics]:
        with self.autocast:
            return loss_of(
                self.workload, phase, self.state.model, self._on_device(batch), self.state.generator
            )

    def _batches_of(
        self, phase: Phase, group: Sequence[tuple[Events, Cursor]]
    ) -> Sequence[tuple[Events, Cursor]]:
        if self.train.fresh_batches:
            return group[-phase.repeat :]
        return [group[-1]] * phase.repeat

    def _active_phases(self) -> list[Phase]:
        return [phase for phase in self.state.phases if self.state.trained(phase)]

    def _train_only(self, phase: Phase) -> None:
        trained = {id(parameter) for parameter in self.state.trained(phase)}
        for parameter in self.state.model.parameters():
            parameter.requires_grad_(id(parameter) in trained)

    def _optimize(
        self, phase: Phase, micro: Sequence[Micro], total: float, rate: float, bad: Tensor
    ) -> Tensor:
        optimizer, params = self.state.optimizers[phase.name], self.state.trained(phase)
        optimizer.zero_grad(set_to_none=True)
        scales, lost = self.state.loss_scales, torch.zeros_like(bad)
        for batch, share in micro:
            with named_anomaly(phase.name):
                loss, metrics = self._loss(phase, batch)
                part = scales.scaled(phase.name, loss * share) if scales else loss * share
                part.backward()  # type: ignore[no-untyped-call]
            refuse_not_finite(phase.name, loss.detach())
            lost = _or_not_finite(lost, loss.detach())
            self._meter(phase, {"loss": loss.detach(), **metrics}, share * total)
        bad = torch.maximum(bad, lost)
        if scales:
            bad = torch.maximum(bad, self._unscale(scales, phase, params, lost))
        if self.world.size > 1:
            bad = _or_not_finite(bad, _norm(params))
            weight = torch.full((), float(total), device=self.world.device)
            bad = (self.world.reduce_gradients(params, weight, bad) > 0).to(bad.dtype)
        norm = _norm(params)
        bad = _or_not_finite(bad, norm)
        self._clip(phase, params, norm)
        for group, full in zip(optimizer.param_groups, self.state.rates[phase.name], strict=True):
            group["lr"] = full * rate * self.state.rate_factors[phase.name]
        self._take(phase, bad)
        return bad

    def _unscale(
        self, scales: LossScales, phase: Phase, params: Sequence[nn.Parameter], lost: Tensor
    ) -> Tensor:
        """Divide gradients by the loss scale, and change it, alike on all ranks; return 1 for bad ones."""
        scales.unscale(phase.name, params)
        flags = torch.stack([lost, _or_not_finite(torch.zeros_like(lost), _norm(params))])
        lost, infinite = (self.world.sum(flags) > 0).to(lost.dtype).unbind()
        overflowed, bad = scales.update(phase.name, infinite, lost), torch.maximum(lost, infinite)
        self.overflowed = torch.maximum(self.overflowed, overflowed)
        self._failed = torch.maximum(self._failed, bad - overflowed)
        self.meter.record(f"{phase.name}/loss_scale", scales.scaled(phase.name, torch.ones_like(bad)))
        return bad

    def _take(self, phase: Phase, bad: Tensor) -> None:
        step_unless(self.state.optimizers[phase.name], bad, phase.optimizer)

    def collate_ahead(
        self, batch: tuple[Events, Cursor], seed: tuple[int, ...]
    ) -> tuple[Events, Cursor, list[Micro]]:
        """Collate a batch as ``step`` would; several threads may do so beside a step."""
        events, cursor = batch
        if self.world.device.type == "cuda":
            torch.cuda.set_device(self.world.device)  # every thread has a current device of its own
        return events, cursor, list(self._micro(events, (*seed, *cursor)))

    def _micro(self, events: Events, seed: tuple[int, ...]) -> Iterator[Micro]:
        """Collate a batch in micro-batches; all phases of a step share them, on the host."""
        if not len(events):
            return
        total = self._weight_of(events)
        for index in micro_batches(sizes_of(self.workload, events), self.budget_items):
            share = self._weight_of(events, index)
            if self.weight and not share > 0:
                continue  # its events count for nothing, and a mean weighted by zeros is not a number
            batch = with_weights(collated(self.workload, events, index, seed), events, index, self.weight)
            if self.world.device.type == "cuda":
                # Only from pinned memory does a copy run beside the host, which goes on without waiting.
                batch = {name: tensor.pin_memory() for name, tensor in batch.items()}
            yield Micro(batch, share / total)

    def _weight_of(self, events: Events, index: NDArray[np.integer[Any]] | None = None) -> float:
        """Add up the weights of some events, or of all; count them where they have none."""
        if not self.weight:
            return len(events if index is None else index)
        weights = events.columns[self.weight].astype(np.float64)
        return float((weights if index is None else weights[index]).sum())

    def _on_device(self, batch: Batch) -> Batch:
        return {name: tensor.to(self.world.device, non_blocking=True) for name, tensor in batch.items()}

    def _clip(self, phase: Phase, params: Sequence[nn.Parameter], norm: Tensor) -> None:
        limit = self.train.gradient_clip_norm
        self.meter.record(f"{phase.name}/grad_norm", norm)
        if limit:
            self._meter(phase, {"clipped": (norm > limit).double()}, 1.0)
            scale = (limit / norm.clamp_min(1e-12)).clamp_max(1.0)
            for parameter in params:
                if parameter.grad is not None:
                    parameter.grad.mul_(scale.to(parameter.grad.dtype))

    def _meter(self, phase: Phase, values: dict[str, Any], weight: float) -> None:
        for name, value in values.items():
            self.meter.add(f"{phase.name}/{name}", value.detach(), weight)
            if self.throttle_meter and phase.throttle and name == phase.throttle.metric:
                self.throttle_meter.add(f"{phase.name}/{name}", value.detach(), weight)


def _or_not_finite(bad: Tensor, value: Tensor) -> Tensor:
    return torch.maximum(bad, (~torch.isfinite(value)).to(bad.dtype))


def _norm(params: Sequence[nn.Parameter]) -> Tensor:
    gradients = [parameter.grad for parameter in params if parameter.grad is not None]
    return torch.nn.utils.get_total_norm(gradients)


def compile_modules(
    model: nn.Module, probe: Callable[[], None], say: Callable[[str], None], mode: bool | str = True
) -> bool:
    """Compile each child of ``model`` in place and run ``probe``; go back to eager, saying why, if it fails.

    mode: of torch.compile, or fullgraph; True: its default.
    ``probe`` runs every loss and its backward; weights and buffers are put back as they were after it. A
    gradient that is differentiated again is what a compiled module most often refuses.
    """
    before = {name: value.clone() for name, value in model.state_dict().items()}
    children = list(model.children())
    # torch counts recompilations by code object, and modules of one class share theirs.
    torch._dynamo.config.recompile_limit = _RECOMPILATIONS  # noqa: SLF001 - the documented place of the option
    for child in children:
        _compile(child, mode)
    try:
        probe()
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, NotImplementedError, torch._dynamo.exc.TorchDynamoException) as error:  # noqa: SLF001 - dynamo's errors have no public name
        for child in children:
            del child.forward  # the one of its class is back
        say(f"warning: train.compile does not work here, training runs eager ({_first_line(error)})")
        return False
    finally:
        model.load_state_dict(before)
        model.zero_grad(set_to_none=True)
    return True


def _compile(module: nn.Module, mode: bool | str) -> None:
    """Compile the forward of a module, also where torch would skip it silently: that of its own classes."""
    whole = mode == "fullgraph"
    named = mode if isinstance(mode, str) and not whole else None
    module.forward = torch.compile(module.forward, dynamic=True, fullgraph=whole, mode=named)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__


@contextlib.contextmanager
def named_out_of_memory(remedy: str) -> Iterator[None]:
    """Turn torch's out-of-memory error into a DeviceMemoryError that ends with ``remedy``."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        sentences = " ".join(str(error).split()).split(". ")
        raise DeviceMemoryError(f"{'. '.join(sentences[:_SENTENCES]).rstrip('.')}; {remedy}") from error
