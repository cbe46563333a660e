"""Compiled modules where that works: one probe on a real batch decides, eager otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn


def compile_modules(model: nn.Module, probe: Callable[[], None], say: Callable[[str], None]) -> bool:
    """Compile each child of ``model`` in place and run ``probe``; go back to eager, saying why, if it fails.

    ``probe`` runs every loss and its backward; weights and buffers are put back as they were after it. A
    gradient penalty's double backward is what a compiled module most often refuses.
    """
    before = {name: value.clone() for name, value in model.state_dict().items()}
    children = list(model.children())
    for child in children:
        _compile(child)
    try:
        probe()
    except (RuntimeError, NotImplementedError, torch._dynamo.exc.TorchDynamoException) as error:  # noqa: SLF001 - dynamo's errors have no public name
        for child in children:
            child._compiled_call_impl = None  # noqa: SLF001 - torch offers no public way back
        say(f"warning: train.compile does not work here, training runs eager ({_first_line(error)})")
        return False
    finally:
        model.load_state_dict(before)
        model.zero_grad(set_to_none=True)
    return True


def _compile(module: nn.Module) -> None:
    """Compile a module in place; torch passes over the forward of its own classes (Sequential) silently."""
    if not type(module).__module__.startswith("torch."):
        module.compile(dynamic=True)
        return

    def call(*args: Any, **kwargs: Any) -> Any:
        return module._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]  # noqa: SLF001 - __call__ would come back here

    call.__code__ = (
        call.__code__.replace()
    )  # torch counts recompilations by code object: no two modules share
    module._compiled_call_impl = torch.compile(call, dynamic=True)  # noqa: SLF001 - what Module.compile sets


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
