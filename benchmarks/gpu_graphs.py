"""Point 4 of benchmarks/gpu.py: phases recorded as CUDA graphs on padded micro-batches, and ways of pooling.

Without a GPU the operations are launched again where a recording would be replayed: that rehearses the rest.
"""

from __future__ import annotations

import functools
from collections import Counter
from typing import TYPE_CHECKING, Any

import torch
import training
from gpu_rows import NO_GPU
from gpu_throughput import SHAPES, setting_of, timed, tree_of
from steppers import stepper_of

from crpipe.events.batch import Cursor
from crpipe.workloads.muons.models.layers import largest_of, mean_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpu_rows import Given

    from crpipe.train.step import Stepper
    from crpipe.train.workload import Batch

    Pool = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

SEED = 7  # of the random numbers of a loss
HIDDEN = 64  # features of a muon


def graph(given: Given, split: int = 1) -> None:
    """Loss and gradients of each phase: launched, and replayed on every micro-batch of the same shape.

    split: a batch is about so many micro-batches, by ``load.budget_items``; they are padded to few shapes.
    """
    device = torch.device(given.device)
    for base in training.SETTINGS:
        setting = setting_of(given, base.name)
        tree = tree_of(setting, device)
        if setting.gp_every:
            tree["model"]["gp_every"] = 1  # a recording has the penalty always or never
        if split > 1:
            tree["load"]["budget_items"] = round(1.02 * setting.events * setting.mean_muons / split)
        _, stepper = stepper_of(tree, device)
        groups = [(training.make_events(setting, seed), Cursor(0, seed)) for seed in range(1, 1 + SHAPES)]
        batches = [micro.batch for group in groups for micro in stepper.collate_ahead(group, (1,))[2]]
        found = Counter(map(shapes_of, batches))
        shape, _ = found.most_common(1)[0]
        same = [batch for batch in batches if shapes_of(batch) == shape]
        name = setting.name.partition(":")[0]
        given.note(f"{name}: shapes of {len(batches)} micro-batches of {SHAPES} batches", len(found))
        given.note(f"{name}: micro-batches of the most frequent shape", len(same))
        for phase in stepper.state.phases:
            _note_phase(given, f"{name}: {phase.name}", Recording(stepper, phase, same[0]), same)


def shapes_of(batch: Batch) -> tuple[Any, ...]:
    """Give the shapes of all tensors of a batch."""
    return tuple(tuple(tensor.shape) for tensor in batch.values())


def _note_phase(given: Given, name: str, recording: Recording, batches: list[Batch]) -> None:
    launched = 1000 * timed(recording.launch, recording.device, 2 if given.small else 20)
    given.note(f"{name}: loss and gradients, launched", launched, "ms")
    recording.record()
    replayed: float | str = NO_GPU
    if recording.device.type == "cuda":
        replayed = 1000 * timed(recording.replay, recording.device, 20)
    given.note(f"{name}: the same as a CUDA graph", replayed, "ms")
    apart = [recording.difference(batch) for batch in batches]
    given.note(f"{name}: {len(batches)} replays, most difference of losses", max(loss for loss, _ in apart))
    given.note(f"{name}: the same of gradients ÷ the largest", max(slope for _, slope in apart))


class Recording:
    """Loss and gradients of a phase on tensors that stay where they are."""

    def __init__(self, stepper: Stepper, phase: Any, batch: Batch) -> None:
        self.stepper, self.phase, self.device = stepper, phase, stepper.world.device
        stepper._train_only(phase)  # noqa: SLF001 - as its step does
        self.params = stepper.state.trained(phase)
        self.batch = {name: tensor.to(self.device, copy=True) for name, tensor in batch.items()}
        self.value = torch.zeros((), device=self.device)
        self.slopes = [torch.zeros_like(parameter) for parameter in self.params]
        self.replay: Callable[[], None] = self.launch

    def results(self) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Give the loss and its gradients, 0 where there is none."""
        state = self.stepper.state
        with self.stepper.autocast:
            loss, _ = self.phase.loss(state.model, self.batch, state.generator)
        slopes = torch.autograd.grad(loss, self.params, allow_unused=True, materialize_grads=True)
        return loss.detach(), list(slopes)

    def launch(self) -> None:
        """Compute into the places of the results."""
        value, slopes = self.results()
        self.value.copy_(value)
        torch._foreach_copy_(self.slopes, slopes)

    def record(self) -> None:
        """Record ``launch``; from now on ``replay`` repeats it without Python."""
        if self.device.type != "cuda":
            return
        recorded = torch.cuda.CUDAGraph()
        recorded.register_generator_state(self.stepper.state.generator)
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):  # what is set up once is not to be recorded
                self.launch()
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(recorded):
            self.launch()
        self.replay = recorded.replay

    def difference(self, batch: Batch) -> tuple[float, float]:
        """Replay on a batch of the same shapes; give how far loss and gradients are from launched ones.

        The gradients' difference is a share of the largest of them.
        """
        for name, tensor in batch.items():
            self.batch[name].copy_(tensor)
        generator = self.stepper.state.generator
        generator.manual_seed(SEED)
        self.replay()
        generator.manual_seed(SEED)
        value, slopes = self.results()
        pairs = list(zip(self.slopes, slopes, strict=True))
        far = max((mine - known).abs().max().item() for mine, known in pairs)
        largest = max(known.abs().max().item() for _, known in pairs)
        return (self.value - value).abs().item(), far / max(largest, 1e-30)


def pooling(given: Given) -> None:
    """Mean and maximum over the muons of each event, with gradients: by index, fused, and by segments."""
    device = torch.device(given.device)
    for base in training.SETTINGS:
        setting = setting_of(given, base.name)
        _, stepper = stepper_of(tree_of(setting, device), device)
        group = (training.make_events(setting), Cursor(0, 1))
        batch = stepper._on_device(stepper.collate_ahead(group, (1,))[2][0].batch)  # noqa: SLF001
        event, kept = batch["event"], batch["kept"]
        name = f"{setting.name.partition(':')[0]}, {len(event)} muons of {len(kept)} events"
        for kind in (torch.float32, torch.bfloat16):
            values = torch.randn(len(event), HIDDEN, device=device, dtype=kind, requires_grad=True)
            _note_ways(given, f"{name}, {str(kind).removeprefix('torch.')}", values, event, kept)


def _note_ways(
    given: Given, name: str, values: torch.Tensor, event: torch.Tensor, kept: torch.Tensor
) -> None:
    backend = {"backend": "aot_eager"} if given.small else {}  # a processor compiles for minutes
    ways: dict[str, Pool] = {
        "by index, as it is": pooled,
        "fused by torch.compile": torch.compile(pooled, dynamic=False, **backend),  # type: ignore[call-overload]
        "by segments": by_segments,
    }
    known = pooled(values, event, kept).detach()
    for way, pool in ways.items():

        def work(pool: Pool = pool) -> None:
            torch.autograd.grad(pool(values, event, kept).float().square().sum(), values)

        try:
            seconds = timed(work, values.device, 2 if given.small else 50)
        except RuntimeError as error:  # not every type has a kernel
            given.note(f"pooling, {name}, {way}", f"failed: {str(error).splitlines()[0][:200]}")
            continue
        far = (pool(values, event, kept).detach() - known).abs().max().item()
        given.note(f"pooling, {name}, {way}", 1000 * seconds, "ms")
        given.note(f"pooling, {name}, {way}: most difference from that", far)


def pooled(values: torch.Tensor, event: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    """Pool as the critic does: [B, 2 x H]."""
    return torch.cat([mean_of(values, event, kept), largest_of(values, event, kept).float()], dim=1)


def by_segments(values: torch.Tensor, event: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:  # noqa: ARG001
    """Pool as torch's operation for sorted events does."""
    reduce = functools.partial(torch.segment_reduce, values, lengths=kept.long(), axis=0, unsafe=True)
    return torch.cat([reduce("mean").float(), reduce("max").float()], dim=1)
