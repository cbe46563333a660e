"""An error that says which key to change when the memory of a GPU is too small."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import torch

from crpipe.core.errors import DeviceMemoryError

if TYPE_CHECKING:
    from collections.abc import Iterator

# What to do where a trained model is used on blocks of events.
LESS_AT_ONCE = "lower load.budget_items or evaluate.batch_events, which bound what is computed at once"
_SENTENCES = 3  # of torch's message: what was asked for, of which GPU, how much is free


@contextlib.contextmanager
def named_out_of_memory(remedy: str) -> Iterator[None]:
    """Turn torch's out-of-memory error into a DeviceMemoryError that ends with ``remedy``."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        sentences = " ".join(str(error).split()).split(". ")
        raise DeviceMemoryError(f"{'. '.join(sentences[:_SENTENCES]).rstrip('.')}; {remedy}") from error
