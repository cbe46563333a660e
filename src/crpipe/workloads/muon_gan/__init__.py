"""Conditional WGAN-GP for muon bundles. Importing this package is cheap; ``MuonGan`` itself brings torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from crpipe.workloads.muon_gan.config import MuonGanConfig

if TYPE_CHECKING:
    from crpipe.workloads.muon_gan.workload import MuonGan

__all__ = ["MuonGan", "MuonGanConfig"]


def __getattr__(name: str) -> Any:
    """Import the workload on first use: reading a configuration must not cost torch's 3 s."""
    if name == "MuonGan":
        from crpipe.workloads.muon_gan.workload import MuonGan  # noqa: PLC0415

        return MuonGan
    raise AttributeError(name)
