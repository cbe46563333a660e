"""Directions of neutrinos from the pulses of IceCube. Importing this package is cheap: no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from crpipe.workloads.direction.options import (
    DeepSetOptions,
    FlatTransformerOptions,
    HierarchicalTransformerOptions,
)

if TYPE_CHECKING:
    from crpipe.workloads.direction.models.workload import DeepSet, FlatTransformer, HierarchicalTransformer

__all__ = [
    "DeepSet",
    "DeepSetOptions",
    "FlatTransformer",
    "FlatTransformerOptions",
    "HierarchicalTransformer",
    "HierarchicalTransformerOptions",
]


def __getattr__(name: str) -> Any:
    """Import a workload on first use: reading a configuration must not cost torch's 3 s."""
    if name in ("DeepSet", "FlatTransformer", "HierarchicalTransformer"):
        from crpipe.workloads.direction.models import workload  # noqa: PLC0415

        return getattr(workload, name)
    raise AttributeError(name)
