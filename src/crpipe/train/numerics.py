"""The numerics fingerprint: what this process computes with, and hashes of what it computes.

Two processes with the same fingerprint train to the same bytes on CPUs. The hashes are of operations like
those of training: they see what versions do not say, a processor's instructions and its C library.
"""

from __future__ import annotations

import hashlib
import math
import os
import platform
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn import functional

from crpipe.core.errors import CheckpointError
from crpipe.core.files import digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch import Tensor

    from crpipe.train.ranks import World

_LENGTHS = (1, 3, 7, 15, 31, 1003)  # of tensors: less than a vector, and some vectors with a rest
_WORDS = {
    "device": "device",
    "threads": "CPU threads",
    "instructions": "instruction set",
    "torch": "torch",
    "numpy": "numpy",
    "products": "results of matrix products",
    "functions": "results of functions of tensors",
    "library": "results of the C library's float64 functions",
    "random": "random numbers",
}
Numerics = dict[str, Any]


def numerics(world: World) -> Numerics:
    """Describe how this process computes, as plain values; takes some milliseconds."""
    gpu = world.device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(world.device) if gpu else "cpu",
        "threads": torch.get_num_threads(),
        "instructions": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
        "torch": torch.__version__.split("+", maxsplit=1)[0],
        "numpy": np.__version__,
        **{name: _hash(results()) for name, results in _RESULTS.items()},
    }


def c_library() -> str:
    """Name the C library and its version, for people: the hashes say whether it matters."""
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or "unknown"
    except (ValueError, OSError):
        return " ".join(platform.libc_ver()).strip() or "unknown"


def hashes(known: Sequence[Numerics]) -> list[str]:
    """Return a hash for each, as a receipt holds them."""
    return [digest(each) for each in known]


def difference(known: Sequence[Numerics], here: Numerics) -> str:
    """Describe what differs from how a state was computed; empty where nothing does."""
    if not known:
        return "made by an earlier version of crpipe, whose results differ in their last bits"
    last = known[-1]
    names = [name for name in _WORDS if last.get(name) != here.get(name)]
    parts = [
        f"{_WORDS[name]} {last.get(name)}, here {here.get(name)}"
        if name not in _RESULTS
        else f"other {_WORDS[name]}"
        for name in names
    ]
    if "library" in names:
        parts[names.index("library")] += f" (here: {c_library()})"
    return "; ".join(parts)


def kinds(processes: Sequence[Numerics]) -> list[Numerics]:
    """List how the processes of a training compute, each kind once."""
    return [each for at, each in enumerate(processes) if each not in processes[:at]]


def compare(
    known: Sequence[Numerics], here: Sequence[Numerics], what: str, policy: str, say: Callable[[str], None]
) -> None:
    """Compare how a state was computed with the kinds of these processes; the same: silent.

    known: the kinds of the last job come last. Another kind: one line, or CheckpointError where ``policy`` is
    refuse.
    """
    last = known[-len(here) :]
    new = (each for each in here if all(difference([one], each) for one in last))
    other = next((difference(known, each) for each in new), "")
    if not other:
        return
    if policy == "refuse":
        raise CheckpointError(
            f"{what}: computed with other numerics: {other}; run on the same kind of node with the same "
            "number of threads, or accept other last bits with train.numerics: warn"
        )
    say(f"{what}: computed with other numerics, so the last bits will differ: {other}")


def numerics_of(state: Mapping[str, Any]) -> list[Numerics]:
    """Return how a snapshot or checkpoint was computed; empty where an earlier version made it."""
    return list(state.get("numerics", []))


def _hash(results: Iterator[Any]) -> str:
    total = hashlib.sha256()
    for result in results:
        array = result.detach().numpy() if isinstance(result, torch.Tensor) else np.asarray(result)
        total.update(np.ascontiguousarray(array).tobytes())
    return total.hexdigest()[:16]


def _numbers(count: int) -> Tensor:
    """Return numbers between -1 and 1 without a generator: fractions of multiples of the golden ratio."""
    return torch.from_numpy((np.arange(1, count + 1) * 0.6180339887498949) % 1.0 * 2 - 1).float()


def _products() -> Iterator[Tensor]:
    """Multiply as layers do, forward and backward, and add up."""
    values = _numbers(256 * 67 + 67 * 48)
    left, right = values[: 256 * 67].view(256, 67), values[256 * 67 :].view(67, 48)
    product = torch.addmm(right[0], left, right)
    yield from (product, left.t() @ product, left.double() @ right.double())
    yield functional.layer_norm(left, (67,))
    yield from (left.sum(), left.mean(dim=0), left.square().mean(dim=1), left.norm())
    yield torch.zeros(16, 67).index_add_(0, torch.arange(256) % 16, left)
    heads = product.view(4, 4, 16, 48)
    yield functional.scaled_dot_product_attention(heads, heads, heads)
    yield functional.conv2d(left.view(1, 1, 256, 67), right[:3, :3].reshape(1, 1, 3, 3))


def _functions() -> Iterator[Tensor]:
    for length in _LENGTHS:
        x = _numbers(length) * 6
        size = x.abs() + 0.01
        yield from (torch.exp(x), torch.expm1(x), torch.log(size), torch.log10(size), torch.log1p(size))
        yield from (torch.sin(x), torch.cos(x), torch.tanh(x), torch.atan(x), torch.erf(x), torch.sigmoid(x))
        yield from (torch.pow(size, x), 10.0**x, torch.sqrt(size), torch.rsqrt(size))
        yield from (functional.silu(x), functional.logsigmoid(x), functional.softmax(x, 0))
        wide = x.double()
        yield from (torch.logaddexp(wide, -wide), torch.atan2(wide, 1 - wide))


def _library() -> Iterator[Any]:
    x = np.asarray(_numbers(999), np.float64) * 6
    size, share = np.abs(x) + 0.01, x / 6.01
    yield from (np.exp(x), np.expm1(x), np.sin(x), np.cos(x), np.log(size), np.log10(size), np.log1p(size))
    yield from (np.arcsin(share), np.arccos(share), np.arctan2(x, share), np.hypot(x, size), size**x)
    narrow = x.astype(np.float32)
    yield from (np.sin(narrow), np.cos(narrow), np.exp(narrow), np.log(size.astype(np.float32)))
    yield from (
        np.hypot(narrow, narrow[::-1]),
        narrow.sum(),
        x.std(),
        x[:960].reshape(24, 40) @ x[:400].reshape(40, 10),
    )
    plain = [float(each) for each in size[:99]]
    yield [call(each) for call in (math.exp, math.log, math.log10, math.cos, math.sqrt) for each in plain]


def _random() -> Iterator[Any]:
    for length in (*_LENGTHS, 16, 4096):
        generator = torch.Generator().manual_seed(length)
        yield from (torch.randn(length, generator=generator), torch.rand(length, generator=generator))
        yield torch.randperm(length, generator=generator)
    rng = np.random.default_rng(1)
    yield from (rng.random(999, np.float32), rng.standard_normal(4999), rng.standard_exponential(4999))
    yield from (
        rng.chisquare(0.6, 999),
        rng.chisquare(6.0, 999),
        rng.poisson(3.0, 999),
        rng.poisson(30.0, 999),
    )


_RESULTS: Mapping[str, Callable[[], Iterator[Any]]] = {
    "products": _products,
    "functions": _functions,
    "library": _library,
    "random": _random,
}
