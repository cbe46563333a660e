"""How near a training step on a CPU comes to what the machine can do at all."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

if TYPE_CHECKING:
    from collections.abc import Callable

_SIDE, _BYTES = 2048, 1 << 28


def _product(x: list[int], *others: Any, **_: Any) -> int:
    """Count the operations of ``_linear_pointwise``, with and without a tensor that is added."""
    weight = others[0] if isinstance(others[2], str) else others[1]
    return 2 * x[0] * x[1] * int(weight[0])


def _of_weights(gradient: list[int], x: list[int], *_: Any, **__: Any) -> int:
    """Count the operations of ``mkldnn_linear_backward_weights``."""
    return 2 * gradient[0] * gradient[1] * x[1]


class Traffic(TorchDispatchMode):
    """Adds up the bytes of all tensors that the operations of a block read and write, one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation and count it; a view moves nothing."""
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            tensors = [leaf for leaf in tree_leaves((args, kwargs, result)) if isinstance(leaf, torch.Tensor)]
            self.bytes += sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        return result


@dataclass(frozen=True, slots=True)
class Machine:
    """What the processor can do in float32 with torch's threads: operations/s and bytes/s of memory."""

    flops: float
    bytes: float

    @classmethod
    def measured(cls) -> Machine:
        """Measure the faster of torch's two matrix products, and a copy much larger than the caches."""
        square, large = torch.randn(_SIDE, _SIDE), torch.randn(_BYTES // 4)
        there = torch.empty_like(large)
        products = (
            lambda: square @ square,
            lambda: torch.ops.mkldnn._linear_pointwise(square, square, None, "none", [], ""),  # noqa: SLF001
        )
        fastest = min(_seconds(product) for product in products)
        return cls(2 * _SIDE**3 / fastest, 2 * _BYTES / _seconds(lambda: there.copy_(large)))


def describe(step: Callable[[], None], machine: Machine, seconds: float) -> str:
    """Compare a step that took ``seconds`` with the lower of the two limits."""
    formulas: dict[Any, Any] = {
        torch.ops.mkldnn._linear_pointwise: _product,  # noqa: SLF001
        torch.ops.aten.mkldnn_linear_backward_weights: _of_weights,
    }
    with FlopCounterMode(display=False, custom_mapping=formulas) as counted, Traffic() as traffic:
        step()
    flops = counted.get_total_flops()
    intensity = flops / traffic.bytes
    limit = min(machine.flops, intensity * machine.bytes)
    return (
        f"{flops / 1e9:.0f} GFLOP, {traffic.bytes / 1e9:.1f} GB: {intensity:.1f} FLOP a byte; "
        f"{flops / seconds / 1e9:.0f} GFLOP/s of at most {limit / 1e9:.0f}: {flops / seconds / limit:.0%}"
    )


def _seconds(work: Callable[[], object]) -> float:
    """Return the least time of a few runs: what the machine can do when nothing else is in the way."""
    times = []
    for _ in range(6):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)
