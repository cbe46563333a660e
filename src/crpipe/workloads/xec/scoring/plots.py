"""Figures of predictions: the model beside the simple reconstruction, on the same events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from crpipe.workloads.xec.layout import Truth


def draw_all(
    truth: Mapping[str, Any], prediction: Mapping[str, Any], folder: Path, tasks: Collection[Truth]
) -> list[Path]:
    """Plot every figure into ``folder``; return their paths."""
    return []
