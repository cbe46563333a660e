"""Compiled modules where that works: one probe on a real batch decides, eager otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

_RECOMPILATIONS = 64


def compile_modules(model: nn.Module, probe: Callable[[], None], say: Callable[[str], None]) -> bool:
    """Compile each child of ``model`` in place and run ``probe``; go back to eager, saying why, if it fails.

    ``probe`` runs every loss and its backward; weights and buffers are put back as they were after it. A
    gradient that is differentiated again is what a compiled module most often refuses.
    """
    before = {name: value.clone() for name, value in model.state_dict().items()}
    children = list(model.children())
    # torch counts recompilations by code object, and modules of one class share theirs.
    torch._dynamo.config.recompile_limit = _RECOMPILATIONS  # noqa: SLF001 - the documented place of the option
    for child in children:
        _compile(child)
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


def _compile(module: nn.Module) -> None:
    """Compile the forward of a module, also where torch would skip it silently: that of its own classes."""
    module.forward = torch.compile(module.forward, dynamic=True)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
