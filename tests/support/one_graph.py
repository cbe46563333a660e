"""What a compiler and CUDA graphs need of a loss: one graph, and no waiting for the device."""

from contextlib import ExitStack
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# What copies a value to the host, or has a result whose shape depends on values.
_WAITS = ("_local_scalar_dense", "item", "nonzero", "masked_select", "unique", "repeat_interleave", "equal")
_WAITS += ("bincount",)
_COPIES = ("tolist", "numpy", "cpu", "__array__")  # which on a CPU are no operations of torch


class NeverWaits(TorchDispatchMode):
    """Fails at the first operation for which a device would have to be waited for."""

    def __enter__(self):
        self.copies = ExitStack()
        for name in _COPIES:
            self.copies.enter_context(patch.object(torch.Tensor, name, side_effect=AssertionError(name)))
        return super().__enter__()

    def __exit__(self, *error):
        self.copies.close()
        return super().__exit__(*error)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        assert not any(word in name for word in _WAITS), func
        if name.startswith(("index", "_index_put")):  # by booleans, which is nonzero on a device
            chosen = args[1] if isinstance(args[1], list | tuple) else ()
            assert not any(index is not None and index.dtype == torch.bool for index in chosen), func
        return func(*args, **(kwargs or {}))


def with_gradients(loss, network):
    """Value and metrics of a loss, and its gradients by the weights that have one."""
    (value, metrics), weights = loss(), list(network.parameters())
    found = torch.autograd.grad(value, weights, allow_unused=True)
    return [value.detach(), *metrics.values(), *(each for each in found if each is not None)]


def assert_one_graph(loss, network):
    """Compile a loss as one graph, and compare its values and gradients with eager ones."""
    torch._dynamo.reset()
    try:
        whole = torch.compile(loss, fullgraph=True, dynamic=False, backend="aot_eager")
        pairs = zip(with_gradients(whole, network), with_gradients(loss, network), strict=True)
        for mine, known in pairs:
            torch.testing.assert_close(mine, known, rtol=1e-4, atol=1e-5)
    finally:
        torch._dynamo.reset()
